"""Checks in the journal whether a name changed after a revision.

Revisions have the order of the commits (`scheduling.journal.journal`). So a client that has read a cell at revision N,
and then asks for changes after N, gets every later change.
"""

from __future__ import annotations

from collections.abc import Collection

from naming.table.names import SERVICE, ServiceName
from naming.table.table import NAMING_KINDS
from scheduling.journal.sql import query

# Jobs may have left a service, so the check of a service reads all events of the cell. If it would have to read more
# revisions than this, the service counts as changed.
MOST_REVISIONS = 20_000
WEIGHED = "service.weighed"


def changed_after(cell_id: int, jobs: Collection[int], machines: Collection[int], *, after: int) -> bool:
    """Return whether the names of these jobs, or the addresses of these machines, may have changed after the revision
    `after`. Makes one database query.

    Return True too if PostgreSQL no longer has all events after this revision, because some are only in the archive.
    """
    ((changed,),) = query(
        "SELECT EXISTS (SELECT FROM scheduling_cell WHERE id = %(cell)s AND journal_floor > %(after)s)"
        " OR EXISTS (SELECT FROM scheduling_event"
        "  WHERE cell_id = %(cell)s AND job_id = ANY(%(jobs)s) AND revision > %(after)s AND kind = ANY(%(kinds)s))"
        " OR EXISTS (SELECT FROM scheduling_event"
        "  WHERE cell_id = %(cell)s AND machine_id = ANY(%(machines)s) AND revision > %(after)s"
        "  AND kind = 'machine.set')",
        {"cell": cell_id, "after": after, "jobs": list(jobs), "machines": list(machines), "kinds": list(NAMING_KINDS)},
    )
    return bool(changed)


def in_journal(cell_id: int, revision: int) -> bool:
    """Return whether the cell's journal contains an event with exactly this revision."""
    return bool(query("SELECT 1 FROM scheduling_event WHERE cell_id = %s AND revision = %s", [cell_id, revision]))


def members_changed_after(name: ServiceName, cell_id: int, tenant_id: int, *, after: int, until: int) -> bool:
    """Return whether jobs may have left the service `name`, or its weights may have changed, between the revisions
    `after` and `until` of the cell.
    """
    if until - after > MOST_REVISIONS:
        return True
    left = query(
        "SELECT 1 FROM scheduling_event WHERE cell_id = %s AND revision > %s AND kind = %s"
        " AND data->>'service' = %s AND data->>'tenant' = %s"
        " UNION ALL SELECT 1 FROM scheduling_event e JOIN scheduling_job j ON j.id = e.job_id"
        " WHERE e.cell_id = %s AND e.revision > %s AND j.tenant_id = %s"
        " AND (e.kind = 'job.changed' OR e.kind = 'job.ended' AND j.labels->>%s = %s) LIMIT 1",
        [cell_id, after, WEIGHED, name.service, name.tenant, cell_id, after, tenant_id, SERVICE, name.service],
    )
    return bool(left)


def changed_jobs(cell_id: int, *, after: int, until: int) -> set[int] | None:
    """Return the ids of the jobs whose names may have changed between the revisions `after` and `until` of the cell.

    Return None if the names of any job may have changed, or if events after `after` are only in the archive. The
    weights of a service do not change the names of its jobs. The function makes at most one database query.
    """
    if until - after > MOST_REVISIONS:
        return None
    rows = query(
        "SELECT DISTINCT job_id FROM scheduling_event"
        " WHERE cell_id = %s AND revision > %s AND revision <= %s AND kind = ANY(%s) AND kind <> %s"
        " UNION ALL SELECT NULL FROM scheduling_cell WHERE id = %s AND journal_floor > %s",
        [cell_id, after, until, list(NAMING_KINDS), WEIGHED, cell_id, after],
    )
    found = {job_id for (job_id,) in rows}
    return None if None in found else found  # an event of a machine concerns all its tasks
