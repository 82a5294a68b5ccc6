"""Tests of the times of a job against the present: at a submission, and at an update of a job that runs."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from scheduling.jobs.job_times import times_refusal
from scheduling.spec.parser import parse

NOW = dt.datetime(2026, 12, 1, tzinfo=dt.UTC)
EARLIER, LATER = NOW - dt.timedelta(hours=1), NOW + dt.timedelta(hours=1)


def refused(
    *, start: dt.datetime | None = None, deadline_s: float | None = None, age_s: float = 0.0, **others: Any
) -> dict[str, str]:
    """Return the problems of a job that was submitted `age_s` seconds ago, by field."""
    file: dict[str, Any] = {"name": "web", "task": {"command": ["serve"]}, "deadline_s": deadline_s}
    spec = parse(file | ({"start_after": start.isoformat()} if start else {}))
    problem = times_refusal(spec, submitted_at=NOW - dt.timedelta(seconds=age_s), now=NOW, **others)
    return dict(problem.fields) if problem is not None else {}


@pytest.mark.parametrize(
    ("times", "field", "message"),
    [
        ({"start": NOW}, "start_after", "2026-12-01T00:00:00Z has passed; give a later time, or remove this field"),
        ({"start": NOW + dt.timedelta(days=400)}, "start_after", "is too late; give a time within 366 days"),
        ({"start": LATER, "deadline_s": 3600}, "deadline_s", "would have to end before it starts, 3600 s after its"),
        ({"deadline_s": 60, "age_s": 61}, "deadline_s", "61 s ago, so it has already passed; give a larger number"),
    ],
)
def test_times_that_cannot_be_are_rejected_with_a_cure(times: dict[str, Any], field: str, message: str) -> None:
    problems = refused(**times)
    assert list(problems) == [field]
    assert message in problems[field]


def test_times_that_can_be_are_accepted() -> None:
    assert refused() == refused(start=LATER) == refused(deadline_s=60) == refused(start=LATER, deadline_s=3601) == {}


def test_an_update_may_keep_times_that_have_passed() -> None:
    """Update a job that started an hour ago and whose deadline has just passed. Other fields may change."""
    kept = {"start": EARLIER, "deadline_s": 7200, "age_s": 7200}
    assert refused(**kept, before=(EARLIER, NOW)) == {}
    assert list(refused(**kept, before=(None, NOW))) == ["start_after"]
    assert list(refused(**kept, before=(EARLIER, None))) == ["deadline_s"]


def test_a_job_that_has_started_cannot_start_later() -> None:
    problems = refused(start=LATER, before=(None, None), started=True)
    assert problems == {"start_after": "the job has already started; remove this field, or submit another job"}
    assert refused(start=EARLIER, before=(EARLIER, None), started=True) == {}
