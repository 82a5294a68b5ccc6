"""Chooses the old versions of specs of live jobs that the archiver copies next. Their rows are deleted in the
transaction that records their file, so a version is either in PostgreSQL or in the archive, never in both.

A version is archived `ended_jobs_keep_days` after a later version replaced it, if nothing refers to it. The current
version of a job and the one before it always stay, and so do the last one that the autoscaler did not make and the
one before that, to which an undo returns.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from scheduling.history.archive.ended_jobs import keep
from scheduling.history.archive.retention import DayRange, midnight
from scheduling.journal.sql import execute, query
from scheduling.models import ArchiveFile, ArchiveState, Cell

SPECS = "old_specs"
# The most versions of one file and of one transaction.
MOST = 5_000


@dataclass(frozen=True, slots=True)
class OldSpecs(DayRange):
    """Versions of specs that become one file. `day`: the day (UTC) on which the newest of them was written. `first`,
    `last`: the smallest and the largest id of their rows. `ids`: the ids of their rows.
    """

    ids: tuple[int, ...]


# Each version with the version after it and with `own`, the last version of its job that the autoscaler did not make. A
# job may have thousands of versions by the autoscaler, so this statement does not join versions with each other.
_VERSIONS = """
    WITH versions AS (
        SELECT v.id, v.job_id, v.version, v.created_at, j.spec_version, j.key,
            lead(v.version) OVER following AS next_version, lead(v.created_at) OVER following AS next_at,
            max(v.version) FILTER (WHERE v.actor <> 'system:autoscaler') OVER (PARTITION BY v.job_id) AS own
        FROM scheduling_job AS j JOIN scheduling_jobspec AS v ON v.job_id = j.id
        WHERE j.cell_id = %(cell)s AND j.state <> 'dead' AND j.spec_version > 2
        WINDOW following AS (PARTITION BY v.job_id ORDER BY v.version))"""
# Version 1 of a job with an idempotency key is compared with repeated submissions. If the next version is not in
# PostgreSQL, it is in the archive, so it is old enough.
_UNUSED = """
    FROM versions AS s
    WHERE s.version < s.spec_version - 1 AND NOT (s.version = 1 AND s.key <> '')
    AND (s.own IS NULL OR s.version NOT IN (s.own, s.own - 1))
    AND (s.next_version = s.version + 1 AND s.next_at >= %(before)s) IS NOT TRUE
    AND NOT EXISTS (SELECT FROM scheduling_task AS t WHERE t.job_id = s.job_id AND t.spec_version = s.version)
    AND NOT EXISTS (SELECT FROM scheduling_update AS u WHERE u.job_id = s.job_id AND u.state = 'open'
                    AND s.version IN (u.from_version, u.to_version))"""


def next_specs(cell: Cell, *, now: dt.datetime) -> OldSpecs | None:
    """Return the oldest versions of specs that must be archived, at most `MOST`, or None if there are none."""
    rows = query(f"{_VERSIONS} SELECT s.id, s.created_at {_UNUSED} ORDER BY s.id LIMIT {MOST}", _values(cell, now))
    if not rows:
        return None
    ids = tuple(identity for identity, _ in rows)
    return OldSpecs(SPECS, max(at for _, at in rows).astimezone(dt.UTC).date(), ids[0], ids[-1], ids)


def delete(file: ArchiveFile, specs: OldSpecs) -> None:
    """Delete the rows of these versions from PostgreSQL. The caller records their file in the same transaction."""
    execute("DELETE FROM scheduling_jobspec WHERE id = ANY(%s)", [list(specs.ids)])
    ArchiveFile.objects.filter(pk=file.pk).update(state=ArchiveState.SOLE)


def due(*, now: dt.datetime) -> bool:
    """Return whether versions of a cell's jobs have to be archived."""
    return any(
        query(f"{_VERSIONS} SELECT {_UNUSED} LIMIT 1", _values(cell, now)) for cell in Cell.with_history.order_by("id")
    )


def _values(cell: Cell, now: dt.datetime) -> dict[str, Any]:
    return {"cell": cell.id, "before": midnight((now - keep(cell)).date())}
