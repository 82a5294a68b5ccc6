"""Tests of the autoscaler on real PostgreSQL: one job, tenant or process does not keep others from being scaled."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import DatabaseError
from django.utils import timezone

from scheduling.autoscaling import rows as autoscaling_rows
from scheduling.autoscaling import turns
from scheduling.autoscaling.turns import autoscale
from scheduling.jobs import updates
from scheduling.models import CellAutoscaling, JobAutoscaling, JobSpec
from tests.integration import rows, world
from tests.integration.autoscaling_world import (
    HORIZONTAL,
    VERTICAL,
    a_file,
    again,
    loaded,
    submitter,
    turn,
    used,
    values,
)

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def submit(cell, ann, machine):
    return submitter(cell, ann, machine)


def test_a_short_half_life_and_old_usage_stop_nothing(submit) -> None:
    job = submit({"vertical": VERTICAL["vertical"] | {"half_life_s": 60}})
    used(job, hours=20)
    assert turn(job) == 1, "exp(-ln 2 * 72,000 s / 60 s) is too small for PostgreSQL"
    assert values(job)[1] == 500


LATER = {"horizontal": HORIZONTAL["horizontal"] | {"later": 1}}  # a newer version of the software has this field
LATER_LIMITS = {"vertical": VERTICAL["vertical"] | {"max": {"ram": "half of a machine"}}}


@pytest.mark.parametrize(("rules", "modes"), [(LATER, ("", "auto")), (LATER_LIMITS, ("auto", ""))])
def test_rules_that_a_newer_process_has_read_stop_no_other_job(submit, cell, ann, rules, modes) -> None:
    job, other = submit(HORIZONTAL), world.submit(ann, cell, a_file(HORIZONTAL, name="other"))
    third = submitter(cell, ann, rows.a_machine(cell, "m2"))(VERTICAL, name="third")
    turn(job)
    vertical, horizontal = modes
    JobAutoscaling.objects.filter(job=other).update(rules=rules, vertical=vertical, horizontal=horizontal)
    loaded(job, 900)
    used(third)
    JobAutoscaling.objects.filter(job=third).update(decayed_at=None)
    assert turn(job) == 2
    assert (values(job)[0], values(third)[1]) == (6, 500)


def test_rules_that_a_process_cannot_read_are_left_to_a_newer_one(submit, cell, ann, monkeypatch) -> None:
    job, other = submit(HORIZONTAL), world.submit(ann, cell, a_file(HORIZONTAL, name="other"))
    turn(job)
    stored = updates.spec_of(again(job)).to_json()
    JobSpec.objects.filter(job=job).update(spec=stored | {"autoscale": LATER})
    JobAutoscaling.objects.update(version=0)
    monkeypatch.setattr(autoscaling_rows, "AT_ONCE", 1)
    loaded(job, 900)
    assert turn(job) == 0
    versions = dict(JobAutoscaling.objects.values_list("job_id", "version"))
    assert versions == {job.id: 0, other.id: 1}, "the unreadable row is left, and those after it are read"
    JobSpec.objects.filter(job=job).update(spec=stored)  # a newer process can read it
    assert turn(job) == 1
    assert values(job)[0] == 6


def test_an_error_of_the_database_with_limits_does_not_stop_numbers_of_tasks(submit, cell, monkeypatch) -> None:
    job = submit(HORIZONTAL)
    loaded(job, 900)

    def fails(cell_id: int, now: dt.datetime) -> list[object]:
        raise DatabaseError("value out of range: underflow")

    monkeypatch.setattr(turns, "limits_recommend", fails)
    with pytest.raises(DatabaseError):
        autoscale(cell.id)
    assert values(job)[0] == 6
    assert CellAutoscaling.objects.get(cell=cell).claimed_until is None, "the next turn does not wait"


def test_a_turn_that_lasted_too_long_keeps_the_claim_of_the_next_process(submit, cell, monkeypatch) -> None:
    job = submit(HORIZONTAL)
    turn(job)
    soon = timezone.now() + dt.timedelta(seconds=30)

    def slow(cell_id: int, now: dt.datetime) -> list[object]:
        CellAutoscaling.objects.update(turned_at=timezone.now(), claimed_until=soon)  # by another process
        return []

    monkeypatch.setattr(turns, "tasks_recommend", slow)
    turn(job)
    assert CellAutoscaling.objects.get(cell=cell).claimed_until == soon
