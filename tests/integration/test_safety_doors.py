"""Tests of drains, brakes and quarantine with `borgctl` over the REST API: what is shown, and what is rejected."""

from __future__ import annotations

import pytest

from scheduling.brakes import stored_brakes as brake_services
from scheduling.core.vocabulary import events, task_events
from scheduling.core.vocabulary.requirement import task_id
from scheduling.journal import journal
from scheduling.machines import evacuation
from scheduling.master.metrics import CellCollector
from scheduling.models import Drain, Job, Machine
from scheduling.policy import brake_rules
from scheduling.tasks import transitions
from tests.integration import cli_world, rows, world
from tests.integration.cli_world import Cli

pytestmark = pytest.mark.django_db(transaction=True)

KEYS = [f"{letter * 32}/0/1" for letter in "ab"]


@pytest.fixture
def eve(tmp_path, shared_portal, tenant) -> Cli:
    return cli_world.of(tmp_path, shared_portal, "eve", tenant=tenant)


@pytest.fixture
def sre(tmp_path, shared_portal) -> Cli:
    return cli_world.of(tmp_path, shared_portal, "sre", sre=True)


@pytest.fixture
def busy(cell, ann) -> Job:
    """Return a job with a disruption budget on two machines of one rack. A third machine is in another rack."""
    job = world.submit(ann, cell, world.a_file(tasks=6, disruption_budget=1))
    for number in (1, 2):
        machine = rows.a_machine(cell, f"m{number}", rack="r7")
        world.place(job, machine, *range(3 * number - 3, 3 * number))
    world.report(job, *range(6))
    rows.a_machine(cell, "m3", rack="r8")
    return job


def test_a_rack_is_drained_and_what_holds_it_up_is_reported(cell, busy, sre, eve) -> None:
    assert sre.out("drains") == "No machine is draining.\n"
    said = sre.out("machine", "drain", "--rack", "r7", "--reason", "new switch", "--deadline", "30m")
    assert said == "m1 is draining.\nm2 is draining.\n"
    assert evacuation.tasks_drain(cell.id, 50, patience_s=600.0) == 1
    head, *lines = eve.out("drains").splitlines()
    assert head.split()[:5] == ["MACHINE", "STATE", "LEFT", "OF", "MOVING"]
    assert [line.split()[:5] for line in lines] == [
        ["m1", "draining", "2", "3", "0"],
        ["m2", "draining", "3", "3", "0"],
    ]
    assert "ubar/web (1 of 1 down, 2 here)" in lines[0]
    assert "new switch" in lines[0]
    shown = sre.json("drains")
    assert (shown[0]["asked_by"], shown[0]["break_budgets"], shown[0]["waiting"][0]["may"]) == ("sre", False, 1)
    Drain.objects.update(deadline="2020-01-01T00:00:00Z")
    told, _ = sre.failing("machine", "drain", "m1", "m2", "--reason", "new switch", "--deadline", "0s", "--wait")
    assert "the deadline has passed: 5 tasks left on m1, m2; waiting for ubar/web" in told


def test_a_drain_is_waited_for(cell, busy, sre) -> None:
    said = sre.out("machine", "drain", "m3", "--reason", "new disk", "--wait")
    assert said == "m3: no task is left.\n"
    assert sre.json("machine", "drain", "m1", "--reason", "x", "--dry-run")["state"] == "draining"
    assert Machine.objects.filter(state="draining").count() == 1


def test_nobody_waits_for_what_stops_on_a_machine_that_is_down(cell, busy, sre) -> None:
    with journal.write(cell.id, rows.ME) as entry:
        gone = [task_events.Eviction(task_id(busy.id, index), 1, "machine-failure") for index in range(3)]
        transitions.tasks_evict(entry, gone)
    rows.machine_down(Machine.objects.get(hostname="m1"))
    told, document = sre.failing("machine", "drain", "m1", "--reason", "new disk", "--wait")
    assert "m1 is down" in told
    assert "3 more stopping" in told
    assert document["drains"][0]["tasks_stopping"] == 3


def test_what_is_wrong_about_a_drain_is_reported(cell, busy, sre, eve) -> None:
    assert eve.failing("machine", "drain", "--rack", "r7", "--reason", "x")[1]["code"] == "forbidden"
    assert "no machines" in sre.failing("machine", "drain", "--rack", "r9", "--reason", "x")[0]
    assert "m9" in sre.failing("machine", "drain", "m1", "m9", "--reason", "x")[0]
    assert "break_budgets" in sre.failing("machine", "drain", "m1", "--reason", "x", "--break-budgets")[0]
    assert "30m" in sre.failing("machine", "drain", "m1", "--reason", "x", "--deadline", "soon", status=2)[0]
    assert "the machines are missing or chosen twice" in sre.failing("machine", "drain", "--reason", "x", status=2)[0]
    assert not Drain.objects.exists()


