"""A rolling update of 1,000 tasks with at most 20 down, undone half-way (§2.3)."""

from __future__ import annotations

import pytest
from django.db.models import Count

from scheduling.jobs import updates
from scheduling.models import Job, Task, Update
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)
TASKS, BUDGET = 1000, 20


def test_at_most_twenty_tasks_are_down_and_an_undo_half_way_loses_none(cell, ann, tenant) -> None:
    machine = rows.a_machine(cell, capacity=(10**7, 2**50, 2**50, 0, 0, 100_000))
    small = {"cpu": "10m", "ram": "64Mi", "disk": "64Mi"}
    file = world.with_task(tasks=TASKS, limit=small) | {"update": {"max_down": BUDGET}}
    job = world.submit(ann, cell, file)
    updates.updates_advance(cell.id)
    world.bring_up(job, machine)
    assert Task.objects.filter(job=job, up=True).count() == TASKS

    def roll(steps: int) -> None:
        """Let the update go on for this many steps. After each, all pending tasks are placed and come up."""
        for _ in range(steps):
            updates.updates_advance(cell.id)
            assert Task.objects.filter(job=job, up=False).count() <= BUDGET
            world.bring_up(job, machine)

    spec = world.read(cell, file | {"task": file["task"] | {"command": ["new"]}})
    updates.job_update(principal=ann, job=Job.objects.get(pk=job.pk), job_spec=spec)
    assert Task.objects.filter(job=job, up=False).count() == BUDGET
    world.bring_up(job, machine)
    roll(TASKS // BUDGET // 2 - 1)
    changed = Task.objects.filter(job=job, spec_version=2).count()
    assert changed == TASKS // 2
    updates.job_undo(principal=ann, job=Job.objects.get(pk=job.pk))
    world.bring_up(job, machine)
    roll(TASKS // BUDGET // 2)
    assert Update.objects.get(job=job, to_version=3).state == Update.DONE
    incarnations = (
        Task.objects.filter(job=job, up=True, spec_version=3).values_list("incarnation").annotate(Count("id"))
    )
    assert dict(incarnations) == {1: TASKS - changed, 3: changed}, "tasks that had not changed kept running"
