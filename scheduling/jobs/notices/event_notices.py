"""Notifies tenants of jobs that have failed, of updates that stopped or were rolled back, of missed runs of cron
jobs, and of failed workflows. It follows the journal of each cell.

A row of `JobNoticeReader` stores the revision up to which the journal was read. It changes in the transaction that
writes the notices, so no event is missed and no event leads to two notices, even if a process is killed or two
processes run at once. Times would not do: an event is committed after its time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from django.db import transaction

from quota import records
from quota.vocabulary.permissions import system
from scheduling.jobs.notices.reasons import failed_reasons
from scheduling.jobs.notices.sending import named_notices_write, notices_write
from scheduling.jobs.rollouts.rollout import KEPT
from scheduling.journal import journal
from scheduling.journal.sql import query
from scheduling.models import Cell, Job, JobNoticeReader, Update

# Revisions of one transaction at most.
_AT_ONCE = 20_000
_EVENTS = """
SELECT kind, job_id, data->>'how', (data->>'update_id')::bigint, data->>'detail', data->>'tenant', data->>'name',
  data->>'code', (data->>'cron_id')::bigint, (data->>'due_at')::float8
FROM scheduling_event
WHERE cell_id = %s AND revision > %s AND revision <= %s
  AND (kind = 'job.ended' AND data->>'how' = 'failed'
    OR kind = 'update.ended' AND data->>'how' IN ('stopped', 'rolled-back')
    OR kind = 'cron.skipped' AND data->>'outcome' IN ('missed', 'rejected')
    OR kind = 'workflow.ended' AND data->>'how' = 'failed')