def test_killing_much_of_a_cell_has_to_be_confirmed(cell, ann, eve, sre) -> None:
    """A kill that stops many tasks of a cell is rejected unless the user confirms the number of these tasks."""
    job = world.submit(ann, cell, world.a_file("huge", tasks=brake_rules.ALWAYS_STOPPED + 1))
    world.bring_up(job, rows.a_machine(cell))
    told, document = eve.failing("kill", "huge")
    assert "501 of the 501 running tasks of cell cc would stop" in told
    assert (document["code"], document["figures"]["tasks"]) == ("confirm", 501)
    assert eve.failing("kill", "huge", "--confirm", "500")[1]["code"] == "confirm"
    assert eve.out("kill", "huge", "--confirm", "501", "--dry-run") == "cc/ubar/huge: 501 tasks would be killed.\n"
    assert eve.out("kill", "huge", "-t", "0") == "cc/ubar/huge: 1 task killed.\n"
    assert eve.out("kill", "huge") == "cc/ubar/huge: 500 tasks killed.\n"


def test_brakes_are_shown_and_released_by_sres_alone(cell, busy, sre, eve) -> None:
    assert [line.split()[:3] for line in eve.out("brake", "list").splitlines()[1:]] == [
        ["lost", "open", "0"],
        ["stops", "open", "0"],
    ]
    assert sre.failing("brake", "release", "stops", "--reason", "x")[1]["code"] == "nothing-held"
    with journal.write(cell.id, rows.ME) as entry:
        assert not brake_services.stops_pass(entry, 600, what="preemption")
    told = eve.out("brake", "list").splitlines()[2]
    assert told.split()[:3] == ["stops", "held", "600"]
    assert "preemption would stop 600 tasks at once" in told
    assert _held(cell) == {"lost": 0, "stops": 1}
    assert eve.failing("brake", "release", "stops", "--reason", "x")[1]["code"] == "forbidden"
    assert (
        sre.out("brake", "release", "stops", "--reason", "a launch", "--seconds", "60") == "Brake stops is released.\n"
    )
    shown = sre.json("brake", "list")[1]
    assert (shown["decided_by"], shown["detail"], shown["until"] is None) == ("sre", "a launch", False)
    assert sre.out("brake", "keep", "stops", "--reason", "rather not") == "Brake stops is kept.\n"
    assert sre.failing("brake", "keep", "hand", "--reason", "x")[1]["code"] == "not-found"
    assert _held(cell) == {"lost": 0, "stops": 0}
    actors = [r.actor for r in journal.tail(cell.id, after=0) if isinstance(r.event, events.BrakeSet)]
    assert actors == ["system:test", "sre", "sre"]


def _held(cell) -> dict[str, int]:
    (family,) = [family for family in CellCollector().collect() if family.name == "borg_brake_held"]
    return {sample.labels["brake"]: int(sample.value) for sample in family.samples}


def test_quarantine_is_listed_and_decided(cell, busy, sre, eve) -> None:
    assert sre.out("quarantine", "list") == "No task is in quarantine.\n"
    items = [{"key": key, "name": "cc/ubar/old/0", "since": "2026-11-21T12:00:00+00:00", "release": ""} for key in KEYS]
    Machine.objects.filter(hostname="m3").update(quarantined=items)
    assert eve.failing("quarantine", "list")[1]["code"] == "forbidden"
    lines = sre.out("quarantine", "list").splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [["m3", "cc/ubar/old/0", key] for key in KEYS]
    assert eve.failing("quarantine", "stop", "m3")[1]["code"] == "forbidden"
    assert sre.failing("quarantine", "stop", "m3", "x/0/1")[1]["code"] == "not-in-quarantine"
    assert sre.out("quarantine", "keep", "m3", KEYS[0]) == "1 task on m3 is set to keep.\n"
    assert sre.out("quarantine", "stop", "m3", "--reason", "old") == "1 task on m3 is set to stop.\n"
    assert [item["release"] for item in Machine.objects.get(hostname="m3").quarantined] == ["keep", "stop"]
    last = [r.event for r in journal.tail(cell.id, after=0) if isinstance(r.event, events.MachineState)][-1]
    assert last.reason == "stop 1 in quarantine: old"
