"""Helpers for tests of names, which write what the scheduler and the link write: placements, reports and usage."""

from __future__ import annotations

import numpy as np

from scheduling.core.vocabulary import task_events
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.requirement import task_id
from scheduling.journal import journal, wakeups
from scheduling.models import Cell, Job, Machine, Task
from scheduling.tasks import reported_states, transitions
from scheduling.usage import live_usage
from tests.integration.rows import ME


def place(cell: Cell, job: Job, machine: Machine, *indexes: int, ports: int = 20_000) -> None:
    with journal.write(cell.id, ME) as entry:
        transitions.tasks_place(entry, [Assignment(job.id, i, machine.id, (ports + i,)) for i in indexes])


def report(
    cell: Cell,
    job: Job,
    index: int,
    *,
    incarnation: int = 1,
    phase: str = "up",
    health: str = "healthy",
    address: str = "",
) -> None:
    with journal.write(cell.id, ME) as entry:
        up = phase == "up" and health == "healthy"
        seen = reported_states.Observation(task_id(job.id, index), incarnation, phase, health, up, address=address)
        reported_states.tasks_observe(entry, [seen])


def evict(cell: Cell, job: Job, index: int) -> None:
    with journal.write(cell.id, ME) as entry:
        transitions.tasks_evict(entry, [task_events.Eviction(task_id(job.id, index), 1, "preemption")])


def use(job: Job, index: int, *, cpu_milli: int, incarnation: int = 1) -> None:
    """Store in Redis how many milli-cores a placed task uses now, as a link shard does after a report."""
    row = Task.objects.get(job=job, index=index)
    client = wakeups.client()
    seconds, micros = client.time()
    rows = np.zeros(1, dtype=live_usage.SAMPLE)
    rows["task_id"], rows["at"], rows["cpu_milli"] = row.id, seconds + micros / 1e6, cpu_milli
    rows["processes"], rows["incarnation"] = 1, incarnation
    client.hset(f"borg:usage:{job.cell_id}", str(row.machine_id), rows.tobytes())
