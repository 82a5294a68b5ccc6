"""Notifies tenants of jobs that have failed and of updates that have stopped. It follows the journal of each cell.

A row of `JobNoticeReader` stores the revision up to which the journal was read. It changes in the transaction that
writes the notices, so no event is missed and no event leads to two notices, even if a process is killed or two
processes run at once. Times would not do: an event is committed after its time.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import Q

from quota import records
from quota.vocabulary.permissions import system
from scheduling.jobs.notices.reasons import failed_reasons
from scheduling.jobs.notices.sending import notices_write
from scheduling.journal import journal
from scheduling.models import Cell, Event, Job, JobNoticeReader, Update

# Revisions of one transaction at most.
_AT_ONCE = 20_000
_FAILED = Q(kind="job.ended", data__how="failed")
_STOPPED = Q(kind="update.ended", data__how=Update.STOPPED)


def events_notify(cell: Cell, *, at_once: int = _AT_ONCE) -> int:
    """Notify tenants of the new events of a cell. Return the number of jobs in these notices.

    Locks the cell's row of `JobNoticeReader`. Does nothing if another process has locked it.
    """
    JobNoticeReader.objects.get_or_create(cell=cell)
    named, more = 0, True
    while more:
        number, more = _notify_part(cell, at_once)
        named += number
    return named


def _notify_part(cell: Cell, at_once: int) -> tuple[int, bool]:
    """Notify of the events of the next revisions. Return the number of jobs in the notices, and whether revisions are
    left.
    """
    with transaction.atomic():
        own = JobNoticeReader.objects.select_for_update(skip_locked=True).filter(cell=cell).first()
        newest = journal.newest(cell.id)
        if own is None or own.revision == newest:
            return 0, False
        until = min(newest, own.revision + at_once)
        found = Event.objects.filter(_FAILED | _STOPPED, cell_id=cell.id, revision__gt=own.revision)
        rows = list(found.filter(revision__lte=until).order_by("revision", "seq").values_list("kind", "job_id", "data"))
        own.revision = until  # after a restore of the database, this may be a lower one
        own.save(update_fields=["revision"])
        return _write(rows), until < newest


def _write(rows: list[tuple[str, int, dict[str, Any]]]) -> int:
    """Write the notices about these events of a cell: (kind, job id, data). Return the number of jobs in them.

    Jobs whose rows are already in the archive are left out.
    """
    jobs = Job.objects.select_related("cell", "tenant").in_bulk([job_id for _, job_id, _ in rows]) if rows else {}
    failed = [jobs[job_id] for kind, job_id, _ in rows if kind == "job.ended" and job_id in jobs]
    # Of several updates of a job, the newest one.
    stopped = {job_id: data for kind, job_id, data in rows if kind == "update.ended" and job_id in jobs}
    if not failed and not stopped:
        return 0
    updates = Update.objects.in_bulk([data["update_id"] for data in stopped.values()])
    why = {job_id: _stop_reason(jobs[job_id], updates.get(data["update_id"]), data) for job_id, data in stopped.items()}
    with records.write(system("job-notices")) as entry:
        notices_write(entry, "job.failed", failed, failed_reasons)
        notices_write(entry, "job.update-stopped", [jobs[job_id] for job_id in stopped], lambda named: why)
    return len(failed) + len(stopped)


def _stop_reason(job: Job, update: Update | None, data: dict[str, Any]) -> str:
    if update is None:  # its row is already in the archive
        return f"The update stopped: {data['detail']}."
    if update.restarts:
        return f"The restart stopped: {data['detail']}."
    sentence = f"The update to version {update.to_version} stopped: {data['detail']}."
    undoes = update.from_version > 0  # otherwise it created the tasks of a new job
    return f"{sentence} `borgctl undo {job.name}` returns to the version before." if undoes else sentence
