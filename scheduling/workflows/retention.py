"""Deletes workflows that ended long ago, so that the history stays bounded: those whose `keep_s` is over, and those
beyond the newest `MAX_ENDED` of a tenant.

A workflow is deleted in parts of `journal.CHUNK` nodes, each in a transaction of its own, and its row goes last.
This locks only the row of the workflow. After the first part it cannot be retried any more.
"""

from __future__ import annotations

from django.db import transaction

from scheduling.journal import journal
from scheduling.journal.sql import execute, query

# Ended workflows of one tenant in one cell at most.
MAX_ENDED = 500

# A client may repeat its request for this time. The row has its idempotency key, so it must not go before.
_REPEATED_S = 600
_OVER = (
    "ended_at IS NOT NULL AND ended_at + make_interval(secs => greatest(keep_s,"
    f" CASE WHEN key = '' THEN 0 ELSE {_REPEATED_S} END)) <= clock_timestamp()"
)
_CHOOSE = f"""
(SELECT id FROM scheduling_workflow WHERE cell_id = %(cell)s AND {_OVER} LIMIT 1)
UNION ALL
(SELECT o.id FROM (SELECT DISTINCT tenant_id FROM scheduling_workflow WHERE cell_id = %(cell)s AND ended_at IS NOT NULL)
   AS t CROSS JOIN LATERAL (SELECT id FROM scheduling_workflow AS w WHERE w.cell_id = %(cell)s
     AND w.tenant_id = t.tenant_id AND w.ended_at IS NOT NULL ORDER BY w.ended_at DESC OFFSET %(most)s LIMIT 1) AS o
 LIMIT 1)
LIMIT 1
"""


def old_remove(cell_id: int) -> bool:
    """Delete a part of one old workflow of a cell. Return whether there was one. Without one, this locks nothing."""
    rows = query(_CHOOSE, {"cell": cell_id, "most": MAX_ENDED})
    if rows:
        _remove_part(rows[0][0])
    return bool(rows)


def all_remove(cell_id: int) -> None:
    """Delete all ended workflows of a cell."""
    while rows := query(
        "SELECT id FROM scheduling_workflow WHERE cell_id = %s AND ended_at IS NOT NULL LIMIT 1", [cell_id]
    ):
        _remove_part(rows[0][0])


def _remove_part(workflow_id: int) -> None:
    with transaction.atomic():
        kept = execute(
            "UPDATE scheduling_workflow SET keep_s = 0, key = '' WHERE id = %s AND ended_at IS NOT NULL", [workflow_id]
        )
        if not kept:  # it was retried meanwhile
            return
        gone = execute(
            "DELETE FROM scheduling_workflownode WHERE id IN (SELECT id FROM scheduling_workflownode"
            " WHERE workflow_id = %s LIMIT %s)",
            [workflow_id, journal.CHUNK],
        )
        if gone < journal.CHUNK:
            execute("DELETE FROM scheduling_workflow WHERE id = %s AND ended_at IS NOT NULL", [workflow_id])
