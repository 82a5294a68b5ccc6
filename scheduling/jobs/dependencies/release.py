"""Releases waiting jobs: their tasks may be placed from now on. The release is an event of the journal."""

from __future__ import annotations

from collections.abc import Collection

from scheduling.core.vocabulary import events
from scheduling.journal.journal import JournalEntry
from scheduling.journal.sql import query
from scheduling.models import Job

_WITHOUT_OPEN = """
    SELECT j.id FROM scheduling_job AS j WHERE j.id = ANY(%s) AND j.waiting AND j.ended_at IS NULL
    AND NOT EXISTS (SELECT FROM scheduling_jobdependency AS d WHERE d.job_id = j.id AND d.open)
    ORDER BY j.id"""


def jobs_release(entry: JournalEntry, job_ids: Collection[int]) -> int:
    """Release those of the jobs that wait and have no open dependency. Return their number. The caller has locked the
    cell's row.
    """
    ids = [job_id for (job_id,) in query(_WITHOUT_OPEN, [list(job_ids)])] if job_ids else []
    if ids:
        Job.objects.filter(pk__in=ids).update(waiting=False, may_start_since=entry.time)
        entry.extend(events.JobReleased(job_id=job_id) for job_id in ids)
    return len(ids)
