"""Tests of the map of a cell: what each caller sees of the machines, and that changes of the journal reach the map."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from portal.live.map_changes import MapChanges, MapTopic
from portal.live.page_changes import news_of
from quota.vocabulary.permissions import Principal, Scope
from scheduling.cell_map import columns, kept_maps, machine_usage
from scheduling.cell_map.rows import machine_facts, task_sums
from scheduling.cell_map.scopes import MapScope, scope_of
from scheduling.core.vocabulary import events, task_events
from scheduling.core.vocabulary.requirement import task_id
from scheduling.journal import journal, wakeups
from scheduling.models import Cell, Machine, Task
from scheduling.tasks import transitions
from scheduling.tasks.reservations import reservations_set
from scheduling.usage import live_usage
from tests.integration import portal_world, rows
from tests.integration.portal_world import signed_in

pytestmark = pytest.mark.django_db
ALL = MapScope(None, True)
DATA = "/cells/cc/map/data/"


@pytest.fixture
def world(kept_world):
    machine_usage._kept.clear()
    return copy.deepcopy(kept_world)


def of_another_tenant(world):
    job = rows.a_job(
        world.cell, rows.a_tenant("other"), "covert", tasks=1, limit=(2_000, 2**30, 2**30, 0, 0, 1), priority=300
    )
    portal_world.place(job, 0, world.machine, port=20100)
    return job


def read(name: str, query: str = "") -> dict:
    """Return the map as the user `name` reads it, with the columns of the only machine as single values."""
    answer = signed_in(name).get(DATA + query)
    assert answer.status_code == 200
    found = json.loads(answer.content)
    assert found["machines"]["name"] == ["m1"]
    return found | {column: values[0] for column, values in found["machines"].items()}


def test_tenants_see_the_sums_of_all_limits_and_only_their_own_other_figures(world) -> None:
    other = Task.objects.get(job=of_another_tenant(world))
    own = Task.objects.get(job=world.job, index=0)
    samples = np.zeros(3, live_usage.SAMPLE)
    for place, (task, used) in enumerate(((None, 900), (own, 40), (other, 700))):
        samples[place]["task_id"] = task.id if task else -world.machine.id
        samples[place]["cpu_milli"], samples[place]["at"] = used, timezone.now().timestamp()
    wakeups.client().hset(f"borg:usage:{world.cell.id}", str(world.machine.id), samples.tobytes())
    sre, tenant, stranger = read("sre"), read("viewer"), read("stranger")
    for one in (sre, tenant, stranger):
        assert (one["tasks"], one["limit_cpu_milli"]) == (2, 2_000 + own.limit[0])
    names = ("own", "own_tasks", "reservation_cpu_milli", "usage_cpu_milli", "priority")
    assert [sre[name] for name in names] == [False, 2, 2_000 + own.limit[0], 900, 300]
    assert [tenant[name] for name in names] == [True, 1, own.limit[0], 40, world.job.priority]
    assert [stranger[name] for name in names] == [True, 1, 2_000, 700, 300]
    used = json.loads(signed_in("viewer").get(DATA + "?part=measured").content)["machines"]
    assert (used["id"], used["usage_cpu_milli"]) == ([world.machine.id], [40])


def test_a_job_marks_its_machines_for_those_who_may_see_it(world) -> None:
    of_another_tenant(world)
    assert read("viewer", "?job=ubar/jfoo")["job_tasks"] == 1
    assert read("sre", "?job=other/covert")["job_tasks"] == 1
    viewer = signed_in("viewer")
    for path in (DATA, "/cells/cc/map/"):
        assert viewer.get(f"{path}?job=other/covert").status_code == 404
        answer = viewer.get(f"{path}?job=jfoo")
        assert answer.status_code == 422
        assert "write it as tenant/name" in answer.text
    page = viewer.get("/cells/cc/map/?job=ubar/jfoo&machine=m1").text
    assert '<option value="job" selected>' in page
    assert 'data-map-first="m1"' in page


def test_pages_link_to_the_map(world) -> None:
    viewer = signed_in("viewer")
    assert viewer.get("/map/").headers["location"] == "/cells/cc/map/"
    assert viewer.get("/map/?cell=nowhere").status_code == 404
    assert '/cells/cc/map/?machine=m1"' in viewer.get("/cells/cc/machines/m1/").text
    assert '/cells/cc/map/?job=ubar/jfoo"' in viewer.get("/jobs/cc/ubar/jfoo/").text
    assert '/cells/cc/map/"' in viewer.get("/cells/cc/").text
    assert "/map/" in signed_in("sre").get("/admin/").text


def test_scopes_follow_the_rights_of_tokens(world) -> None:
    def scope(**given) -> MapScope:
        return scope_of(Principal(name="someone", scopes=frozenset({Scope.READ}), **given), world.cell)

    assert scope(roles={"ubar": "viewer"}) == MapScope(frozenset({world.tenant.id}), False)
    assert scope(roles={}) == MapScope(frozenset(), False)
    limited = scope(roles={"ubar": "owner", "other": "owner"}, tenant="ubar")
    assert limited == MapScope(frozenset({world.tenant.id}), False)


def everything(cell: Cell) -> tuple:
    sums = task_sums(cell.id)
    return machine_facts(cell.id), sorted(map(tuple, sums.tolist()))


def kept(cell: Cell) -> tuple:
    found = kept_maps.maps.read(cell)
    assert found.revision == cell.revision
    return found.facts, sorted(map(tuple, found.sums.tolist()))


def changes(world, after: int) -> MapChanges | None:
    world.cell.refresh_from_db()
    news = news_of(world.cell.id, after=after, until=world.cell.revision)
    return MapTopic(world.cell.id, ALL, world.job.id).changes(news)


def test_each_change_reaches_the_kept_map_and_the_live_page(world, monkeypatch) -> None:
    spare = rows.a_machine(world.cell, "m2", rack="r2")
    world.cell.refresh_from_db()
    kept(world.cell)
    first = task_id(world.job.id, 0)

    def evict() -> None:
        with journal.write(world.cell.id, rows.ME) as entry:
            transitions.tasks_evict(entry, [task_events.Eviction(first, 1, "machine-shutdown")])

    def reserve() -> None:
        with journal.write(world.cell.id, rows.ME) as entry:
            wanted = np.array([[7, 2**21, 2**22]])
            incarnation = np.array([Task.objects.get(pk=first).incarnation], np.int32)
            assert reservations_set(entry, np.array([first]), incarnation, wanted) == 1

    def drain() -> None:
        with journal.write(world.cell.id, rows.ME) as entry:
            Machine.objects.filter(pk=spare.id).update(state="draining")
            entry.append(events.MachineState(machine_id=spare.id, state="draining", reason="new disk"))

    expected = [
        (evict, world.machine.id, {"tasks": 0, "job_tasks": 0, "priority": -1}),
        (lambda: portal_world.place(world.job, 0, spare), spare.id, {"tasks": 1, "job_tasks": 1}),
        (drain, spare.id, {"state": "draining"}),
    ]
    for change, machine_id, values in expected:
        before = world.cell.revision
        change()
        found = changes(world, before)
        assert found is not None
        assert not found.resync
        place = found.machines["id"].index(machine_id)
        assert {name: found.machines[name][place] for name in values} == values
        assert kept(world.cell) == everything(world.cell)
    before = world.cell.revision
    portal_world.report(world.job, 0)
    assert changes(world, before) is None  # a report does not change the map
    before = world.cell.revision
    fresh = rows.a_machine(world.cell, "m3")
    found = changes(world, before)
    assert [facts[:3] for facts in found.facts] == [[fresh.id, "m3", "r1"]]
    assert kept(world.cell) == everything(world.cell)
    before = world.cell.revision
    reserve()
    assert changes(world, before) is None  # reclamation changes thousands every five seconds
    found = kept_maps.maps.read(world.cell)
    assert found.reserved
    monkeypatch.setattr(kept_maps, "OLD_S", -1.0)
    assert kept(world.cell) == everything(world.cell)
    assert not kept_maps.maps.read(world.cell).reserved


def test_a_restored_cell_is_read_again(world) -> None:
    kept_maps.maps.read(world.cell)
    Machine.objects.update(state="down")  # without an event
    assert kept_maps.maps.read(world.cell).facts[world.machine.id].state == "up"
    world.cell.history_ordinal += 1
    assert kept_maps.maps.read(world.cell).facts[world.machine.id].state == "down"


def test_the_number_of_queries_does_not_grow(world) -> None:
    def queries() -> int:
        world.cell.refresh_from_db()
        with CaptureQueriesContext(connection) as found:
            columns.encoded_map(world.cell, ALL, world.job)
        return len(found)

    kept_maps.maps.read(world.cell)
    job = rows.a_job(world.cell, world.tenant, "wide", tasks=6)
    portal_world.place(job, 0, world.machine, port=21_000)
    few = queries()
    for number in range(1, 6):
        portal_world.place(job, number, rows.a_machine(world.cell, f"more-{number}"))
    assert queries() == few <= 8
