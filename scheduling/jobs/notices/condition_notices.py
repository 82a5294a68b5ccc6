"""Notifies tenants of conditions of their jobs, and of their recovery. Rows of `JobCondition` store which conditions
are known, and of which the tenants were notified.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from django.db import transaction

from quota import records
from quota.vocabulary.permissions import system
from scheduling.core.vocabulary.job_health import Condition
from scheduling.jobs.notices import reasons
from scheduling.jobs.notices.condition_rules import ConditionKey, Decision, KnownCondition, decide
from scheduling.jobs.notices.present_conditions import Examined, present_conditions
from scheduling.jobs.notices.sending import Reasons, no_reasons, notices_write
from scheduling.models import Job, JobCondition


def conditions_notify(*, now: dt.datetime) -> int:
    """Update the rows of `JobCondition`, and notify tenants. Return the number of jobs in these notices.

    One transaction contains the changed rows and the notices, so a process that is killed notifies later, and once.
    Locks: the changed rows, in the order of the job ids.
    """
    known = {
        _key(row): KnownCondition(row.since, row.told_at is not None) for row in JobCondition.objects.order_by("job_id")
    }
    examined = present_conditions(known, now=now)
    decision = decide(known, examined.conditions, now=now)
    if not decision:
        return 0
    with transaction.atomic():
        return _apply(decision, examined, now)


def _key(row: JobCondition) -> ConditionKey:
    return ConditionKey(row.job_id, Condition(row.condition))


def _apply(decision: Decision, examined: Examined, now: dt.datetime) -> int:
    """Write a decision. What another process has written since the rows were read is left out."""
    since = examined.conditions.since
    JobCondition.objects.bulk_create(
        [JobCondition(job_id=key.job_id, condition=key.condition.value, since=since[key]) for key in decision.new],
        ignore_conflicts=True,
    )
    changed = {key.job_id for key in (*decision.due, *decision.over)}
    rows = JobCondition.objects.select_for_update().filter(job_id__in=changed).order_by("job_id", "condition")
    locked = {_key(row): row for row in rows}
    due = [key for key in decision.due if key in locked and locked[key].told_at is None]
    over = [key for key in decision.over if key in locked]
    JobCondition.objects.filter(pk__in=[locked[key].pk for key in due]).update(told_at=now)
    JobCondition.objects.filter(pk__in=[locked[key].pk for key in over]).delete()
    recovered = {key.job_id for key in decision.recovered if key in locked}
    jobs = _jobs({key.job_id for key in due} | recovered)
    begun = {condition: _begun(due, locked, condition) for condition in Condition}
    reasons_of: dict[Condition, Reasons] = {
        Condition.FAILING: lambda named: reasons.crash_reasons(named, examined.health),
        Condition.CRASH_LOOPING: lambda named: reasons.crash_reasons(named, examined.health),
        Condition.PENDING: lambda named: reasons.pending_reasons(named, begun[Condition.PENDING]),
        Condition.DEADLINE_AT_RISK: lambda named: reasons.deadline_reasons(named, now),
        Condition.RECOMMENDATION: reasons.recommendation_reasons,
        Condition.SCALING_LIMITED: reasons.limited_reasons,
    }
    with records.write(system("job-notices")) as entry:
        for condition in Condition:
            about = [jobs[job_id] for job_id in begun[condition]]
            notices_write(entry, f"job.{condition}", about, reasons_of[condition])
        notices_write(entry, "job.recovered", [jobs[job_id] for job_id in sorted(recovered)], no_reasons)
    return len(due) + len(recovered)


def _begun(
    due: Iterable[ConditionKey], locked: dict[ConditionKey, JobCondition], condition: Condition
) -> dict[int, dt.datetime]:
    return {key.job_id: locked[key].since for key in due if key.condition is condition}


def _jobs(job_ids: Iterable[int]) -> dict[int, Job]:
    return Job.objects.select_related("cell", "tenant").in_bulk(list(job_ids))
