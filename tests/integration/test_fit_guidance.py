"""Tests of guidance: whether a planned job would fit into the cell, and which sizes of tasks would fit better."""

from __future__ import annotations

import json
import time

import msgspec
import pytest

from quota.vocabulary.permissions import system
from scheduling.core.vocabulary import events
from scheduling.jobs import fit_guidance as _guidance
from scheduling.jobs import submit_and_kill
from scheduling.jobs.cell_fits import cell_fits
from scheduling.master.snapshot import load_state
from scheduling.models import Cell, Machine
from scheduling.spec.job_spec import JobSpecification
from scheduling.usage import cell_view
from scheduling.usage.cell_view import ViewPublisher
from tests.integration import portal_world, rows, world
from tests.integration.test_why import place

pytestmark = pytest.mark.django_db(transaction=True)
GIB = 2**30


@pytest.fixture
def cell() -> Cell:
    cell = rows.a_cell()
    for name in ("m1", "m2", "m3"):
        rows.a_machine(cell, name, capacity=(8000, 32 * GIB, 2**40, 0, 0, 10))
    Machine.objects.filter(hostname="m3").update(attributes={"flash": "yes"})
    return cell


def publish(cell: Cell) -> None:
    """Store the view of the cell's machines in Redis, as the cell's master does every second."""
    ViewPublisher(cell.id).publish(load_state(cell.id))


def guidance(cell: Cell, job_spec: JobSpecification) -> list[_guidance.Guidance]:
    publish(cell)
    return _guidance.guidance(cell, job_spec)


def wanted(cell: Cell, **task: object) -> JobSpecification:
    rows.a_tenant("ubar")
    file = world.a_file("new", priority=210) | {"task": {"command": ["x"], **task}}
    return submit_and_kill.spec_for(principal=system("test"), cell=cell, file=file, tenant="ubar")


def test_room_is_counted_by_limits_for_prod_and_by_reservations_for_the_rest(cell) -> None:
    prod = rows.a_job(cell, rows.a_tenant("ubar"), "prod", tasks=1, limit=(6000, GIB, GIB, 0, 0, 1))
    place(prod, 0, Machine.objects.get(hostname="m1").id)
    prod.tasks.update(reservation=[1000, GIB, GIB, 0, 0, 1])
    asked = {"cpu": 4, "ram": "1Gi", "disk": "1Gi"}
    (fit,) = guidance(cell, wanted(cell, limit=asked))
    assert (fit.tasks, fit.shapes.machines, fit.shapes.now, fit.shapes.room) == (3, 3, 2, 4)
    batch = wanted(cell, limit=asked)
    batch = type(batch)(**{**{f: getattr(batch, f) for f in batch.__struct_fields__}, "priority": 110})
    (fit,) = guidance(cell, batch)
    assert (fit.shapes.now, fit.shapes.room) == (3, 5)


def test_constraints_and_machines_that_are_down_count(cell) -> None:
    limit = {"cpu": 1, "ram": "1Gi", "disk": "1Gi"}
    flash = wanted(cell, limit=limit, constraints=[{"attribute": "flash", "relation": "present"}])
    assert guidance(cell, flash)[0].shapes.now == 1
    Machine.objects.filter(hostname="m3").update(state="down")
    (fit,) = guidance(cell, flash)
    assert (fit.shapes.machines, fit.shapes.now) == (1, 0)


def test_what_no_machine_could_hold_is_led_to_the_nearest_shape(cell, django_assert_max_num_queries) -> None:
    job_spec = wanted(cell, limit={"cpu": 12, "ram": "1Gi", "disk": "1Gi"})
    publish(cell)
    with django_assert_max_num_queries(1):
        (fit,) = _guidance.guidance(cell, job_spec)
    assert (fit.shapes.machines, fit.shapes.asked) == (0, None)
    assert fit.shapes.one_more is not None
    assert fit.shapes.one_more.limit[0] == 8000


