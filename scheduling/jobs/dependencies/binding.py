"""Binds the names in `after` of submitted jobs to jobs, while the cell's row is locked (§2.3).

    after: {load: succeeded} ─► the live job `load`, else the last one that had the name ─► its id, in a JobDependency

A job may also name a job that comes earlier in the same request. If that job is rejected, an older job of the same name
does not take its place. Later jobs of the same name do not matter, so cycles are impossible. The number of queries does
not depend on the number of jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from quota.admission import admission
from quota.vocabulary.errors import Rejected, invalid
from scheduling.allocs.alloc_sets import KIND as ALLOC_SET
from scheduling.core.vocabulary.states import JobGoal, JobState
from scheduling.jobs.dependencies.rules import GoalState, OtherJob, goal_state
from scheduling.jobs.submission.outcomes import BoundDependency, Item
from scheduling.journal import copy_rows, journal
from scheduling.journal.sql import query
from scheduling.models import Cell, JobDependency

# Problems in the text of a rejection; its `fields` have all of them.
_MOST_TOLD = 5
MISSING, MISSED = "no-such-dependency", "dependency-missed"
# The last job of each name. A live job is always the last one.
_NAMED = """
    SELECT w.tenant_id, j.* FROM unnest(%s::bigint[], %s::text[]) AS w(tenant_id, name) CROSS JOIN LATERAL (
        SELECT o.id, o.uid, o.name, o.state, o.outcome, o.tasks_up, o.tasks_total, o.tasks_dead, o.max_running,
            EXISTS (SELECT FROM scheduling_update AS u WHERE u.job_id = o.id AND u.state = 'open'), o.kind
        FROM scheduling_job AS o WHERE o.tenant_id = w.tenant_id AND o.name = w.name AND o.cell_id = %s
        ORDER BY o.id DESC LIMIT 1) AS j"""


@dataclass(frozen=True, slots=True)
class _Known:
    """A job that the cell has."""

    id: int
    uid: UUID
    job: OtherJob


def bind(cell: Cell, items: Sequence[Item]) -> None:
    """Set the dependencies of the undecided items. Reject an item that names a job which does not exist, which this
    request could not submit, or which can no longer reach its goal.

    `items`: in the order of the request, also those that are already decided. An item without `binds` waits for no job.
    Makes one query, and none if no item has the field `after`.
    """
    undecided = [item for item in items if item.verdict is None]
    wanted = sorted({(item.tenant.id, name) for item in undecided if item.binds for name in item.spec.after})
    known = _known(cell, wanted) if wanted else {}
    coming: dict[tuple[int, str], Item] = {}
    for item in items:
        if item.verdict is None and item.binds and item.spec.after:
            bound, problems = _bound(item, known, coming)
            if problems:
                item.refuse(_together(problems))
            else:
                item.dependencies = tuple(bound)
        if item.is_refused:
            item.rejected_names.add(item.full_name)
            continue
        item.rejected_names.discard(item.full_name)
        if item.verdict is None:
            coming[item.key] = item


def _known(cell: Cell, wanted: Sequence[tuple[int, str]]) -> dict[tuple[int, str], _Known]:
    rows = query(_NAMED, [*map(list, zip(*wanted, strict=True)), cell.id])
    return {(tenant, facts[0]): _Known(job_id, uid, OtherJob(*facts)) for tenant, job_id, uid, *facts in rows}


def _bound(
    item: Item, known: dict[tuple[int, str], _Known], coming: dict[tuple[int, str], Item]
) -> tuple[list[BoundDependency], list[Rejected]]:
    """Return the dependencies of an item, and the problems of names that cannot be bound."""
    bound: list[BoundDependency] = []
    problems: list[Rejected] = []
    for name, goal in sorted(item.spec.after.items()):
        key = (item.tenant.id, name)
        found = known.get(key)
        if (item.spec.tenant, name) in item.rejected_names:
            problems.append(_rejected(name))
        elif key in coming:
            if coming[key].spec.kind == ALLOC_SET:
                problems.append(_alloc_set(name))
            bound.append(BoundDependency(name, goal, coming[key]))
        elif found is None:
            problems.append(_missing(name))
        elif found.job.kind == ALLOC_SET:
            problems.append(_alloc_set(name))
        elif (state := goal_state(JobGoal(goal), found.job)) is GoalState.MISSED:
            problems.append(_missed(name, goal, found.job.outcome))
        else:
            # The archiver may delete the row of an ended job at any time, and its goals are decided.
            on = None if found.job.state == JobState.DEAD else found.id
            bound.append(BoundDependency(name, goal, on, found.uid, reached=state is GoalState.REACHED))
    return bound, problems


def refuse_bound_to_refused(cell: Cell, items: Sequence[Item]) -> None:
    """Reject the items that wait for an item of the same submission which was rejected after `bind`. Release the quota
    of these items. `items`: in the order of the request, and admitted unless they are rejected.
    """
    released = []
    for item in items:
        names = [one.name for one in item.dependencies if isinstance(one.on, Item) and one.on.is_refused]
        if names and item.verdict is None:
            item.refuse(_rejected(names[0]))
            released.append(item.ask())
        if item.is_refused:
            item.rejected_names.add(item.full_name)
    if released:
        admission.release(cell=cell.name, asks=released)


def dependencies_create(entry: journal.JournalEntry, items: Sequence[Item]) -> None:
    """Write the dependencies of new jobs. All jobs of `items` have their rows."""
    rows = []
    for item in items:
        for one in item.dependencies:
            other = one.on.job if isinstance(one.on, Item) else None
            on, uid = (one.on, one.uid) if other is None else (other.id, other.uid)
            assert item.job is not None
            at = entry.time if one.reached else None
            rows.append((item.job.id, one.name, one.goal, on, uid, at, not one.reached))
    if rows:
        copy_rows.values(JobDependency, ("job_id", "name", "goal", "on_id", "on_uid", "reached_at", "open"), rows)


def _together(problems: Sequence[Rejected]) -> Rejected:
    """Return one rejection with all problems. Its code is the code of the first one."""
    detail = "; ".join(problem.detail for problem in problems[:_MOST_TOLD])
    fields = {path: text for problem in problems for path, text in problem.fields.items()}
    return Rejected(problems[0].code, detail, fields=fields, status=problems[0].status)


def _rejected(name: str) -> Rejected:
    detail = f"job {name} of this request was rejected; correct job {name}, and submit both again"
    return invalid(f"after.{name}", detail, MISSING)


def _alloc_set(name: str) -> Rejected:
    detail = f"{name} is an alloc set, which reaches none of these states by itself; name a job, or remove this name"
    return invalid(f"after.{name}", detail, MISSING)


def _missing(name: str) -> Rejected:
    detail = (
        f"the tenant has no live job {name} in this cell, and no ended one outside the archive; submit job {name}"
        " first, or earlier in the same request, or remove this name"
    )
    return invalid(f"after.{name}", detail, MISSING)


def _missed(name: str, goal: str, outcome: str) -> Rejected:
    detail = (
        f"job {name} has ended ({outcome}), so it can no longer be {goal}; submit job {name} again before this job, or"
        " wait for `ended`"
    )
    return invalid(f"after.{name}", detail, MISSED)
