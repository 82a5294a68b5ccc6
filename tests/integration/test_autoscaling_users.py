"""Tests of the autoscaler on real PostgreSQL: values that users set, by hand, by job files and by undo."""

from __future__ import annotations

import pytest

from quota.vocabulary.errors import Rejected
from scheduling.autoscaling.rows import rows_repair
from scheduling.jobs import updates
from scheduling.jobs.actions.autoscaled import FILE
from scheduling.jobs.actions.scale import job_scale
from scheduling.models import JobAutoscaling
from tests.integration import world
from tests.integration.autoscaling_world import HORIZONTAL, a_file, again, later, loaded, submitter, turn, values

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def submit(cell, ann, machine):
    return submitter(cell, ann, machine)


def test_a_change_by_a_user_wins_and_holds_the_number_of_tasks(submit, ann) -> None:
    job = submit(HORIZONTAL)
    loaded(job, 900)
    turn(job)
    assert values(job)[0] == 6
    updates.updates_advance(job.cell_id)
    job_scale(principal=ann, job=again(job), tasks=2)
    updates.updates_advance(job.cell_id)
    loaded(job, 2000)
    assert turn(job) == 0
    row = JobAutoscaling.objects.get(job=job)
    assert row.own_tasks == 2
    assert row.tasks_held_until is not None
    assert row.limits_held_until is None
    later(job, 60, "tasks_held_until", "tasks_at")
    assert turn(job) == 1


def test_scaling_by_hand_beyond_the_bounds_is_rejected(submit, ann) -> None:
    job = submit(HORIZONTAL)
    with pytest.raises(Rejected, match="outside of 1 to 6"):
        job_scale(principal=ann, job=job, tasks=7)
    assert values(job)[0] == 3


def test_a_change_of_limits_does_not_hold_the_number_of_tasks(submit, ann, cell) -> None:
    job = submit(HORIZONTAL)
    turn(job)
    file = a_file(HORIZONTAL)
    file["task"] = file["task"] | {"limit": {"cpu": "500m", "ram": "1Gi", "disk": "64Mi"}}
    updates.job_update(principal=ann, job=again(job), job_spec=world.read(cell, file), source=FILE)
    updates.updates_advance(cell.id)
    loaded(job, 450)
    assert turn(job) == 1
    assert values(job)[0] == 6


def test_undo_returns_to_before_the_update_of_a_user_with_the_present_number(submit, ann, cell, machine) -> None:
    job = submit(HORIZONTAL)
    turn(job)
    bad = a_file(HORIZONTAL, labels={"version": "bad"})
    updates.job_update(principal=ann, job=again(job), job_spec=world.read(cell, bad), source=FILE)
    updates.updates_advance(cell.id)
    loaded(job, 900)
    assert turn(job) == 1
    updates.job_undo(principal=ann, job=again(job))
    undone = updates.spec_of(again(job))
    assert (undone.labels, undone.tasks) == ({}, 6)
    file = a_file(HORIZONTAL)
    answer = updates.job_update(principal=ann, job=again(job), job_spec=world.read(cell, file), source=FILE)
    assert answer.outcome == "unchanged", "an undo is not a value that a user has set"


def test_undo_of_a_number_that_a_user_has_set_returns_to_the_number_before(submit, ann) -> None:
    job = submit(HORIZONTAL)
    turn(job)
    job_scale(principal=ann, job=again(job), tasks=5)
    updates.updates_advance(job.cell_id)
    updates.job_undo(principal=ann, job=again(job))
    assert values(job)[0] == 3


def test_a_number_that_the_file_has_by_chance_is_its_own(submit, ann, cell) -> None:
    job = submit(HORIZONTAL)
    loaded(job, 900)
    turn(job)
    same = world.read(cell, a_file(HORIZONTAL, tasks=6))
    assert updates.job_update(principal=ann, job=again(job), job_spec=same, source=FILE).outcome == "unchanged"
    assert JobAutoscaling.objects.get(job=job).own_tasks == 6


def test_a_lost_row_is_made_again_with_what_a_user_has_set(submit, ann, cell) -> None:
    job = submit(HORIZONTAL)
    loaded(job, 900)
    turn(job)
    JobAutoscaling.objects.all().delete()
    rows_repair(cell.id)
    turn(job)
    same = world.read(cell, a_file(HORIZONTAL))
    assert updates.job_update(principal=ann, job=again(job), job_spec=same, source=FILE).outcome == "unchanged"
    assert values(job)[0] == 6
