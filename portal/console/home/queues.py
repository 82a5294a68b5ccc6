"""Reads the pending tasks of cells for the first page of the console, with the oldest job of each priority and the
sentence that says why its tasks are pending.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from django.urls import reverse

from portal.sigma.jobs.why import WORDS
from scheduling.core.explaining.wording import format_why
from scheduling.master.queue_health import PendingQueue, queues
from scheduling.models import Job, PendingVerdict
from scheduling.tasks import pending_verdicts
from scheduling.tasks.placement_records import hostnames

# The most priorities that the page lists.
MOST = 12


@dataclass(frozen=True, slots=True)
class QueueRow:
    """The pending tasks of one priority of a cell. `cell`: its name. `job`, `link`: the oldest job, as `tenant/name`,
    and the address of its page. `why`: why its tasks are pending; "" if no pass has examined them yet.
    """

    cell: str
    band: str
    priority: int
    tasks: int
    since: dt.datetime
    oldest_s: float
    job: str
    link: str
    why: str


def read_queues(cell_ids: Collection[int]) -> list[PendingQueue]:
    """Return the pending tasks of these cells per priority, highest first. Makes one query."""
    only = next(iter(cell_ids)) if len(cell_ids) == 1 else None
    found = [one for one in queues(only) if one.cell_id in cell_ids]
    return sorted(found, key=lambda one: (-one.priority, one.since))


def queue_rows(found: Sequence[PendingQueue]) -> list[QueueRow]:
    """Return the first `MOST` of these queues with their oldest jobs. Makes three queries, whatever there is."""
    shown = found[:MOST]
    jobs = Job.objects.select_related("cell", "tenant").in_bulk([one.oldest_job for one in shown])
    stored = dict(PendingVerdict.objects.filter(job__in=jobs).values_list("job_id", "whys"))
    # A job can have tasks of several kinds. The first explanation is that of its most tasks.
    whys = {job_id: read[0] for job_id, one in stored.items() if (read := pending_verdicts.read(one))}
    names = hostnames(why.nearest.machine_id for why in whys.values() if why.nearest is not None)
    rows = []
    for one in shown:
        job = jobs.get(one.oldest_job)
        if job is None:
            continue  # it has ended since the first query
        extra = tuple(job.cell.extra_resources)
        why = whys.get(job.id)
        text = format_why(why, job_id=job.id, extra=extra, hostnames=names, words=WORDS).head if why else ""
        link = reverse("sigma:job", args=[job.cell.name, job.tenant.name, job.name])
        rows.append(
            QueueRow(
                job.cell.name,
                one.band,
                one.priority,
                one.tasks,
                one.since,
                one.oldest_s,
                f"{job.tenant.name}/{job.name}",
                f"{link}?uid={job.uid}",
                text,
            )
        )
    return rows
