"""Tests of the page of a machine: what SREs and tenants see there, and that host names lead to it."""

from __future__ import annotations

import copy
import datetime as dt
import re

import numpy as np
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from scheduling.journal import wakeups
from scheduling.models import Departure, Drain, Machine, MaintenanceWindow, Task
from scheduling.usage import live_usage
from tests.integration import portal_world, rows
from tests.integration.portal_world import signed_in

pytestmark = pytest.mark.django_db
PAGE = "/cells/cc/machines/m1/"


@pytest.fixture
def world(kept_world):
    return copy.deepcopy(kept_world)


def use(machine: Machine, *tasks: Task) -> None:
    """Store usage of a machine and of these tasks, as a link shard does."""
    found = np.zeros(len(tasks) + 1, dtype=live_usage.SAMPLE)
    for place, task in enumerate((None, *tasks)):
        found[place]["task_id"] = task.id if task is not None else -machine.id
        found[place]["incarnation"] = task.incarnation if task is not None else 0
        found[place]["cpu_milli"] = 40 if task is not None else 900
        found[place]["at"] = timezone.now().timestamp()
    wakeups.client().hset(f"borg:usage:{machine.cell_id}", str(machine.id), found.tobytes())


def of_another_tenant(world) -> Task:
    job = rows.a_job(world.cell, rows.a_tenant("other"), "covert", tasks=1, limit=(2_000, 2**30, 2**30, 0, 0, 1))
    portal_world.place(job, 0, world.machine, port=20100)
    return Task.objects.get(job=job)


def test_tenants_see_their_own_tasks_and_only_sums_of_the_others(world) -> None:
    other, own = of_another_tenant(world), Task.objects.get(job=world.job, index=0)
    use(world.machine, own, other)
    page = signed_in("viewer").get(PAGE).text
    assert "ubar/jfoo/0" in page
    assert "covert" not in page
    assert "other/" not in page
    assert "1 task of another tenant: 2 cores" in page
    assert "jfoo/0: 0.04 cores" in page
    assert "other processes of the machine" not in page  # the usage of others does not follow from the page
    sre = signed_in("sre").get(PAGE).text
    assert "other/covert/0" in sre
    assert "other processes of the machine: 0.82 cores" in sre
    assert "another tenant" not in sre


def test_the_pool_of_the_machine_is_named(world) -> None:
    assert "<dt>Pool</dt>" not in signed_in("viewer").get(PAGE).text
    Machine.objects.update(attributes={"pool": "gpu"}, assigned_pool="gpu")
    page = signed_in("viewer").get(PAGE).text
    assert "<dt>Pool</dt><dd>gpu" in page
    assert "assigned by a person" in page


def test_only_sres_see_buttons_and_reasons_of_maintenance(world) -> None:
    begin = timezone.now() + dt.timedelta(days=1)
    common = {"cell": world.cell, "starts_at": begin, "ends_at": begin + dt.timedelta(hours=2), "created_at": begin}
    MaintenanceWindow.objects.create(**common, rack="r1", reason="secret plans", asked_by="sre")
    MaintenanceWindow.objects.create(**common, rack="r9", reason="elsewhere", asked_by="sre")
    Machine.objects.update(quarantined=[{"key": "gone"}])
    for name in ("viewer", "owner", "stranger"):
        page = signed_in(name).get(PAGE).text
        assert "This machine has a maintenance from" in page
        for text in ("secret plans", "/admin/", "Drain…"):
            assert text not in page, name
    page = signed_in("sre").get(PAGE).text
    assert page.count("This machine has a maintenance from") == 1
    for text in ("secret plans", "Drain…", "Stop quarantined tasks…", "All stored fields"):
        assert text in page
    assert Client().get(PAGE).status_code == 302
    assert signed_in("viewer").get("/cells/cc/machines/none/").status_code == 404
    assert signed_in("viewer").get("/cells/nowhere/machines/m1/").status_code == 404


def test_the_drain_button_opens_the_form_of_the_console(world) -> None:
    sre = signed_in("sre")
    address, pk = re.search(
        r'action="(/admin/[^"]+)".*?name="_selected_action" value="(\d+)"', sre.get(PAGE).text
    ).groups()
    address = address.replace("&amp;", "&")
    given = {"action": "drain", "_selected_action": pk}
    assert 'name="reason"' in sre.post(address, given).text
    assert Machine.objects.get().state == "up"
    sre.post(address, given | {"reason": "new disk"})
    assert Drain.objects.get().machine_id == int(pk)
    page = sre.get(PAGE).text
    assert "sre drains this machine" in page
    assert "End the drain…" in page


def test_the_history_shows_states_over_time_with_links(world) -> None:
    idle = rows.a_machine(world.cell, "idle")
    rows.machine_down(idle)
    answer = signed_in("stranger").get("/cells/cc/machines/idle/")
    assert [one.title for one in answer.context["timeline"].tracks[0].states] == ["up", "down"]
    assert "is down: silent" in answer.text
    answer = signed_in("viewer").get(PAGE)
    assert '<a href="/jobs/cc/ubar/jfoo/0/">ubar/jfoo/0</a>: task 0 was placed on' in answer.text
    assert 'href="/cells/cc/events/' in answer.text
    stranger = signed_in("stranger").get(PAGE).text
    assert "joined the cell" in stranger
    assert "placed on" not in stranger
    assert "jfoo" not in stranger


def test_a_machine_without_events_shows_its_present_state(world) -> None:
    machine = Machine.objects.create(
        cell=world.cell, hostname="old", address="127.0.0.1", capacity=list(rows.LARGE), secret_digest="1" * 64
    )
    answer = signed_in("viewer").get("/cells/cc/machines/old/")
    assert [one.title for one in answer.context["timeline"].tracks[0].states] == ["up"]
    Departure.objects.create(
        task=Task.objects.first(), incarnation=9, machine=machine, cause="kill", since=timezone.now()
    )
    assert "1 task is still stopping on this machine." in signed_in("viewer").get("/cells/cc/machines/old/").text


def test_each_host_name_is_a_link_to_the_page(world) -> None:
    link = f'<a href="{PAGE}">m1</a>'
    viewer, sre = signed_in("viewer"), signed_in("sre")
    job = "/jobs/cc/ubar/jfoo/"
    for path in ("/cells/cc/", job, job + "0/", job + "events/", "/cells/cc/at/"):
        assert link in viewer.get(path).text, path
    task = Task.objects.get(job=world.job, index=0)
    Drain.objects.create(machine=world.machine, asked_by="me", began_at=timezone.now(), tasks=1)
    for page in ("machine", "task", "drain"):
        assert f'href="{PAGE}">m1</a>' in sre.get(f"/admin/scheduling/{page}/").text, page
    assert task.machine_id == world.machine.id


def test_its_queries_do_not_depend_on_the_number_of_tasks(world) -> None:
    def queries(name: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            assert signed_in(name).get(PAGE).status_code == 200
        return len(captured)

    before = queries("viewer"), queries("sre")
    for number in range(3):
        job = rows.a_job(world.cell, world.tenant, f"more{number}", tasks=2)
        portal_world.place(job, 0, world.machine, port=21000 + 10 * number)
        portal_world.place(job, 1, world.machine, port=21001 + 10 * number)
    assert (queries("viewer"), queries("sre")) == before