def test_plans_tell_it_at_every_door(cell) -> None:
    ann = world.bearer(world.a_user("ann", tenant=rows.a_tenant("ubar")))
    rows.grant(rows.a_tenant("ubar"), cell, "production")
    publish(cell)
    file = world.a_file("new") | {
        "task": {"command": ["x"], "limit": {"cpu": 5, "ram": "1Gi", "disk": "1Gi"}},
        "cell": "cc",
    }
    answer = ann.post("/api/v1/cells/cc/jobs/ubar/new/plan/", file, content_type="application/json").json()
    (fit,) = answer["guidance"]
    assert fit["told"] == [
        "Without preemption, 3 tasks would fit now, on 3 machines. If all machines were empty, 3 machines could hold a"
        " task.",
        "The most common kind of machine (3 machines) can hold 1 of these tasks; with a limit of 4"
        " cores of cpu, it could hold 2.",
        "A task could request up to 8 cores of cpu, 32 GiB of ram, 1 TiB of disk, and one machine would still hold 1"
        " such tasks.",
    ]
    assert fit["shapes"]["one_more"]["limit"]["cpu"] == 4000
    portal_world.person("boss", is_staff=True, is_superuser=True)
    boss = portal_world.signed_in("boss")
    page = boss.post("/submit/", {"cell": "cc", "tenant": "ubar", "do": "plan", "text": json.dumps(file)})
    assert "with a limit of 4 cores of cpu, it could hold 2" in page.text


def test_cells_are_compared_for_a_job_file(cell, django_assert_num_queries) -> None:
    small, empty = rows.a_cell("small"), rows.a_cell("empty")
    rows.a_machine(small, "s1", capacity=(8000, 32 * GIB, 2**40, 0, 0, 10))
    for one in (cell, small):
        publish(one)
    Cell.objects.filter(pk=empty.pk).update(extra_resources=["tpu"])
    limit = {"cpu": 3, "ram": "1Gi", "disk": "1Gi"}
    file = world.with_task("new", limit=limit) | {"cell": "elsewhere"}
    with django_assert_num_queries(2):
        found = cell_fits(system("test"), file).cells
    assert [(fit.cell.name, fit.tasks, fit.room) for fit in found] == [("cc", 3, 6), ("small", 3, 2), ("empty", 3, 0)]
    assert "its master does not run" in found[2].problem
    rejected = cell_fits(system("test"), world.with_task("new", limit={**limit, "tpu": 1})).cells
    assert {fit.cell.name: "tpu" in fit.problem for fit in rejected} == {"cc": True, "small": True, "empty": False}


def test_an_old_view_is_used_for_a_bounded_time(cell, monkeypatch: pytest.MonkeyPatch) -> None:
    job_spec = wanted(cell, limit={"cpu": 1})
    publish(cell)
    assert cell_view.read(cell.id, revision=cell.revision + 5) is not None
    monkeypatch.setattr(cell_view, "FRESH_S", -1.0)
    assert cell_view.read(cell.id, revision=cell.revision + 5) is None
    assert cell_view.read(cell.id, revision=cell.revision) is not None, "nothing has changed since"
    cell.revision += 5
    assert _guidance.guidance(cell, job_spec) == []


def test_a_view_has_the_attributes_of_machines_that_joined_or_left_since(cell) -> None:
    publisher = ViewPublisher(cell.id)
    state = load_state(cell.id)
    publisher.publish(state)
    flash = wanted(cell, limit={"cpu": 1}, constraints=[{"attribute": "flash", "relation": "present"}])
    assert _guidance.guidance(cell, flash)[0].shapes.now == 1
    m1, m3 = (Machine.objects.get(hostname=name).id for name in ("m1", "m3"))
    state.apply(events.MachineRemoved(machine_id=m3), revision=state.revision + 1, time=0.0)
    publisher._due = 0.0
    publisher.publish(state)
    assert _guidance.guidance(cell, flash)[0].shapes.now == 0
    joined = msgspec.structs.replace(state.machines.facts[state.machines.slot[m1]], attributes={"flash": "yes"})
    state.apply(joined, revision=state.revision + 1, time=0.0)
    publisher._due = 0.0
    publisher.publish(state)
    assert _guidance.guidance(cell, flash)[0].shapes.now == 1


def test_a_large_cell_is_published_less_often(cell) -> None:
    publisher, state = ViewPublisher(cell.id), load_state(cell.id)
    publisher.publish(state)
    assert publisher._due > time.monotonic()
    state.revision += 1
    publisher.publish(state)
    view = cell_view.read(cell.id, revision=0)
    assert view is not None
    assert view.revision == state.revision - 1
