"""Sentences for notices: why jobs crash, are pending, are near their deadline, or have failed.

Each function makes a fixed number of queries for any number of jobs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence

from django.utils import timezone

from quota.vocabulary.resources import CPU, RAM, describe
from scheduling.core.explaining.health_wording import format_troubles
from scheduling.core.explaining.wording import format_expected_start, format_why
from scheduling.jobs.health import HealthOfJob, first_crashing_tasks
from scheduling.jobs.why import crash_sentences
from scheduling.journal.sql import query
from scheduling.models import Job, JobAutoscaling, PendingVerdict
from scheduling.tasks import pending_verdicts

# Largest number of classes of pending tasks of one job that are explained.
_MOST_CLASSES = 2
_FIRST_FAILED = """
SELECT DISTINCT ON (job_id) job_id, "index", detail, count(*) OVER (PARTITION BY job_id)
FROM scheduling_task WHERE job_id = ANY(%s) AND state = 'dead' AND outcome = 'failed'
ORDER BY job_id, since, "index" """


def crash_reasons(jobs: Sequence[Job], health: Mapping[int, HealthOfJob]) -> dict[int, str]:
    """Return how many tasks of each job are in which kind of trouble, and the end of the first crashing task. Makes at
    most two queries.
    """
    crashing = first_crashing_tasks(jobs)
    found = {}
    for job in jobs:
        sentences = format_troubles(health[job.id].troubles, living=job.tasks_total - job.tasks_dead)
        if job.id in crashing:
            sentences += crash_sentences([crashing[job.id]])
        found[job.id] = " ".join(sentences)
    return found


def pending_reasons(jobs: Sequence[Job], since: Mapping[int, dt.datetime]) -> dict[int, str]:
    """Return since when a task of each job has been pending, why, and when the next one is likely to start. Makes one
    query. `since`: by job id.

    The sentences are those of the stored verdicts, without the names of other tenants.
    """
    verdicts = dict(PendingVerdict.objects.filter(job__in=jobs).values_list("job_id", "whys"))
    found = {}
    for job in jobs:
        sentences = [f"A task has been pending since {_moment(since[job.id])}."]
        for why in pending_verdicts.read(verdicts.get(job.id, []))[:_MOST_CLASSES]:
            text = format_why(why, job_id=job.id, extra=tuple(job.cell.extra_resources))
            sentences += [text.head, format_expected_start(why)]
        if len(sentences) == 1:
            number = job.tasks_pending
            sentences.append(f"{number} {'task waits' if number == 1 else 'tasks wait'} for a pass of the scheduler.")
        found[job.id] = " ".join(sentence for sentence in sentences if sentence)
    return found


def deadline_reasons(jobs: Sequence[Job], now: dt.datetime) -> dict[int, str]:
    """Return the deadline of each job, and how many of its tasks have not ended. Makes no query."""
    found = {}
    for job in jobs:
        if job.deadline_at is None:  # an update has just removed it
            continue
        minutes = max(1, round((job.deadline_at - now).total_seconds() / 60))
        living = job.tasks_total - job.tasks_dead
        waiting = f" (pending: {job.tasks_pending})" if job.tasks_pending else ""
        found[job.id] = (
            f"The deadline is {_moment(job.deadline_at)}, in about {minutes} min."
            f" {living} of {job.tasks_total} tasks {'has' if living == 1 else 'have'} not ended{waiting}."
        )
    return found


def recommendation_reasons(jobs: Sequence[Job]) -> dict[int, str]:
    """Return the limits that the autoscaler recommends for the tasks of each job. Makes one query."""
    rows = JobAutoscaling.objects.filter(job__in=jobs, wanted_since__isnull=False)
    return {row.job_id: f"A task needs {_limits(row.wanted_cpu, row.wanted_ram, row)}." for row in rows}


def _limits(cpu: int | None, ram: int | None, row: JobAutoscaling) -> str:
    parts = [
        f"{describe(index, wanted)} of {name} instead of {describe(index, now)}"
        for index, name, wanted, now in ((CPU, "CPU", cpu, row.cpu), (RAM, "RAM", ram, row.ram))
        if wanted is not None and wanted != now
    ]
    return " and ".join(parts) or "other limits"


def limited_reasons(jobs: Sequence[Job]) -> dict[int, str]:
    """Return why the last changes of each job by the autoscaler were rejected. Makes one query."""
    rows = JobAutoscaling.objects.filter(job__in=jobs).exclude(limited_detail="", tasks_limited_detail="")
    found = {}
    for row in rows:
        details = dict.fromkeys(one.rstrip(".") for one in (row.tasks_limited_detail, row.limited_detail) if one)
        found[row.job_id] = " ".join(f"The change was rejected: {one}." for one in details)
    return found


def failed_reasons(jobs: Sequence[Job]) -> dict[int, str]:
    """Return how many tasks of each ended job failed, and why the first of them failed. Makes one query."""
    first = {job_id: found for job_id, *found in query(_FIRST_FAILED, [[job.id for job in jobs]])}
    reasons = {}
    for job in jobs:
        if job.id not in first:  # the rows of the job's tasks are archived
            continue
        index, detail, failed = first[job.id]
        why = detail.rstrip(".") or "no reason is recorded"
        reasons[job.id] = f"{failed} of {job.tasks_total} tasks failed. The first was task {index}: {why}."
    return reasons


def _moment(time: dt.datetime) -> str:
    return f"{timezone.localtime(time):%Y-%m-%d %H:%M %Z}"
