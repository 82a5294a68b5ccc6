"""Carries out decisions about ready nodes: submits jobs, creates branches, and stores the states of the nodes. All of
it is in the transaction of the turn, which has locked the cell's row.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import structlog
from django.db import DatabaseError, InterfaceError, OperationalError, transaction

from quota.tenancy.authentication import principals_of_users
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal
from scheduling.jobs.submission.outcomes import Submission
from scheduling.jobs.submit_and_kill import jobs_submit_for
from scheduling.journal.copy_rows import column
from scheduling.journal.sql import execute, query
from scheduling.models import Cell, WorkflowNode
from scheduling.spec.job_spec import JobSpecification
from scheduling.workflows.graph_rules import NodeState, after_branches
from scheduling.workflows.node_rows import Changes, NodeEnd, nodes_end
from scheduling.workflows.ready_nodes import AT_ONCE, Decision, ReadyNode, failed, internal

log = structlog.get_logger(__name__)

# Jobs that are rejected for these reasons may be accepted later. Their workflow pauses, for `HELD_S` seconds first.
# The reasons `OF_TENANT` concern all jobs of the tenant.
OF_TENANT = frozenset({"budget-exhausted", "too-many-jobs"})
LATER = OF_TENANT | {"quota-exceeded"}
HELD_S, LONGEST_HELD_S = 5.0, 60.0

Asked = tuple[ReadyNode, Principal, JobSpecification]


def decisions_apply(cell: Cell, decisions: Sequence[Decision], changes: Changes) -> int:
    """Carry out the decisions about nodes that are still ready. Return how many nodes changed."""
    still = _still_ready([decision.node.node_id for decision in decisions])
    decisions = [decision for decision in decisions if decision.node.node_id in still]
    if not decisions:
        return 0
    owners = {
        user: replace(principal, request_id="workflow")
        for user, principal in principals_of_users(
            {decision.node.shared.owner_id for decision in decisions if decision.node.shared.owner_id}
        ).items()
    }
    asked: list[Asked] = []
    ends = [decision.end for decision in decisions if decision.end is not None]
    for decision in decisions:
        if decision.job is None:
            continue
        if decision.node.shared.owner_id in owners:
            asked.append((decision.node, owners[decision.node.shared.owner_id], decision.job))
        else:
            ends.append(failed(decision.node, _no_owner(decision.node)))
    done = _submitted(cell, asked)
    rejected = [(node, found.problem) for (node, _, _), found in zip(asked, done, strict=True) if found.problem]
    later = [(node, problem) for node, problem in rejected if problem.code in LATER]
    ends += [failed(node, problem) for node, problem in rejected if problem.code not in LATER]
    started = [(node, found) for (node, _, _), found in zip(asked, done, strict=True) if found.job is not None]
    nodes = {decision.node.node_id: decision.node for decision in decisions}
    _store_started(started, changes)
    _hold(later, [node for node, _ in started], changes.now)
    for end in ends:
        node = nodes[end.node_id]
        changes.count(node.workflow_id, NodeState.READY, end.state, branch=node.branch >= 0)
    nodes_end(ends, changes.now)
    spread = [decision for decision in decisions if decision.items is not None]
    _branches_create(spread, changes)
    return len(ends) + len(started) + len(spread)


def _still_ready(node_ids: Sequence[int]) -> set[int]:
    rows = query(
        "SELECT n.id FROM scheduling_workflownode AS n JOIN scheduling_workflow AS w ON w.id = n.workflow_id"
        " WHERE n.id = ANY(%s) AND n.state = 'ready' AND w.state = 'running' AND w.ended_at IS NULL",
        [list(node_ids)],
    )
    return {node_id for (node_id,) in rows}


def _submitted(cell: Cell, asked: Sequence[Asked]) -> list[Submission]:
    """Submit the jobs in a savepoint. Return the outcome of each: its `job` or its `problem` is set. If something fails
    because of one job, each half of the jobs is submitted alone.
    """
    if not asked:
        return []
    try:
        with transaction.atomic():
            done = jobs_submit_for(cell=cell, asked=[(principal, job) for _, principal, job in asked])
            return [_outcome(node, found) for (node, _, _), found in zip(asked, done, strict=True)]
    except (OperationalError, InterfaceError):  # PostgreSQL is away or busy, for all of them alike
        raise
    except Exception as error:
        if len(asked) > 1:
            middle = len(asked) // 2
            return [*_submitted(cell, asked[:middle]), *_submitted(cell, asked[middle:])]
        node = asked[0][0]
        log.exception(
            "a job of a workflow cannot be submitted", cell=cell.name, tenant=node.shared.tenant, job=node.job_name
        )
        reason = "PostgreSQL rejects its job" if isinstance(error, DatabaseError) else "an internal error occurred"
        return [Submission(node.job_name, node.shared.tenant, "refused", problem=internal(node, reason))]


def _outcome(node: ReadyNode, found: Submission) -> Submission:
    if found.outcome == "submitted" or found.problem is not None:
        return found
    # Somebody else submitted an equal job under this name.
    detail = (
        f"cannot start node {node.name}: a live job has the name {node.job_name} already; kill that job, and run"
        f" `borgctl workflow retry {node.shared.workflow}`"
    )
    return replace(found, job=None, problem=Rejected("job-exists", detail, status=409))


def _store_started(started: Sequence[tuple[ReadyNode, Submission]], changes: Changes) -> None:
    if not started:
        return
    jobs = [found.job for _, found in started if found.job is not None]
    execute(
        "UPDATE scheduling_workflownode AS n SET state = 'running', job_id = j.job_id, job_name = j.name,"
        " attempt = n.attempt + 1, started_at = %s, not_before = NULL, result = NULL, code = '', detail = ''"
        " FROM unnest(%s::bigint[], %s::bigint[], %s::text[]) AS j(id, job_id, name) WHERE n.id = j.id",
        [
            changes.now,
            column([node.node_id for node, _ in started]),
            column([job.pk for job in jobs]),
            [job.name for job in jobs],
        ],
    )
    for node, _ in started:
        changes.count(node.workflow_id, NodeState.READY, NodeState.RUNNING, branch=node.branch >= 0)


def _hold(later: Sequence[tuple[ReadyNode, Rejected]], started: Sequence[ReadyNode], now: dt.datetime) -> None:
    """Let the workflows of rejected jobs pause, each time for longer. After a pause, a workflow asks for one job, then
    for two, and so on. If a job is rejected for a reason that concerns the whole tenant, all its workflows pause.
    """
    held = {node.workflow_id: problem for node, problem in later}
    if held:
        execute(
            "UPDATE scheduling_workflow AS w SET held_until = %s + make_interval(secs => n.pause), held_s = n.pause,"
            " asks = 1, detail = h.detail FROM unnest(%s::bigint[], %s::text[], %s::boolean[]) AS h(id, detail, whole)"
            " JOIN scheduling_workflow AS own ON own.id = h.id"
            " JOIN scheduling_workflow AS o ON o.id = own.id"
            " OR h.whole AND o.tenant_id = own.tenant_id AND o.cell_id = own.cell_id AND o.ended_at IS NULL,"
            " LATERAL (SELECT least(%s, greatest(%s, o.held_s * 2)) AS pause) AS n WHERE w.id = o.id",
            [
                now,
                list(held),
                [problem.detail[:500] for problem in held.values()],
                [problem.code in OF_TENANT for problem in held.values()],
                LONGEST_HELD_S,
                HELD_S,
            ],
        )
    if free := {node.workflow_id for node in started} - held.keys():
        execute(
            "UPDATE scheduling_workflow SET held_until = NULL, detail = '',"
            " held_s = CASE WHEN asks * 2 >= %s THEN 0 ELSE held_s END,"
            " asks = CASE WHEN asks * 2 >= %s THEN 0 ELSE asks * 2 END WHERE id = ANY(%s) AND asks > 0",
            [AT_ONCE, AT_ONCE, list(free)],
        )


def _branches_create(spread: Sequence[Decision], changes: Changes) -> None:
    """Create a ready branch per item, and count the branches in their nodes."""
    rows: list[WorkflowNode] = []
    numbers: defaultdict[int, int] = defaultdict(int)
    ends: list[NodeEnd] = []
    for decision in spread:
        node, items = decision.node, decision.items or []
        numbers[node.node_id] = len(items)
        state = after_branches(len(items), 0)
        changes.count(node.workflow_id, NodeState.READY, state, branch=False)
        if state is not NodeState.RUNNING:  # no items
            ends.append(NodeEnd(node.node_id, state, retries_left=node.retries_left))
            continue
        changes.counts[node.workflow_id].live -= 1  # the node itself has no job
        changes.counts[node.workflow_id].ready += len(items)
        variables = decision.variables or {}
        size = len(msgspec.json.encode(node.shared.template)) + len(msgspec.json.encode(variables))
        rows += [
            WorkflowNode(
                workflow_id=node.workflow_id,
                cell_id=node.cell_id,
                name=node.name,
                branch=number,
                layer=node.shared.layer,
                state=NodeState.READY.value,
                tasks=int(node.shared.template.get("tasks", 1)),
                size=size,
                retries=node.shared.retries,
                retries_left=node.shared.retries,
                item=item,
            )
            for number, item in enumerate(items)
        ]
    if not spread:
        return
    execute(
        "UPDATE scheduling_workflownode AS n SET state = 'running', branches_left = c.number, branches_failed = 0,"
        " started_at = %s, variables = c.variables::jsonb"
        " FROM unnest(%s::bigint[], %s::bigint[], %s::text[]) AS c(id, number, variables) WHERE n.id = c.id",
        [
            changes.now,
            list(numbers),
            list(numbers.values()),
            [msgspec.json.encode(decision.variables or {}).decode() for decision in spread],
        ],
    )
    WorkflowNode.objects.bulk_create(rows, batch_size=1_000)
    nodes_end(ends, changes.now)


def _no_owner(node: ReadyNode) -> Rejected:
    detail = (
        f"the owner of workflow {node.shared.workflow} is disabled or does not exist any more; another member of the"
        f" tenant can run `borgctl workflow retry {node.shared.workflow}`"
    )
    return Rejected("no-owner", detail, status=403)
