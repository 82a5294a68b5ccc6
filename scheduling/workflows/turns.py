"""Advances the workflows of a cell: one turn handles the jobs that have ended, and submits the jobs of ready nodes.

    journal: job.ended ─► states of nodes ─► nodes after them ─┐
                                                               ├─ one commit ─► workflows that have ended
    ready nodes ─► decisions ─► lock the cell ─► submit jobs ──┘

A node changes to running in the transaction that submits its job, and the place in the journal moves in the transaction
that stores what was read. So a process that is killed at any moment leaves a state from which another one goes on, and
no node has two jobs for one attempt. Processes take turns per cell. A turn reads only nodes that change.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from django.db import transaction

from quota.vocabulary.permissions import system
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.states import TaskState
from scheduling.core.vocabulary.task_events import Ending
from scheduling.jobs import updates
from scheduling.journal import journal
from scheduling.journal.sql import execute, query
from scheduling.models import Cell, WorkflowReader
from scheduling.tasks import counters, transitions
from scheduling.workflows import graph_rules
from scheduling.workflows.graph_rules import NodeState
from scheduling.workflows.node_rows import Changes, NodeEnd, counters_recompute, ends_propagate, nodes_end
from scheduling.workflows.node_submission import decisions_apply
from scheduling.workflows.ready_nodes import AT_ONCE, ready_choose

# Revisions of the journal that one turn reads at most.
_REVISIONS = 20_000
# After how many revisions without an ended job a turn stores the place in the journal.
_STORED_EVERY = 200
# Workflows whose counters one sweep checks.
_CHECKED = 20
# How often a turn without work stores that it took place.
_PULSE_S = 1.0
# The first key of the advisory lock by which processes take turns; the second one is the id of the cell.
_TURN = 0x77666C77

# Whether there are live workflows, how old the last turn is, how many revisions were not read yet, whether nodes may be
# ready or have to be passed on, and whether there are live jobs.
_PEEK = """
SELECT EXISTS (SELECT FROM scheduling_workflow AS w WHERE w.cell_id = r.cell_id AND w.ended_at IS NULL),
       extract(epoch FROM clock_timestamp() - r.turned_at)::float8, c.revision - r.revision,
       EXISTS (SELECT FROM scheduling_workflow AS w WHERE w.cell_id = r.cell_id AND w.ended_at IS NULL
         AND (w.state = 'cancelling' OR w.nodes_left = 0 AND w.live = 0 OR w.state = 'running' AND w.ready > 0
           AND w.live < w.parallel AND (w.held_until IS NULL OR w.held_until <= clock_timestamp())
           AND EXISTS (SELECT FROM scheduling_workflownode AS n WHERE n.workflow_id = w.id AND n.state = 'ready'
             AND (n.not_before IS NULL OR n.not_before <= clock_timestamp()))))
       OR EXISTS (SELECT FROM scheduling_workflownode AS n WHERE n.cell_id = r.cell_id AND n.propagates),
       EXISTS (SELECT FROM scheduling_workflow AS w
         WHERE w.cell_id = r.cell_id AND w.ended_at IS NULL AND w.live > 0)
FROM scheduling_workflowreader AS r JOIN scheduling_cell AS c ON c.id = r.cell_id WHERE r.cell_id = %s
"""
_ENDED = """
SELECT e.job_id, e.data->>'how' FROM scheduling_event AS e
WHERE e.cell_id = %s AND e.revision > %s AND e.revision <= %s AND e.kind = 'job.ended'
  AND EXISTS (SELECT FROM scheduling_workflownode AS n WHERE n.job_id = e.job_id AND n.state = 'running')
