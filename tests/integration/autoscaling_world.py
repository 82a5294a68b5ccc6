"""Jobs with rules of the autoscaler, their usage, and turns, for tests."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import numpy as np
from django.utils import timezone

from quota.vocabulary.permissions import Principal
from scheduling.autoscaling.turns import autoscale
from scheduling.core.vocabulary.requirement import task_id
from scheduling.jobs import updates
from scheduling.journal import wakeups
from scheduling.models import Cell, CellAutoscaling, Job, JobAutoscaling, Machine, Task
from scheduling.usage import live_usage
from tests.integration import world
from tests.integration.usage_rows import store_usage

MIB = 2**20
VERTICAL = {"vertical": {"mode": "auto", "history_s": 3600, "every_s": 60}}
HORIZONTAL = {"horizontal": {"max": 6, "cpu": 0.5, "window_s": 5, "up_s": 10, "down_s": 60}}


def a_file(rules: dict[str, Any], **changes: Any) -> dict[str, Any]:
    file = world.with_task(limit={"cpu": 1, "ram": "1Gi", "disk": "64Mi"})
    return file | {"autoscale": rules} | changes


def submitter(cell: Cell, ann: Principal, machine: Machine) -> Callable[..., Job]:
    """Return a function that submits a job with rules, and brings its tasks up."""

    def submit(rules: dict[str, Any], **changes: Any) -> Job:
        job = world.submit(ann, cell, a_file(rules, **changes))
        world.bring_up(job, machine)
        return job

    return submit


def used(job: Job, *, cpu: int = 200, ram: int = 100 * MIB, hours: int = 3) -> None:
    """Store usage of all tasks of a job in the last hours."""
    begin = timezone.now() - dt.timedelta(hours=hours)
    for index in range(job.tasks_total):
        store_usage(job, index, begin, cpu_milli=cpu, ram_bytes=ram, windows=hours * 12 - 1)


def loaded(job: Job, cpu_milli: int, *, tasks: int | None = None) -> None:
    """Store the present use of CPU of each running task of a job in Redis, as a shard does."""
    running = list(Task.objects.filter(job=job, state="running").order_by("index")[:tasks])
    rows = np.zeros(len(running), dtype=live_usage.SAMPLE)
    seconds, micros = wakeups.client().time()
    rows["task_id"] = [task_id(job.id, task.index) for task in running]
    rows["at"], rows["cpu_milli"], rows["processes"] = seconds + micros / 1e6, cpu_milli, 1
    wakeups.client().hset(f"borg:usage:{job.cell_id}", "1", rows.tobytes())


def turn(job: Job) -> int:
    """Take a turn now, however long ago the last one was, and let the updates of jobs proceed."""
    CellAutoscaling.objects.filter(cell=job.cell).update(turned_at=None, claimed_until=None)
    minute = CellAutoscaling.objects.filter(cell=job.cell, folded_until__isnull=False)
    for row in minute:
        row.folded_until -= dt.timedelta(seconds=61)
        row.save()
    done = autoscale(job.cell_id)
    assert done.taken
    updates.updates_advance(job.cell_id)
    return done.changed


def values(job: Job) -> tuple[int, int, int]:
    spec = updates.spec_of(Job.objects.select_related("cell").get(pk=job.pk))
    return spec.tasks, spec.base.limit[0], spec.base.limit[1]


def later(job: Job, seconds: float, *columns: str) -> None:
    """Move times of the job's row into the past."""
    row = JobAutoscaling.objects.get(job=job)
    for name in columns:
        if getattr(row, name) is not None:
            setattr(row, name, getattr(row, name) - dt.timedelta(seconds=seconds))
    row.save(update_fields=list(columns))


def again(job: Job) -> Job:
    return Job.objects.select_related("cell", "tenant", "alloc_set").get(pk=job.pk)
