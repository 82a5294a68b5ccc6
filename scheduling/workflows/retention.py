"""Deletes workflows that ended long ago, so that the history stays bounded: those whose `keep_s` is over, and those
beyond the newest `MAX_ENDED` of a tenant. Remembers which files were submitted with `if_changed`, as `borgctl apply`
does: a workflow runs once, so an equal file must not run again when the history of its workflow was deleted.

A workflow is deleted in parts of `journal.CHUNK` nodes, each in a transaction of its own, and its row goes last.
This locks only the row of the workflow. After the first part it cannot be retried any more.
"""

from __future__ import annotations

import datetime as dt

from django.db import transaction

from quota.models import Tenant
from scheduling.journal import journal
from scheduling.journal.sql import execute, query
from scheduling.models import AppliedWorkflow, Cell

# Ended workflows of one tenant in one cell at most.
MAX_ENDED = 500
# Names of one tenant in one cell whose files are remembered. The oldest ones are forgotten.
MAX_NAMES = 1_000

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
    """Delete all ended workflows of a cell, and forget which files were applied."""
    AppliedWorkflow.objects.filter(cell_id=cell_id).delete()
    while rows := query(
        "SELECT id FROM scheduling_workflow WHERE cell_id = %s AND ended_at IS NOT NULL LIMIT 1", [cell_id]
    ):
        _remove_part(rows[0][0])


def applied_is_new(cell: Cell, tenant: Tenant, name: str, digest: str, *, now: dt.datetime) -> bool:
    """Return whether a workflow differs from the last one of this name, and remember it as the last one. The caller
    has locked the cell's row, and submits the workflow in the same transaction.
    """
    rows = AppliedWorkflow.objects.filter(cell=cell, tenant=tenant)
    if rows.filter(name=name, digest=digest).exists():
        return False
    AppliedWorkflow.objects.update_or_create(
        cell=cell, tenant=tenant, name=name, defaults={"digest": digest, "submitted_at": now}
    )
    execute(
        "DELETE FROM scheduling_appliedworkflow WHERE id IN (SELECT id FROM scheduling_appliedworkflow"
        " WHERE cell_id = %s AND tenant_id = %s ORDER BY submitted_at DESC, id DESC OFFSET %s)",
        [cell.pk, tenant.pk, MAX_NAMES],
    )
    return True


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
