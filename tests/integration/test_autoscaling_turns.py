"""Tests of the autoscaler on real PostgreSQL: turns, and the rows of jobs."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone

from scheduling.autoscaling import tasks_turn, turns
from scheduling.autoscaling.rows import rows_repair
from scheduling.autoscaling.rules.horizontal_rules import ScaleDecision, ScaleState
from scheduling.autoscaling.turns import autoscale
from scheduling.jobs import updates
from scheduling.jobs.submit_and_kill import job_kill
from scheduling.journal.sql import query
from scheduling.models import CellAutoscaling, Job, JobAutoscaling, JobSpec
from tests.integration import world
from tests.integration.autoscaling_world import HORIZONTAL, VERTICAL, a_file, again, loaded, submitter, turn, values

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def submit(cell, ann, machine):
    return submitter(cell, ann, machine)


def test_a_cell_without_rules_is_left_alone(cell, ann) -> None:
    world.submit(ann, cell, world.a_file())
    assert not autoscale(cell.id).live
    assert not CellAutoscaling.objects.exists()


def test_one_job_with_wrong_rules_does_not_stop_the_others(submit, cell, ann) -> None:
    job = submit(HORIZONTAL)
    other = world.submit(ann, cell, a_file(HORIZONTAL, name="other"))
    turn(job)
    wrong = {"horizontal": HORIZONTAL["horizontal"] | {"later": 1}}  # a newer version of the software has this field
    JobSpec.objects.filter(job=other).update(spec=updates.spec_of(again(other)).to_json() | {"autoscale": wrong})
    JobAutoscaling.objects.filter(job=other).update(version=0)
    loaded(job, 900)
    assert turn(job) == 1
    JobSpec.objects.filter(job=other).update(spec=world.read(cell, a_file(HORIZONTAL, name="other")).to_json())
    zone = {"schedule": [{"at": "@daily", "tasks": 2, "time_zone": "Mars/Phobos"}]}
    rules = {"horizontal": HORIZONTAL["horizontal"] | zone}
    JobAutoscaling.objects.filter(job=other).update(rules=rules, horizontal="auto", version=1, schedule_at=None)
    JobAutoscaling.objects.filter(job=job).update(wanted_tasks=None)
    turn(job)
    assert JobAutoscaling.objects.get(job=job).wanted_tasks is not None


def test_the_lag_grows_while_turns_fail(submit, cell, monkeypatch) -> None:
    job = submit(HORIZONTAL)
    turn(job)
    CellAutoscaling.objects.update(finished_at=timezone.now() - dt.timedelta(hours=1))
    Job.objects.update(created_at=timezone.now() - dt.timedelta(hours=2))

    def fails(cell_id: int, now: dt.datetime) -> list[object]:
        raise RuntimeError("wrong")

    monkeypatch.setattr(turns, "tasks_recommend", fails)
    turn(job)
    assert turns.lag_s()[cell.id] > 3000
    monkeypatch.undo()
    turn(job)
    assert turns.lag_s()[cell.id] < 3000


def test_a_turn_that_another_process_has_claimed_is_not_taken(submit, cell) -> None:
    job = submit(HORIZONTAL)
    turn(job)
    soon = timezone.now() + dt.timedelta(seconds=30)
    CellAutoscaling.objects.update(turned_at=timezone.now() - dt.timedelta(minutes=1), claimed_until=soon)
    assert not autoscale(cell.id).taken
    CellAutoscaling.objects.update(claimed_until=timezone.now() - dt.timedelta(seconds=1))
    assert autoscale(cell.id).taken


def test_the_row_follows_a_new_version_before_the_job_is_scaled(submit, ann, cell) -> None:
    job = submit(HORIZONTAL)
    turn(job)
    loaded(job, 900)
    JobSpec.objects.filter(job=job).update(actor="someone")
    Job.objects.filter(pk=job.pk).update(spec_version=1)
    JobAutoscaling.objects.filter(job=job).update(version=1)
    file = a_file(HORIZONTAL, labels={"a": "b"})
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, file))
    assert turn(job) == 1, "the row follows the new version first"
    assert values(job)[0] == 6
    assert updates.spec_of(Job.objects.select_related("cell").get(pk=job.pk)).labels == {"a": "b"}


def test_a_turn_writes_nothing_over_a_newer_version(submit) -> None:
    job = submit(HORIZONTAL)
    turn(job)
    row = tasks_turn._Row(*query(tasks_turn._ROWS, [job.cell_id])[0])
    decision = ScaleDecision(6, 3, ScaleState(needed=5.0, needed_at=timezone.now().timestamp()))
    row.version -= 1
    tasks_turn._store([(row, decision, False)])
    assert JobAutoscaling.objects.get(job=job).wanted_tasks == 3
    row.version += 1
    tasks_turn._store([(row, decision, False)])
    assert JobAutoscaling.objects.get(job=job).wanted_tasks == 6


def test_missing_rows_are_created_and_those_of_ended_jobs_deleted(submit, cell, ann) -> None:
    job, other = submit(VERTICAL), world.submit(ann, cell, a_file(HORIZONTAL, name="other"))
    JobAutoscaling.objects.filter(job=job).delete()
    job_kill(principal=ann, job=other)
    assert rows_repair(cell.id) == 1
    assert list(JobAutoscaling.objects.values_list("job_id", flat=True)) == [job.id]


def test_rules_that_are_removed_end_the_scaling(submit, ann, cell) -> None:
    job = submit(VERTICAL)
    turn(job)
    file = a_file({})
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, file))
    turn(job)
    assert not JobAutoscaling.objects.exists()


def test_a_turn_is_taken_once_in_its_period(submit, cell) -> None:
    submit(VERTICAL)
    assert autoscale(cell.id).taken
    assert not autoscale(cell.id).taken
