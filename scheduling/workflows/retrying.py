"""Runs an ended workflow again from the nodes that have not succeeded."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from quota.vocabulary.errors import Conflict
from quota.vocabulary.permissions import Principal
from scheduling.journal.sql import execute
from scheduling.models import Workflow, WorkflowNode
from scheduling.workflows import graph_rules
from scheduling.workflows.node_rows import counters_recompute
from scheduling.workflows.workflows import check_number, check_user, is_live, locked, reader_start, require_state, store


def workflow_retry(*, principal: Principal, workflow: Workflow) -> Workflow:
    """Run a failed or cancelled workflow again from its failed nodes. The caller becomes its owner. Nodes that have
    succeeded are not run again, and neither are succeeded branches of a failed node.

    Raises `Conflict` if the workflow has not failed, or if another one with its name is live.
    """
    check_user(principal, workflow.name)
    with locked(principal, workflow) as (entry, row):
        require_state(row, "retry", Workflow.FAILED, Workflow.CANCELLED)
        assert row.ended_at is not None
        if row.ended_at + dt.timedelta(seconds=row.keep_s) <= entry.time:
            detail = (
                f"cannot retry workflow {row.name}: it is kept for {row.keep_s:,.0f} s after its end, which are over"
            )
            raise Conflict("workflow-over", f"{detail}; submit the file again")
        if Workflow.objects.filter(cell=row.cell, tenant=row.tenant, name=row.name, ended_at=None).exists():
            raise is_live(row.name)
        check_number(row.cell, row.tenant, row.name)
        reader_start(row.cell_id, entry)
        nodes = WorkflowNode.objects.filter(workflow=row, branch=-1).values_list("name", "after", "state")
        after = {name: conditions for name, conditions, _ in nodes}
        states = {name: state for name, _, state in nodes}
        _nodes_reset(row.pk, graph_rules.after_retry(after, states))
        counters_recompute([row.pk])
        row.refresh_from_db()
        row.owner_id, row.owner_name, row.ended_at, row.detail = principal.user_id, principal.name, None, ""
        row.held_until, row.held_s, row.asks = None, 0.0, 0
        store(entry, row, Workflow.RUNNING, "retried")
    return row


def _nodes_reset(workflow_id: int, changed: Mapping[str, graph_rules.Waiting]) -> None:
    """Store the nodes that a retry changes. Branches that succeeded stay, unless nodes before their node run again."""
    execute(
        "UPDATE scheduling_workflownode SET propagates = false WHERE workflow_id = %s AND propagates", [workflow_id]
    )
    values = [
        workflow_id,
        list(changed),
        [node.state.value for node in changed.values()],
        [node.unmet for node in changed.values()],
    ]
    named = "unnest(%s::text[], %s::text[], %s::bigint[]) AS c(name, state, unmet)"
    execute(
        f"DELETE FROM scheduling_workflownode AS n USING {named} WHERE n.workflow_id = %s AND n.name = c.name"
        " AND n.branch >= 0 AND c.state = 'waiting'",
        [*values[1:], workflow_id],
    )
    execute(
        "UPDATE scheduling_workflownode AS n SET state = 'ready', retries_left = n.retries, not_before = NULL,"
        f" result = NULL, code = '', detail = '', ended_at = NULL FROM {named} WHERE n.workflow_id = %s"
        " AND n.name = c.name"
        " AND n.branch >= 0 AND c.state = 'ready' AND n.state <> 'succeeded'",
        [*values[1:], workflow_id],
    )
    execute(
        "UPDATE scheduling_workflownode AS n SET unmet = c.unmet, retries_left = n.retries, not_before = NULL,"
        " code = '', detail = '', started_at = NULL, job_id = NULL, result = NULL, branches_failed = 0,"
        " ended_at = CASE WHEN c.state = 'ready' AND b.number > 0 AND b.ready = 0 THEN n.ended_at END,"
        " branches_left = b.ready, state = CASE WHEN c.state <> 'ready' OR b.number = 0 THEN c.state"
        " WHEN b.ready > 0 THEN 'running' ELSE 'succeeded' END,"
        # All branches succeeded while the workflow was cancelled: the nodes after this one wait for it.
        " propagates = c.state = 'ready' AND b.number > 0 AND b.ready = 0"
        f" FROM {named}, LATERAL (SELECT count(*) AS number, count(*) FILTER (WHERE o.state = 'ready') AS ready"
        " FROM scheduling_workflownode AS o WHERE o.workflow_id = %s AND o.name = c.name AND o.branch >= 0) AS b"
        " WHERE n.workflow_id = %s AND n.name = c.name AND n.branch = -1",
        [*values[1:], workflow_id, workflow_id],
    )
