"""Notifications about jobs that are failing, and about their recovery.

The tenant is notified when a job has been failing for `PATIENCE_S` seconds. It is notified about the same job again
only after the job was healthy. A row of `FailingJob` stores since when a job is failing.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from quota import records
from quota.notifications.notices import notify
from quota.vocabulary.permissions import system
from scheduling.core.vocabulary.job_health import JobHealth
from scheduling.core.vocabulary.states import JobState
from scheduling.jobs.health import with_health
from scheduling.models import FailingJob, Job, Task

PATIENCE_S = 120.0
# Number of jobs that are examined at once.
_AT_ONCE = 1000
_MOST_NAMED = 10


def failing_jobs_watch(*, now: dt.datetime) -> int:
    """Update the rows of `FailingJob`, and notify tenants. Return the number of jobs in these notifications.

    Only jobs without a task that is up, jobs with restarted tasks, and jobs that were already failing are examined.
    Idempotent. Locks: the rows of `FailingJob`, in the order of the job ids.
    """
    restarted = Task.objects.filter(job=OuterRef("pk"), restarts__gt=1)
    known = set(FailingJob.objects.values_list("job_id", flat=True))
    live = Job.objects.filter(cell__study_of__isnull=True).exclude(state=JobState.DEAD.value)
    suspects = live.filter(Q(tasks_up=0) | Exists(restarted) | Q(pk__in=known)).order_by("id")
    states: dict[int, JobHealth] = {}
    ids = list(suspects.values_list("id", flat=True))
    for first in range(0, len(ids), _AT_ONCE):
        part = with_health(live.filter(pk__in=ids[first : first + _AT_ONCE]))
        states |= {job.id: job.health.state for job in part}  # type: ignore[attr-defined]
    failing = {job_id for job_id, state in states.items() if state is JobHealth.FAILING}
    FailingJob.objects.bulk_create(
        [FailingJob(job_id=job_id, since=now) for job_id in sorted(failing - known)], ignore_conflicts=True
    )
    return _settle(states, failing, now)


def _settle(states: dict[int, JobHealth], failing: set[int], now: dt.datetime) -> int:
    due, recovered, over = [], [], []
    with transaction.atomic():
        rows = FailingJob.objects.select_for_update(of=("self",)).select_related("job__cell", "job__tenant")
        for row in rows.order_by("job_id"):
            state = states.get(row.job_id, JobHealth.ENDED)
            if row.job_id in failing:
                if row.told_at is None and (now - row.since).total_seconds() >= PATIENCE_S:
                    due.append(row)
            elif row.told_at is None or state is JobHealth.ENDED:
                over.append(row)
            elif state is JobHealth.HEALTHY:
                recovered.append(row)
        FailingJob.objects.filter(pk__in=[row.pk for row in due]).update(told_at=now)
        FailingJob.objects.filter(pk__in=[row.pk for row in (*recovered, *over)]).delete()
        with records.write(system("job-health")) as entry:
            _notify(entry, due, "job.failing", "failing", "warning")
            _notify(entry, recovered, "job.recovered", "healthy again", "info")
    return len(due) + len(recovered)


def _notify(entry: records.RecordEntry, rows: Iterable[FailingJob], kind: str, how: str, level: str) -> None:
    """Send one notification per tenant and cell about the jobs in `rows`. `how`: the words for the new health of the
    jobs.
    """
    by_place: dict[tuple[int, int], list[Job]] = defaultdict(list)
    for row in rows:
        by_place[row.job.tenant_id, row.job.cell_id].append(row.job)
    for jobs in by_place.values():
        tenant, cell = jobs[0].tenant, jobs[0].cell.name
        names = [job.name for job in jobs]
        detail = ", ".join(names[:_MOST_NAMED])
        if len(names) > _MOST_NAMED:
            detail += f", and {len(names) - _MOST_NAMED} more"
        if len(jobs) == 1:
            subject, url = (f"Job {names[0]} in cell {cell} is {how}", f"/jobs/{cell}/{tenant.name}/{names[0]}/")
        else:
            subject, url = (f"{len(jobs)} jobs in cell {cell} are {how}", f"/jobs/?tenant={tenant.name}&cell={cell}")
        text = (
            f"No task of these jobs has been up for {PATIENCE_S / 60:.0f} minutes, and tasks crash or are unhealthy:"
            f" {detail}. Run `borgctl why JOB` for the reasons."
            if kind == "job.failing"
            else f"All live tasks of these jobs are up: {detail}."
        )
        notify(entry, tenant, kind, subject, text, url=url, level=level, cell=cell, jobs=names, health=how)
