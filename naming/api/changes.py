"""Checks in the journal of whether a name changed after a revision, for clients that did not follow it.

Revisions have the order of commits (`scheduling.journal.journal`), so a client that has seen a cell at revision N and
asks for later changes misses nothing.
"""

from __future__ import annotations

from collections.abc import Collection

from django.db import connection

from naming.table.names import SERVICE, ServiceName
from naming.table.table import NAMING_KINDS

# Jobs may have left a service since, so the check reads all of the cell's events. Beyond this number of revisions the
# service counts as changed.
MOST_REVISIONS = 20_000


def changed_after(jobs: Collection[int], machines: Collection[int], *, after: int) -> bool:
    """Return whether names of these jobs or machines of their tasks changed. One query on the journal's indexes."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM scheduling_event WHERE job_id = ANY(%s) AND revision > %s AND kind = ANY(%s))"
            " OR EXISTS (SELECT FROM scheduling_event"
            "  WHERE machine_id = ANY(%s) AND revision > %s AND kind = 'machine.set')",
            [list(jobs), after, list(NAMING_KINDS), list(machines), after],
        )
        return bool(cursor.fetchone()[0])


def in_journal(cell_id: int, revision: int) -> bool:
    """Return whether the cell's journal has a change at exactly this revision. One query, on the journal's index."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM scheduling_event WHERE cell_id = %s AND revision = %s)", [cell_id, revision]
        )
        return bool(cursor.fetchone()[0])


def members_changed_after(name: ServiceName, cell_id: int, tenant_id: int, *, after: int, until: int) -> bool:
    """Return whether jobs may have left the service. One query, over the cell's journal after `after`."""
    if until - after > MOST_REVISIONS:
        return True
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM scheduling_event e JOIN scheduling_job j ON j.id = e.job_id"
            " WHERE e.cell_id = %s AND e.revision > %s AND j.tenant_id = %s"
            " AND (e.kind = 'job.changed' OR e.kind = 'job.ended' AND j.labels->>%s = %s))",
            [cell_id, after, tenant_id, SERVICE, name.service],
        )
        return bool(cursor.fetchone()[0])
