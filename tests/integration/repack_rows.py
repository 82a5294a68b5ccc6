"""Helpers for tests of re-packings: they answer for the machines, which have no Borglets in these tests."""

from __future__ import annotations

from collections import Counter

from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import split_task_id
from scheduling.core.vocabulary.states import Observation
from scheduling.journal import journal
from scheduling.models import Cell, Departure, Job, Machine, Repacking, Task
from scheduling.repacking import repackings
from scheduling.tasks import departures, reported_states
from tests.integration import rows, world

FOUR_CORES = (4_000, 2**34, 2**37, 0, 0, 1_000)


def answer(cell: Cell) -> None:
    """Report what the machines of the cell would: evicted tasks have stopped, and placed tasks are up."""
    left = list(Departure.objects.filter(task__cell=cell).values_list("task_id", "incarnation"))
    placed = list(Task.objects.filter(cell=cell, state="running", up=False).values_list("id", "incarnation"))
    with journal.write(cell.id, rows.ME) as entry:
        departures.tasks_gone(entry, [(task, incarnation, None) for task, incarnation in left])
        reported_states.tasks_observe(
            entry, [Observation(task, incarnation, "up", "unknown", up=True) for task, incarnation in placed]
        )


def scattered(ann, cell: Cell, *, machines: int = 4, **changes) -> tuple[Job, list[Machine]]:
    """Return a job with two tasks per machine, each a quarter of the machine, and the machines. All tasks are up."""
    fleet = [rows.a_machine(cell, f"m{number}", capacity=FOUR_CORES) for number in range(machines)]
    file = world.with_task("web", tasks=2 * machines, limit={"cpu": 1, "ram": "64Mi", "disk": "64Mi"})
    job = world.submit(ann, cell, file | {"disruption_budget": 1} | changes)
    for place, machine in enumerate(fleet):
        world.place(job, machine, 2 * place, 2 * place + 1)
    world.report(job, *range(2 * machines))
    return job, fleet


def plan(cell: Cell, **goal) -> Repacking:
    return repackings.repacking_plan(principal=rows.ME, cell=cell, reason="test", **goal)


def most_down(cell: Cell, job: Job) -> int:
    """Return how many tasks of a job were down at the same time after all had come up, by the journal."""
    up: set[int] = set()
    ever: set[int] = set()
    most = 0
    for record in journal.tail(cell.id, after=0):
        event = record.event
        if isinstance(event, events.TaskReported) and event.job_id == job.id:
            (up.add if event.up else up.discard)(event.index)
            ever |= up
        elif isinstance(event, events.TaskEvicted) and event.job_id == job.id:
            up.discard(event.index)
        if len(ever) == job.tasks_total:
            most = max(most, len(ever) - len(up))
    return most


def evictions(cell: Cell) -> Counter[tuple[int, int]]:
    """Return how often each task was evicted, by job id and index."""
    records = journal.tail(cell.id, after=0)
    return Counter((r.event.job_id, r.event.index) for r in records if isinstance(r.event, events.TaskEvicted))


def planned(repacking: Repacking) -> set[tuple[int, int]]:
    return {split_task_id(task) for step in repacking.steps.exclude(state="spare") for task in step.tasks}


def on(machine: Machine) -> int:
    return Task.objects.filter(machine=machine, state="running").count()
