"""Tests of the autoscaler on real PostgreSQL: one job, tenant or process does not keep others from being scaled."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import DatabaseError
from django.utils import timezone

from scheduling.autoscaling import turns
from scheduling.autoscaling.turns import autoscale
from scheduling.models import CellAutoscaling
from tests.integration.autoscaling_world import HORIZONTAL, VERTICAL, loaded, submitter, turn, used, values

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def submit(cell, ann, machine):
    return submitter(cell, ann, machine)


def test_a_short_half_life_and_old_usage_stop_nothing(submit) -> None:
    job = submit({"vertical": VERTICAL["vertical"] | {"half_life_s": 60}})
    used(job, hours=20)
    assert turn(job) == 1, "exp(-ln 2 * 72,000 s / 60 s) is too small for PostgreSQL"
    assert values(job)[1] == 500


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