"""
# Running nodes whose job has ended, or is gone, without an event that was read: after a restore of the cell.
_LOST = """
SELECT n.job_id, coalesce(nullif(j.outcome, ''), nullif(a.outcome, ''), 'lost') FROM scheduling_workflow AS w
JOIN scheduling_workflownode AS n ON n.workflow_id = w.id AND n.state = 'running' AND n.job_id IS NOT NULL
LEFT JOIN scheduling_job AS j ON j.id = n.job_id LEFT JOIN scheduling_archivedjob AS a ON a.id = n.job_id
WHERE w.cell_id = %s AND w.ended_at IS NULL AND (j.id IS NULL OR j.state = 'dead')
"""


@dataclass(frozen=True, slots=True)
class Turn:
    """The result of a turn. `handled`: how many nodes changed. `live`: whether the cell has workflows that have not
    ended. `active`: whether one of them has live jobs, or nodes that may be ready. `busy`: whether another process has
    its turn now.
    """

    handled: int = 0
    live: bool = True
    active: bool = True
    busy: bool = False


def workflows_advance(
    cell_id: int,
    *,
    at_once: int = AT_ONCE,
    later_s: float = 0.0,
    sweep: bool = False,
    reached: Callable[[str], None] = lambda step: None,
) -> Turn:
    """Take one turn. A later call handles what is left.

    `later_s`: do nothing if another process took a turn in these last seconds. `sweep`: also look for jobs that have
    ended without an event. `reached`: a function that is called with the name of each step; tests use it. Without a
    live workflow, this makes one query and locks nothing. Locks: the turn of the cell, the cell's row, then the
    tenants' use of quota.
    """
    found = query(_PEEK, [cell_id])
    if not found or not found[0][0]:
        return Turn(live=False, active=False)
    _, age_s, behind, due, jobs = found[0]
    active = bool(due or jobs)
    if age_s < later_s or (not due and age_s < (_PULSE_S if behind == 0 or not jobs else 0) and not sweep):
        return Turn(active=active)
    with transaction.atomic():
        if not query("SELECT pg_try_advisory_xact_lock(%s, %s)", [_TURN, cell_id])[0][0]:
            return Turn(busy=True, active=active)
        handled = _turn(cell_id, at_once, sweep, reached)
        reached("before-commit")
    reached("after-commit")
    return Turn(handled=handled, active=active)


def lag_s() -> dict[int, float]:
    """Return by cell id for how many seconds no process has advanced the workflows of the cell. Cells without a live
    workflow are left out.
    """
    return dict(
        query(
            "SELECT w.cell_id, greatest(0, extract(epoch FROM clock_timestamp()"
            " - greatest(r.turned_at, min(w.changed_at))))::float8 FROM scheduling_workflow AS w"
            " JOIN scheduling_workflowreader AS r ON r.cell_id = w.cell_id WHERE w.ended_at IS NULL"
            " GROUP BY w.cell_id, r.turned_at"
        )
    )


def _turn(cell_id: int, at_once: int, sweep: bool, reached: Callable[[str], None]) -> int:
    reader = WorkflowReader.objects.get(cell_id=cell_id)
    now = query("SELECT clock_timestamp()")[0][0]
    newest = journal.newest(cell_id)
    until = min(newest, reader.revision + _REVISIONS)  # after a restore of the database, this may be a lower one
    ended = query(_ENDED, [cell_id, reader.revision, until]) if until > reader.revision else []
    if sweep and until == newest:
        ended += query(_LOST, [cell_id])
    decisions = ready_choose(cell_id, now, at_once)
    reached("decided")
    if not ended and not decisions and not sweep and not _has_more_work(cell_id):
        if until - reader.revision >= _STORED_EVERY or (now - reader.turned_at).total_seconds() >= _PULSE_S:
            _store_place(cell_id, until, now)
        return 1 if until < newest else 0
    reached("read")
    cell = Cell.operated.select_for_update(no_key=True).filter(pk=cell_id).first()
    if cell is None:
        return 0
    changes = Changes(now)
    handled = _jobs_ended(ended, changes)
    handled += ends_propagate(cell_id, changes)
    reached("ended")
    handled += decisions_apply(cell, decisions, changes)
    reached("submitted")
    handled += ends_propagate(cell_id, changes)
    handled += _jobs_cancel(cell_id)
    changes.store()
    if sweep:
        _counters_check(cell_id)
    handled += _workflows_end(cell_id, now)
    _store_place(cell_id, until, now)
    return handled


def _counters_check(cell_id: int) -> None:
    """Compute the counters of some live workflows from their nodes. They are right, unless somebody has changed rows by
    hand, and a wrong one would stop its workflow.
    """
    rows = query(
        "SELECT id FROM scheduling_workflow WHERE cell_id = %s AND ended_at IS NULL"
        " ORDER BY nodes_left > 0, random() LIMIT %s",
        [cell_id, _CHECKED],
    )
    counters_recompute([workflow for (workflow,) in rows])


def _has_more_work(cell_id: int) -> bool:
    """Return whether nodes have ended whose followers were not changed, or workflows are cancelled or over."""
    return bool(
        query(
            "SELECT EXISTS (SELECT FROM scheduling_workflownode WHERE cell_id = %s AND propagates) OR EXISTS (SELECT"
            " FROM scheduling_workflow WHERE cell_id = %s AND ended_at IS NULL"
            " AND (state = 'cancelling' OR nodes_left = 0 AND live = 0))",
            [cell_id, cell_id],
        )[0][0]
    )


def _store_place(cell_id: int, revision: int, now: dt.datetime) -> None:
    execute(
        "UPDATE scheduling_workflowreader SET revision = %s, turned_at = %s WHERE cell_id = %s",
        [revision, now, cell_id],
    )


def _jobs_ended(ended: Sequence[tuple[int, str]], changes: Changes) -> int:
    """Store the states of nodes whose jobs have ended. `ended`: (job id, how)."""
    if not ended:
        return 0
    rows = query(
        "SELECT n.id, n.workflow_id, n.branch, n.job_name, n.attempt, n.retries, n.retries_left,"
        " w.state = 'cancelling', e.how"
        " FROM unnest(%s::bigint[], %s::text[]) AS e(job_id, how)"
        " JOIN scheduling_workflownode AS n ON n.job_id = e.job_id AND n.state = 'running'"
        " JOIN scheduling_workflow AS w ON w.id = n.workflow_id ORDER BY n.id",
        [[job for job, _ in ended], [how for _, how in ended]],
    )
    ends: dict[int, NodeEnd] = {}
    freed: dict[int, int] = {}
    for node_id, workflow, branch, job, attempt, retries, retries_left, cancelling, how in rows:
        if node_id in ends:
            continue
        state = graph_rules.after_job(how, retries_left, cancelling=cancelling)
        again = state is NodeState.READY
        delay = dt.timedelta(seconds=graph_rules.retry_delay_s(1 + retries - retries_left)) if again else None
        ends[node_id] = NodeEnd(
            node_id,
            state,
            code="" if state is NodeState.SUCCEEDED else f"job-{how}",
            detail="" if state is NodeState.SUCCEEDED else f"job {job} {_HOW.get(how, how)} in attempt {attempt}",
            not_before=changes.now + delay if delay else None,
            retries_left=retries_left - again,
        )
        changes.count(workflow, NodeState.RUNNING, state, branch=branch >= 0)
        freed[workflow] = freed.get(workflow, 0) + 1
    _ask_again(freed)
    nodes_end(list(ends.values()), changes.now)
    return len(ends)


def _ask_again(freed: Mapping[int, int]) -> None:
    """Let paused workflows ask for as many jobs as have ended, because these may have released quota."""
    execute(
        "UPDATE scheduling_workflow AS w SET held_until = NULL, held_s = 0, asks = greatest(w.asks, f.number)"
        " FROM unnest(%s::bigint[], %s::bigint[]) AS f(id, number) WHERE w.id = f.id AND w.held_until IS NOT NULL",
        [list(freed), list(freed.values())],
    )


_HOW = {"failed": "failed", "killed": "was killed", "lost": "is not in the cell any more"}


def _jobs_cancel(cell_id: int) -> int:
    """End the live tasks of cancelled workflows, at most `journal.CHUNK` of them. Return how many were ended."""
    rows = query(
        "SELECT t.id, t.job_id FROM scheduling_workflow AS w"
        " JOIN scheduling_workflownode AS n ON n.workflow_id = w.id AND n.state = 'running' AND n.job_id IS NOT NULL"
        " JOIN scheduling_task AS t ON t.job_id = n.job_id AND t.state <> %s"
        " WHERE w.cell_id = %s AND w.ended_at IS NULL AND w.state = 'cancelling' ORDER BY t.id LIMIT %s",
        [TaskState.DEAD.value, cell_id, journal.CHUNK],
    )
    if not rows:
        return 0
    jobs = sorted({job for _, job in rows})
    with journal.write(cell_id, system("workflow")) as entry:
        updates.updates_close(entry, jobs, "the workflow of the job was cancelled")
        transitions.tasks_end(entry, [Ending(task, "killed", detail="its workflow was cancelled") for task, _ in rows])
        counters.jobs_end_if_over(entry, jobs)
    return len(rows)


def _workflows_end(cell_id: int, now: dt.datetime) -> int:
    """End the workflows whose nodes have all ended."""
    ended = query(
        "UPDATE scheduling_workflow AS w SET ended_at = %s, changed_at = %s, held_until = NULL,"
        " state = CASE WHEN w.state = 'cancelling' THEN 'cancelled' WHEN w.nodes_failed > 0 THEN 'failed'"
        " ELSE 'succeeded' END, detail = coalesce((SELECT left('node ' || n.name || ': ' || n.detail, 500)"
        " FROM scheduling_workflownode AS n WHERE n.workflow_id = w.id AND n.branch = -1 AND n.state = 'failed'"
        " ORDER BY n.ended_at, n.id LIMIT 1), '')"
        " FROM quota_tenant AS t WHERE w.cell_id = %s AND w.ended_at IS NULL AND w.nodes_left = 0 AND w.live = 0"
        " AND t.id = w.tenant_id AND NOT EXISTS (SELECT FROM scheduling_workflownode AS n WHERE n.workflow_id = w.id"
        " AND n.state IN ('waiting', 'ready', 'running')) RETURNING w.id, t.name, w.name, w.state, w.detail",
        [now, now, cell_id],
    )
    if ended:
        with journal.write(cell_id, system("workflow")) as entry:
            for workflow_id, tenant, name, state, detail in sorted(ended):
                entry.append(
                    events.WorkflowEnded(workflow_id=workflow_id, tenant=tenant, name=name, how=state, detail=detail)
                )
    return len(ended)
