"""Tests of allocs, gangs, accelerators and budgets in one cell, placed by the real master (§2.4, §2.5)."""

from __future__ import annotations

from typing import Any

import pytest

from quota.vocabulary.permissions import Role
from quota.vocabulary.resources import ACCELERATORS
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.task_events import Eviction
from scheduling.jobs import submit_and_kill
from scheduling.journal import journal
from scheduling.machines import machines
from scheduling.master.invariants import validate
from scheduling.master.loop import Master
from scheduling.master.snapshot import load_state
from scheduling.models import Departure, Job, Machine, Task
from scheduling.tasks import departures, transitions
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)

# Four machines of eight cores, two of them with two accelerators.
PLAIN = (8_000, 2**35, 2**38, 0, 0, 10_000)
WITH_DEVICES = (*PLAIN[:ACCELERATORS], 2_000, *PLAIN[ACCELERATORS + 1 :])


@pytest.fixture
def cell():
    cell = rows.a_cell()
    yield cell
    assert validate(cell.id) == []


@pytest.fixture
def ann(cell):
    tenant = rows.a_tenant("ubar")
    for band in ("production", "batch"):
        rows.grant(tenant, cell, band, (*rows.LARGE[:ACCELERATORS], 8_000, *rows.LARGE[ACCELERATORS + 1 :]))
    for number in range(4):
        capacity = WITH_DEVICES if number < 2 else PLAIN
        rows.a_machine(cell, f"m{number}", capacity=capacity, rack=f"r{number}")
    return world.principal("ann", tenant=tenant, role=Role.OPERATOR)


class Placing:
    """A master that runs until it has nothing to do. Each run checks that its state equals the rows."""

    def __init__(self, cell: Any) -> None:
        self.cell, self.master = cell, Master(cell.id)

    def __call__(self) -> None:
        self.master._kept = 0.0  # its maintenance is due
        for _ in range(20):
            before = journal.newest(self.cell.id)
            if not self.master.tick() and journal.newest(self.cell.id) == before:
                break
        assert self.master.state is not None
        assert self.master.state.diff(load_state(self.cell.id)) == []
        assert validate(self.cell.id) == []


@pytest.fixture
def placing(cell) -> Placing:
    return Placing(cell)


def shelf(**changes: Any) -> dict[str, Any]:
    return {
        "name": "shelf",
        "kind": "AllocSet",
        "priority": "production",
        "tasks": 2,
        "spread": {"max_per_machine": 1},
        "task": {"limit": {"cpu": 2, "ram": "1Gi", "disk": "1Gi"}},
        **changes,
    }


def inside(name: str, tasks: int, **changes: Any) -> dict[str, Any]:
    return world.with_task(name, tasks=tasks) | {"alloc_set": "shelf", **changes}


def batch(name: str, tasks: int, limit: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "priority": "batch",
        "tasks": tasks,
        "task": {"command": ["count"], "limit": {"ram": "64Mi", **limit}},
        **changes,
    }


def running(job: Job) -> list[Task]:
    return list(Task.objects.filter(job=job, state="running").order_by("index"))


def evict(cell: Any, *tasks: Task) -> None:
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_evict(entry, [Eviction(task.pk, task.incarnation, "other", "moved away") for task in tasks])


def gone(cell: Any) -> None:
    """Record that the processes of all stopped tasks have ended, as Borglets report."""
    with journal.write(cell.id, rows.ME) as entry:
        left = Departure.objects.filter(machine__cell=cell).values_list("task_id", "incarnation")
        departures.tasks_gone(entry, [(task, incarnation, None) for task, incarnation in left])