ORDER BY revision, seq"""


class _Stop(NamedTuple):
    """The event that an update has stopped or was rolled back (`how`). `detail`: the reason."""

    how: str
    update_id: int
    detail: str


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
        rows = query(_EVENTS, [cell.id, own.revision, until])
        own.revision = until  # after a restore of the database, this may be a lower one
        own.save(update_fields=["revision"])
        return _write(cell, rows), until < newest


def _write(cell: Cell, rows: Sequence[tuple[Any, ...]]) -> int:
    """Write the notices about events of a cell, the rows of `_EVENTS`. Return the number of jobs in the notices.

    Jobs whose rows are already in the archive are left out, and so are failed jobs of workflows, which may be retried.
    A cron job or workflow is named once, with its newest reason.
    """
    missed = _first_missed([row for row in rows if row[0] == "cron.skipped"])
    workflows = {(row[5], row[6]): row[4] for row in rows if row[0] == "workflow.ended"}
    rows = [row[:5] for row in rows]
    ended = [job_id for kind, job_id, *_ in rows if kind == "job.ended"]
    # Of several updates of a job, the newest one.
    stops = {job_id: _Stop(*stop) for kind, job_id, *stop in rows if kind == "update.ended"}
    if not ended and not stops and not missed and not workflows:
        return 0
    repeated = _repeated_stops([stop.update_id for stop in stops.values()])
    stops = {job_id: stop for job_id, stop in stops.items() if stop.update_id not in repeated}
    jobs = Job.objects.select_related("cell", "tenant").in_bulk([*ended, *stops])
    of_workflows = _of_workflows(ended)
    ended = [job_id for job_id in ended if job_id not in of_workflows]
    failed, ends = ([jobs[job_id] for job_id in ids if job_id in jobs] for ids in (ended, stops))
    stopped = [job for job in ends if stops[job.id].how == Update.STOPPED]
    rolled_back = [job for job in ends if stops[job.id].how == Update.ROLLED_BACK]
    updates = Update.objects.in_bulk([stop.update_id for stop in stops.values()])
    why = {job.id: _stop_reason(job, updates.get(stops[job.id].update_id), stops[job.id]) for job in ends}
    with records.write(system("job-notices")) as entry:
        notices_write(entry, "job.failed", failed, failed_reasons)
        notices_write(entry, "job.update-stopped", stopped, lambda named: why)
        notices_write(entry, "job.rolled-back", rolled_back, lambda named: why)
        named_notices_write(entry, "cron.missed", cell, missed)
        named_notices_write(entry, "workflow.failed", cell, workflows)
    return len(failed) + len(ends) + len(missed) + len(workflows)


def _repeated_stops(update_ids: Sequence[int]) -> set[int]:
    """Return those of the updates by the autoscaler that were stopped because their number of disruptions is used up,
    as the one before. The autoscaler goes on with such a job without disruptions, so each of its updates stops again.
    """
    if not update_ids:
        return set()
    rows = query(
        "SELECT u.id FROM scheduling_update AS u JOIN LATERAL (SELECT actor, state, detail FROM scheduling_update"
        " WHERE job_id = u.job_id AND id < u.id AND state <> 'superseded' ORDER BY id DESC LIMIT 1) AS b ON true"
        " WHERE u.id = ANY(%(ids)s) AND u.actor = 'system:autoscaler' AND b.actor = u.actor"
        " AND u.state = 'stopped' AND b.state = 'stopped' AND strpos(u.detail, %(kept)s) > 0"
        " AND strpos(b.detail, %(kept)s) > 0",
        {"ids": list(update_ids), "kept": KEPT},
    )
    return {update_id for (update_id,) in rows}


def _of_workflows(job_ids: Sequence[int]) -> set[int]:
    """Return those of the jobs that belong to nodes of workflows. A label alone proves nothing: users may set it.

    At any time, at most one workflow of a name is live, so old workflows of the name are not read.
    """
    if not job_ids:
        return set()
    rows = query(
        "SELECT j.id FROM scheduling_job AS j JOIN scheduling_workflow AS w ON w.cell_id = j.cell_id"
        " AND w.tenant_id = j.tenant_id AND w.name = j.labels->>'workflow'"
        " AND w.created_at <= j.created_at AND (w.ended_at IS NULL OR w.ended_at >= j.created_at)"
        " JOIN scheduling_workflownode AS n ON n.workflow_id = w.id AND n.job_name = j.name"
        " AND n.name = j.labels->>'node' WHERE j.id = ANY(%s)",
        [list(job_ids)],
    )
    return {job_id for (job_id,) in rows}


def _first_missed(rows: Sequence[tuple[Any, ...]]) -> dict[tuple[str, str], str]:
    """Return the reasons of missed and rejected runs by (tenant, name of the cron job). Cron jobs whose run before
    failed with the same code are left out, so that a cron job that is rejected each minute has one notice. Runs by hand
    do not count. `rows`: those of `_EVENTS`.
    """
    if not rows:
        return {}
    before = query(
        "SELECT coalesce(r.code, '') FROM unnest(%s::bigint[], %s::float8[]) WITH ORDINALITY AS e(id, due_at, place)"
        " LEFT JOIN LATERAL (SELECT code FROM scheduling_cronrun WHERE cron_job_id = e.id AND by = ''"
        # A float is not exact to the microsecond. Due times are at least a minute apart.
        " AND due_at < to_timestamp(e.due_at) - interval '1 second' ORDER BY due_at DESC LIMIT 1) AS r ON true"
        " ORDER BY e.place",
        [[row[-2] for row in rows], [row[-1] for row in rows]],
    )
    first = {(row[5], row[6]) for row, (code,) in zip(rows, before, strict=True) if code != row[7]}
    return {(row[5], row[6]): row[4] for row in rows if (row[5], row[6]) in first}


def _stop_reason(job: Job, update: Update | None, stop: _Stop) -> str:
    detail = stop.detail.rstrip(".")
    if update is None:  # its row is already in the archive
        return f"The update stopped: {detail}."
    if stop.how == Update.ROLLED_BACK:
        return f"The update to version {update.to_version} was rolled back: {detail}."
    if update.restarts:
        return f"The restart stopped: {detail}."
    sentence = f"The update to version {update.to_version} stopped: {detail}."
    undoes = update.from_version > 0  # otherwise it created the tasks of a new job
    return f"{sentence} `borgctl undo {job.name}` returns to the version before." if undoes else sentence
