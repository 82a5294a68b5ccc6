"""Tests of drains, which empty machines within disruption budgets and a deadline, also many at once."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

import pytest
from django.db.models import F

from borglet.messages import JoinRequest
from quota.vocabulary.errors import Conflict, Rejected
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Assignment
from scheduling.journal import journal
from scheduling.machines import drain_progress, evacuation, joining, machines
from scheduling.models import Departure, Drain, Job, Machine, Task
from scheduling.policy import brake_rules
from scheduling.policy.cell_settings import CellSettings
from scheduling.tasks import departures, transitions
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)

SETTINGS = CellSettings()


def second(cell) -> int:
    """Evict tasks as the master does in one second, and return how many."""
    return evacuation.tasks_leave(cell.id, SETTINGS, seconds=1.0)


def wishes(cell) -> list[events.MachineState]:
    return [r.event for r in journal.tail(cell.id, after=0) if isinstance(r.event, events.MachineState)]


def running(job: Job) -> int:
    return Task.objects.filter(job=job, state="running").count()


def late(drain_of: Machine) -> None:
    """Move the deadline of the drain of a machine into the past."""
    Drain.objects.filter(machine=drain_of).update(deadline=F("began_at") - dt.timedelta(seconds=1))


def up_on(ann, cell, machine: Machine, name: str, **changes) -> Job:
    job = world.submit(ann, cell, world.a_file(name, **changes))
    world.bring_up(job, machine)
    return job


def test_machines_that_drain_together_share_budgets(cell, machine, ann) -> None:
    others = [rows.a_machine(cell, f"m{number}") for number in (2, 3)]
    job = world.submit(ann, cell, world.a_file(tasks=9, disruption_budget=2))
    for place, here in enumerate([machine, *others]):
        world.place(job, here, *range(place * 3, place * 3 + 3))
    world.report(job, *range(9))
    changed = machines.machines_drain(
        principal=rows.ME, cell=cell, machines=[machine, *others], reason="new power supply"
    )
    assert len(changed) == 3
    assert {m.state for m in Machine.objects.all()} == {"draining"}
    assert len({r.revision for r in journal.tail(cell.id, after=0) if isinstance(r.event, events.MachineState)}) == 1
    assert second(cell) == 2
    assert second(cell) == 0
    assert running(job) == 7


def test_tasks_on_machines_that_are_down_use_up_budgets_too(cell, machine, ann) -> None:
    job = world.submit(ann, cell, world.a_file(tasks=4, disruption_budget=1))
    other = rows.a_machine(cell, "m2")
    world.place(job, machine, 0, 1, 2)
    world.place(job, other, 3)
    world.report(job, *range(4))
    rows.machine_down(other)
    machines.machines_drain(principal=rows.ME, cell=machine.cell, machines=[machine], reason="new disk")
    assert evacuation.tasks_drain(cell.id, 10, patience_s=600.0) == 0


def test_past_its_deadline_a_drain_breaks_budgets_only_on_request(cell, machine, ann) -> None:
    other = rows.a_machine(cell, "m2")
    stubborn = up_on(ann, cell, machine, "stubborn", tasks=3, disruption_budget=1)
    patient = up_on(ann, cell, other, "patient", tasks=3, disruption_budget=1)
    machines.machines_drain(
        principal=rows.ME, cell=machine.cell, machines=[machine], reason="fire", deadline_s=60.0, break_budgets=True
    )
    machines.machines_drain(principal=rows.ME, cell=other.cell, machines=[other], reason="new disk", deadline_s=60.0)
    assert wishes(cell)[-2].break_budgets
    assert wishes(cell)[-1].deadline > 0
    assert second(cell) == 2  # one task of each job
    assert second(cell) == 0
    late(machine)
    late(other)
    assert second(cell) == 2
    assert (running(stubborn), running(patient)) == (0, 2)
    assert second(cell) == 0


def test_a_drain_may_be_given_another_deadline_and_the_same_wish_changes_nothing(cell, machine) -> None:
    for _ in range(2):
        machines.machines_drain(principal=rows.ME, cell=machine.cell, machines=[machine], reason="new disk")
    assert len(wishes(cell)) == 1
    machines.machines_drain(principal=rows.ME, cell=machine.cell, machines=[machine], reason="hurry", deadline_s=60.0)
    drain = Drain.objects.get()
    assert (drain.reason, drain.asked_by, len(wishes(cell))) == ("hurry", "system:test", 2)
    assert 59 < (drain.deadline - drain.began_at).total_seconds() < 600
    for wrong, field in (
        ({"deadline_s": -1.0}, "deadline_s"),
        ({"deadline_s": 1e9}, "deadline_s"),
        ({"break_budgets": True}, "break_budgets"),
    ):
        with pytest.raises(Rejected) as caught:
            machines.machines_drain(principal=rows.ME, cell=machine.cell, machines=[machine], reason="x", **wrong)
        assert field in caught.value.fields
    machines.machine_undrain(principal=rows.ME, machine=machine)
    assert not Drain.objects.exists()


def test_a_machine_that_drained_went_down_and_joined_again_drains_on(cell, machine) -> None:
    machines.machines_drain(principal=rows.ME, cell=machine.cell, machines=[machine], reason="new disk")
    rows.machine_down(machine)
    token = joining.join_token_issue(principal=rows.ME, cell=cell)
    joining.machine_join(
        JoinRequest(token=token, hostname="m1", address="127.0.0.1", capacity={"cpu": 4000, "ram": 2**33})
    )
    machine.refresh_from_db()
    assert machine.state == "draining"
    machines.machine_undrain(principal=rows.ME, machine=machine)
    assert machine.state == "up"


def test_draining_much_of_a_cell_has_to_be_confirmed_also_machine_by_machine(cell, ann, monkeypatch) -> None:
    monkeypatch.setattr(brake_rules, "ALWAYS_STOPPED", 5)
    fleet = [rows.a_machine(cell, f"m{number}") for number in range(4)]
    for number, here in enumerate(fleet):
        up_on(ann, cell, here, f"web{number}", tasks=5)
    machines.machines_drain(principal=rows.ME, cell=fleet[0].cell, machines=[fleet[0]], reason="new disk")
    with pytest.raises(Conflict, match="drain 2 machines: 10 of the 20 running tasks") as caught:
        machines.machines_drain(principal=rows.ME, cell=fleet[1].cell, machines=[fleet[1]], reason="new disk")
    assert (caught.value.code, caught.value.figures["tasks"]) == ("confirm", 10)
    assert Machine.objects.filter(state="draining").count() == 1
    with pytest.raises(Conflict):
        machines.machines_drain(
            principal=rows.ME, cell=fleet[1].cell, machines=[fleet[1]], reason="new disk", confirm=9
        )
    machines.machines_drain(principal=rows.ME, cell=fleet[1].cell, machines=[fleet[1]], reason="new disk", confirm=10)
    assert Machine.objects.filter(state="draining").count() == 2


def test_why_a_task_left_is_one_walk(cell, machine, ann) -> None:
    up_on(ann, cell, machine, "web", tasks=1)
    machines.machines_drain(principal=rows.ME, cell=machine.cell, machines=[machine], reason="new disk", deadline_s=600)
    assert second(cell) == 1
    records = {(r.revision, r.seq): r for r in journal.tail(cell.id, after=0)}
    evicted = next(r for r in records.values() if isinstance(r.event, events.TaskEvicted))
    assert evicted.event.cause == "machine-shutdown"
    drain = records[evicted.caused_by.revision, evicted.caused_by.seq]
    assert (drain.actor, drain.event.state, drain.event.reason) == ("system:test", "draining", "new disk")


# -- progress


def progress(cell, who=rows.ME) -> dict[str, drain_progress.DrainProgress]:
    return {one.hostname: one for one in drain_progress.progress_of(who, cell, list(drain_progress.drains_of(cell)))}


def test_progress_tells_what_is_left_and_whose_budget_it_waits_for(cell, machine, ann) -> None:
    other = rows.a_machine(cell, "m2")
    up_on(ann, cell, machine, "db", tasks=4, disruption_budget=1)
    batch = world.submit(ann, cell, world.a_file("batch", tasks=2, priority=100))
    with journal.write(cell.id, rows.ME) as entry:
        places = [Assignment(batch.id, index, machine.id, ports=(21_000 + index,)) for index in range(2)]
        transitions.tasks_place(entry, places)
    world.report(batch, 0, 1)
    machines.machines_drain(
        principal=rows.ME, cell=machine.cell, machines=[machine], reason="new disk", deadline_s=3600
    )
    machines.machines_drain(principal=rows.ME, cell=other.cell, machines=[other], reason="new disk")
    shown = progress(cell)
    assert (shown["m1"].left, shown["m1"].leaving, shown["m1"].waiting) == (6, 6, ())
    assert (shown["m2"].left, shown["m2"].done) == (0, True)
    second(cell)
    one = progress(cell, ann)["m1"]
    assert (one.drain.tasks, one.left, one.gone, one.overdue) == (6, 4, 2, False)
    assert (one.stopping, replace(one, left=0).done) == (2, False), "what was sent away may still run there"
    with journal.write(cell.id, rows.ME) as entry:
        sent = Departure.objects.filter(machine=machine).values_list("task_id", "incarnation")
        departures.tasks_gone(entry, [(task, incarnation, None) for task, incarnation in sent])
    assert replace(progress(cell)["m1"], left=0).done
    assert sorted((w.job, w.tasks, w.may, w.down) for w in one.waiting) == [
        ("ubar/batch", 1, 1, 1),
        ("ubar/db", 3, 1, 1),
    ]
    stranger = progress(cell, world.principal("eve"))["m1"]
    assert {waiting.job for waiting in stranger.waiting} == {drain_progress.HIDDEN}
    late(machine)
    assert progress(cell)["m1"].overdue


def test_progress_costs_the_same_for_many(cell, machine, ann, django_assert_max_num_queries) -> None:
    for number in range(2, 7):
        here = rows.a_machine(cell, f"m{number}")
        up_on(ann, cell, here, f"web{number}", tasks=2, disruption_budget=1)
        machines.machines_drain(principal=rows.ME, cell=here.cell, machines=[here], reason="new disk")
    second(cell)
    found = list(drain_progress.drains_of(cell))
    with django_assert_max_num_queries(7):
        assert len(drain_progress.progress_of(rows.ME, cell, found)) == 5