def test_a_task_without_its_accelerators_is_named(cell, ann, placing) -> None:
    """`validate` names each task whose number of accelerators is not the one it asks for, also if it asks for 0."""
    whole = world.submit(ann, cell, batch("whole", 1, {"cpu": "100m", "accelerators": 2}))
    web = world.submit(ann, cell, batch("web", 1, {"cpu": "100m"}))
    placing()
    for job, asked, wrong, right in ((whole, 2000, [0], [0, 1]), (web, 0, [0], [])):
        Task.objects.filter(job=job).update(devices=wrong)
        problems = validate(cell.id)
        Task.objects.filter(job=job).update(devices=right)
        told = f"task 0 of job {job.name} asks for {asked} thousandths of accelerators and has devices {{0}}"
        assert [problem for problem in problems if "asks for" in problem] == [told]


def test_inner_tasks_leave_with_their_alloc_and_come_back_into_it(cell, ann, placing) -> None:
    envelope = world.submit(ann, cell, shelf())
    web = world.submit(ann, cell, inside("web", 2, spread={"max_per_machine": 1}))
    logs = world.submit(ann, cell, inside("logs", 2, priority="batch"))
    gang = world.submit(ann, cell, batch("gang", 4, {"cpu": 3}, gang=True))
    half = world.submit(ann, cell, batch("half", 2, {"cpu": "100m", "accelerators": "500m"}))
    whole = world.submit(ann, cell, batch("whole", 1, {"cpu": "100m", "accelerators": 2}))
    placing()
    assert [len(running(job)) for job in (envelope, web, logs, gang, half, whole)] == [2, 2, 2, 4, 2, 1]
    by_alloc = {task.pk: task.machine_id for task in running(envelope)}
    for task in running(web) + running(logs):
        assert task.alloc_id is not None
        assert task.machine_id == by_alloc[task.alloc_id]
    assert len({task.alloc_id for task in running(web)}) == 2
    (all_of_one,) = running(whole)
    assert list(all_of_one.devices) == [0, 1]
    assert {task.machine_id for task in running(half)}.isdisjoint({all_of_one.machine_id})

    first = running(envelope)[0]
    there = Task.objects.filter(alloc_id=first.pk).count()
    assert there >= 1
    evict(cell, first)
    assert Task.objects.filter(alloc_id=first.pk, state="running").count() == 0
    assert Task.objects.filter(job__in=(web, logs), state="pending").count() == there
    gone(cell)
    placing()
    assert [len(running(job)) for job in (envelope, web, logs)] == [2, 2, 2]
    back = Task.objects.get(pk=task_id(envelope.id, first.index))
    assert (back.incarnation, back.state) == (2, "running")
    assert set(Task.objects.filter(alloc_id=back.pk).values_list("machine_id", flat=True)) == {back.machine_id}


def test_a_drain_takes_an_alloc_with_all_inside_elsewhere(cell, ann, placing) -> None:
    envelope = world.submit(ann, cell, shelf())
    web = world.submit(ann, cell, inside("web", 2, spread={"max_per_machine": 1}))
    placing()
    world.report(envelope, 0, 1)
    world.report(web, 0, 1)
    left = Machine.objects.get(pk=running(envelope)[0].machine_id)
    machines.machines_drain(principal=rows.ME, cell=left.cell, machines=[left], reason="new disk")
    placing()
    assert left.pk not in {task.machine_id for task in running(envelope) + running(web)}
    assert [len(running(envelope)), len(running(web))] == [2, 2]


def test_a_gang_is_placed_whole_or_not_at_all_and_preempted_within_budgets(cell, ann, placing) -> None:
    small = world.submit(ann, cell, batch("small", 2, {"cpu": 6}, disruption_budget=1))
    placing()
    too_many = world.submit(ann, cell, batch("gang", 3, {"cpu": 6}, gang=True))
    placing()
    assert (len(running(small)), len(running(too_many))) == (2, 0), "two machines have room for one each"
    submit_and_kill.job_kill(principal=ann, job=too_many)
    urgent = world.submit(ann, cell, world.with_task("urgent", tasks=3, limit={"cpu": 5, "ram": "64Mi"}))
    placing()
    assert (len(running(urgent)), len(running(small))) == (3, 1), "one victim is enough, and one may be down"
    (victim,) = Task.objects.filter(job=small, state="pending")
    assert victim.detail == "preempted by a more urgent task"
