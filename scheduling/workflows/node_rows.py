"""Reads and writes nodes of workflows, many with one statement. The caller has locked the cell's row to write."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from scheduling.journal.copy_rows import column
from scheduling.journal.sql import execute, query
from scheduling.workflows.graph_rules import ENDS, NodeState, Waiting, after_branches, after_ends, is_met
from scheduling.workflows.node_variables import Result

ResultsByNode = Mapping[tuple[int, str], Result]
# Ended nodes of one statement, and rounds of one turn: a chain of skipped nodes needs a round per node.
AT_ONCE, ROUNDS = 2_000, 100


@dataclass(slots=True)
class Counts:
    """Changes of the counters of one workflow."""

    left: int = 0
    failed: int = 0
    ready: int = 0
    live: int = 0


@dataclass(slots=True)
class Changes:
    """Collects changes of nodes and of the counters of their workflows, and writes them with two statements."""

    now: dt.datetime
    counts: defaultdict[int, Counts] = field(default_factory=lambda: defaultdict(Counts))

    def count(self, workflow: int, before: str, after: str, *, branch: bool) -> None:
        """Count the change of a node or of a branch from one state to another. A node with branches is running, but has
        no job: the caller corrects `live`.
        """
        of = self.counts[workflow]
        of.ready += (after == NodeState.READY) - (before == NodeState.READY)
        of.live += (after == NodeState.RUNNING) - (before == NodeState.RUNNING)
        if not branch:
            of.left += (before in ENDS) - (after in ENDS)
            of.failed += (after == NodeState.FAILED) - (before == NodeState.FAILED)

    def store(self) -> None:
        if not self.counts:
            return
        ids = sorted(self.counts)
        columns = [
            column([getattr(self.counts[key], name) for key in ids]) for name in ("left", "failed", "ready", "live")
        ]
        execute(
            # A counter that is wrong must not stop the turns. A sweep computes the counters from the nodes.
            "UPDATE scheduling_workflow AS w SET nodes_left = greatest(0, w.nodes_left + c.nodes),"
            " nodes_failed = greatest(0, w.nodes_failed + c.failed), ready = greatest(0, w.ready + c.ready),"
            " live = greatest(0, w.live + c.live) FROM unnest(%s::bigint[], %s::bigint[],"
            " %s::bigint[], %s::bigint[], %s::bigint[]) AS c(id, nodes, failed, ready, live) WHERE w.id = c.id",
            [column(ids), *columns],
        )
        self.counts.clear()


@dataclass(frozen=True, slots=True)
class NodeEnd:
    """The new state of a node, and the reason if it failed."""

    node_id: int
    state: NodeState
    code: str = ""
    detail: str = ""
    not_before: dt.datetime | None = None
    retries_left: int = 0


def nodes_end(ends: Sequence[NodeEnd], now: dt.datetime) -> None:
    """Store the states of nodes whose job has ended, or that were skipped or rejected."""
    if not ends:
        return
    execute(
        "UPDATE scheduling_workflownode AS n SET state = e.state, propagates = e.state <> 'ready', code = e.code,"
        " detail = e.detail, not_before = e.not_before, retries_left = e.retries_left,"
        " ended_at = CASE WHEN e.state = 'ready' THEN NULL ELSE %s END"
        " FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::timestamptz[], %s::bigint[])"
        " AS e(id, state, code, detail, not_before, retries_left) WHERE n.id = e.id",
        [
            now,
            [end.node_id for end in ends],
            [end.state.value for end in ends],
            [end.code[:64] for end in ends],
            [end.detail[:500] for end in ends],
            [end.not_before for end in ends],
            [end.retries_left for end in ends],
        ],
    )


def counters_recompute(workflow_ids: Sequence[int]) -> None:
    """Compute the counters of workflows from their nodes."""
    execute(
        "UPDATE scheduling_workflow AS w SET nodes_left = c.nodes, nodes_failed = c.failed, ready = c.ready,"
        " live = c.live FROM (SELECT workflow_id,"
        " count(*) FILTER (WHERE branch = -1 AND state IN ('waiting', 'ready', 'running')) AS nodes,"
        " count(*) FILTER (WHERE branch = -1 AND state = 'failed') AS failed,"
        " count(*) FILTER (WHERE state = 'ready') AS ready,"
        " count(*) FILTER (WHERE state = 'running' AND job_id IS NOT NULL) AS live"
        " FROM scheduling_workflownode WHERE workflow_id = ANY(%s) GROUP BY workflow_id) AS c"
        " WHERE w.id = c.workflow_id AND (w.nodes_left, w.nodes_failed, w.ready, w.live)"
        " IS DISTINCT FROM (c.nodes, c.failed, c.ready, c.live)",
        [list(workflow_ids)],
    )


def ends_propagate(cell_id: int, changes: Changes) -> int:
    """Change the nodes after those that have ended: they become ready or are skipped. Return how many ended nodes were
    handled. Nodes that are left wait for the next turn.
    """
    handled = 0
    for _ in range(ROUNDS):
        ended = query(
            "SELECT id, workflow_id, name, branch, state, next::text FROM scheduling_workflownode"
            " WHERE cell_id = %s AND propagates ORDER BY id LIMIT %s",
            [cell_id, AT_ONCE],
        )
        if not ended:
            break
        handled += len(ended)
        _branches_end([row[1:5] for row in ended if row[3] >= 0], changes)
        _conditions_decide([(row[1], row[4], row[5]) for row in ended if row[3] < 0], changes)
        execute("UPDATE scheduling_workflownode SET propagates = false WHERE id = ANY(%s)", [[row[0] for row in ended]])
    return handled


def _branches_end(ended: Iterable[tuple[int, str, int, str]], changes: Changes) -> None:
    """Count ended branches in their nodes. A node whose branches have all ended has ended too."""
    counts: dict[tuple[int, str], list[int]] = {}
    for workflow, name, _, state in ended:
        of = counts.setdefault((workflow, name), [0, 0])
        of[0] += 1
        of[1] += state != NodeState.SUCCEEDED
    found = _nodes_named(counts, "n.branches_left, n.branches_failed", locked_state=NodeState.RUNNING)
    stored: list[tuple[int, int, int, str]] = []
    for node_id, workflow, name, left, failed in found:
        left, failed = max(0, left - counts[workflow, name][0]), failed + counts[workflow, name][1]
        state = after_branches(left, failed)
        stored.append((node_id, left, failed, state.value))
        if state is not NodeState.RUNNING:
            changes.count(workflow, NodeState.RUNNING, state, branch=False)
            changes.counts[workflow].live += 1  # the node itself had no job
    if stored:
        execute(
            "UPDATE scheduling_workflownode AS n SET branches_left = c.branches, branches_failed = c.failed,"
            " state = c.state, propagates = c.state <> 'running',"
            " ended_at = CASE WHEN c.state = 'running' THEN NULL ELSE %s END,"
            " code = CASE WHEN c.state = 'failed' THEN 'branches-failed' ELSE '' END,"
            " detail = CASE WHEN c.state = 'failed' THEN c.failed || ' of its jobs did not succeed' ELSE '' END"
            " FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::text[]) AS c(id, branches, failed, state)"
            " WHERE n.id = c.id",
            [changes.now, *map(list, zip(*stored, strict=True))],
        )


def _conditions_decide(ended: Iterable[tuple[int, str, str]], changes: Changes) -> None:
    verdicts: defaultdict[tuple[int, str], list[bool]] = defaultdict(list)
    for workflow, state, following in ended:
        for name, condition in msgspec.json.decode(following).items():
            verdicts[workflow, name].append(is_met(condition, state))
    stored: list[tuple[int, str, int]] = []
    for node_id, workflow, name, unmet in _nodes_named(verdicts, "n.unmet", locked_state=NodeState.WAITING):
        after = after_ends(Waiting(NodeState.WAITING, unmet), verdicts[workflow, name])
        stored.append((node_id, after.state.value, after.unmet))
        changes.count(workflow, NodeState.WAITING, after.state, branch=False)
    if stored:
        execute(
            "UPDATE scheduling_workflownode AS n SET state = c.state, unmet = c.unmet,"
            " propagates = c.state = 'skipped', ended_at = CASE WHEN c.state = 'skipped' THEN %s END,"
            " code = CASE WHEN c.state = 'skipped' THEN 'condition' ELSE '' END,"
            " detail = CASE WHEN c.state = 'skipped' THEN 'a condition in `after` cannot be met any more' ELSE '' END"
            " FROM unnest(%s::bigint[], %s::text[], %s::bigint[]) AS c(id, state, unmet) WHERE n.id = c.id",
            [changes.now, *map(list, zip(*stored, strict=True))],
        )


def _nodes_named(wanted: Iterable[tuple[int, str]], columns: str, *, locked_state: NodeState) -> list[tuple[Any, ...]]:
    """Return (id, workflow id, name, and `columns`) of nodes in a state, by workflow id and name."""
    pairs = sorted(wanted)
    if not pairs:
        return []
    return query(
        f"SELECT n.id, n.workflow_id, n.name, {columns} FROM unnest(%s::bigint[], %s::text[]) AS c(workflow_id, name)"
        " JOIN scheduling_workflownode AS n ON n.workflow_id = c.workflow_id AND n.name = c.name AND n.branch = -1"
        " WHERE n.state = %s ORDER BY n.id",
        [[workflow for workflow, _ in pairs], [name for _, name in pairs], locked_state.value],
    )


def results_of(wanted: Mapping[tuple[int, str], int]) -> ResultsByNode:
    """Return the results of nodes by (workflow id, name). `wanted`: up to how many bytes a result is read; a larger one
    has only its size. The result of a node with `for_each` is the list of the results of its branches; a branch without
    a result has null.
    """
    keys = sorted(wanted)
    if not keys:
        return {}
    rows = query(
        "SELECT n.workflow_id, n.name, max(n.branch) >= 0, sum(octet_length(n.result::text)),"
        " CASE WHEN sum(octet_length(n.result::text)) <= min(c.most) THEN"
        " jsonb_agg(n.result ORDER BY n.branch) FILTER (WHERE n.branch >= 0 OR n.result IS NOT NULL)::text END"
        " FROM unnest(%s::bigint[], %s::text[], %s::bigint[]) AS c(workflow_id, name, most)"
        " JOIN scheduling_workflownode AS n ON n.workflow_id = c.workflow_id AND n.name = c.name"
        " GROUP BY n.workflow_id, n.name",
        [[workflow for workflow, _ in keys], [name for _, name in keys], [wanted[key] for key in keys]],
    )
    found = dict.fromkeys(keys, Result())
    for workflow, name, has_branches, size, texts in rows:
        if size is None:
            continue
        values = None if texts is None else msgspec.json.decode(texts)
        found[workflow, name] = Result(values if has_branches or values is None else values[0], size)
    return found
