"""Checks of the times of a job (`start_after`, `deadline_s`) against the present, at its submission and at an update.

`scheduling.spec.parser` has checked before that the values themselves are valid.
"""

from __future__ import annotations

import datetime as dt

from quota.vocabulary.errors import Rejected, invalid
from scheduling.spec.field_errors import MAX_DURATION_S
from scheduling.spec.job_spec import JobSpecification


def deadline_of(job_spec: JobSpecification, *, submitted_at: dt.datetime) -> dt.datetime | None:
    """Return the time at which a job must have ended, or None if it has no deadline."""
    seconds = job_spec.deadline_s
    return None if seconds is None else submitted_at + dt.timedelta(seconds=seconds)


def times_refusal(
    job_spec: JobSpecification,
    *,
    submitted_at: dt.datetime,
    now: dt.datetime,
    before: tuple[dt.datetime | None, dt.datetime | None] = (None, None),
    started: bool = False,
) -> Rejected | None:
    """Return why a job cannot have its times, or None if it can have them. `before`: the time of its start and its
    deadline so far, for an update. A time that does not change may have passed. `started`: whether tasks of the job may
    have run already. Such a job cannot start later, because its tasks would not run again before that time after an
    eviction.
    """
    start, deadline = job_spec.starts_at, deadline_of(job_spec, submitted_at=submitted_at)
    if started and start is not None and start > now:
        return _invalid("start_after", "the job has already started; remove this field, or submit another job")
    if start is not None and start != before[0]:
        if start <= now:
            detail = f"{job_spec.start_after} has passed; give a later time, or remove this field to start at once"
            return _invalid("start_after", detail)
        if start > now + dt.timedelta(seconds=MAX_DURATION_S):
            days = MAX_DURATION_S // 86_400
            return _invalid("start_after", f"{job_spec.start_after} is too late; give a time within {days} days")
    if deadline is None:
        return None
    if start is not None and deadline <= start:
        wait_s = int((start - submitted_at).total_seconds())
        detail = (
            f"the job would have to end before it starts, {wait_s} s after its submission (start_after); give a larger"
            " number"
        )
        return _invalid("deadline_s", detail)
    if deadline != before[1] and deadline <= now:
        age_s = int((now - submitted_at).total_seconds())
        detail = (
            f"the deadline counts from the submission of the job, {age_s} s ago, so it has already passed; give a"
            " larger number, or kill the job"
        )
        return _invalid("deadline_s", detail)
    return None


def _invalid(field: str, detail: str) -> Rejected:
    return invalid(field, detail, "invalid-spec")
