"""Binds the names in `after` of submitted jobs to jobs, while the cell's row is locked (§2.3).

    after: {load: succeeded} ─► the live job `load`, else the last one that had the name ─► its id, in a JobDependency

A job may also name a job that comes earlier in the same submission. Later jobs of the same name do not matter, so there
are no cycles. The number of queries does not depend on the number of jobs.
"""

from __future__ import annotations

from collections.abc import Sequence

from quota.admission import admission
from quota.vocabulary.errors import Rejected, invalid
from scheduling.core.vocabulary.states import JobGoal
from scheduling.jobs.dependencies.rules import GoalState, OtherJob, goal_state
from scheduling.jobs.submission.outcomes import BoundDependency, Item
from scheduling.journal import copy_rows, journal
from scheduling.journal.sql import query
from scheduling.models import Cell, JobDependency

# Problems in the text of a rejection; its `fields` have all of them.
_MOST_TOLD = 5
MISSING, MISSED = "no-such-dependency", "dependency-missed"
# Of jobs with the same name the live one, else the last one.
_NAMED = """
    SELECT DISTINCT ON (j.tenant_id, j.name) j.tenant_id, j.id, j.uid, j.name, j.state, j.outcome, j.tasks_up,
        j.tasks_total, j.tasks_dead, j.max_running
    FROM scheduling_job AS j JOIN unnest(%s::bigint[], %s::text[]) AS w(tenant_id, name)
        ON j.tenant_id = w.tenant_id AND j.name = w.name
    WHERE j.cell_id = %s ORDER BY j.tenant_id, j.name, (j.state = 'dead'), j.id DESC"""


def bind(cell: Cell, items: Sequence[Item], *, lenient: bool = False) -> None:
    """Set the dependencies of the items. Reject an item that names a job which does not exist, or which can no longer
    reach its goal. `lenient`: leave such a name out instead, because the job may have started already (a restore).

    Makes one query, and none if no item has the field `after`.
    """
    wanted = sorted({(item.tenant.id, name) for item in items for name in item.spec.after})
    if not wanted:
        return
    known = {}
    for tenant, job_id, uid, *facts in query(_NAMED, [*map(list, zip(*wanted, strict=True)), cell.id]):
        known[tenant, facts[0]] = (job_id, uid, OtherJob(*facts))
    coming: dict[tuple[int, str], Item] = {}
    for item in items:
        bound: list[BoundDependency] = []
        problems: list[Rejected] = []
        for name, goal in sorted(item.spec.after.items()):
            key = (item.tenant.id, name)
            if key in coming:
                bound.append(BoundDependency(name, goal, coming[key]))
            elif key not in known:
                problems.append(_missing(name))
            else:
                job_id, uid, other = known[key]
                state = goal_state(JobGoal(goal), other)
                if state is GoalState.MISSED:
                    problems.append(_missed(name, goal, other.outcome))
                else:
                    bound.append(BoundDependency(name, goal, job_id, uid, reached=state is GoalState.REACHED))
        if problems and not lenient:
            item.refuse(_together(problems))
        else:
            item.dependencies = tuple(bound)
            coming[item.key] = item


def refuse_bound_to_refused(cell: Cell, items: Sequence[Item]) -> None:
    """Reject the items that wait for an item of the same submission which was rejected after `bind`. Release the quota
    of these items. `items`: in the order of the submission, and admitted unless they are rejected.
    """
    released = []
    for item in items:
        names = [one.name for one in item.dependencies if isinstance(one.on, Item) and one.on.verdict is not None]
        if names and item.verdict is None:
            item.refuse(_missing(names[0]))
            released.append(item.ask())
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
            rows.append((item.job.id, one.name, one.goal, on, uid, entry.time if one.reached else None))
    if rows:
        copy_rows.values(JobDependency, ("job_id", "name", "goal", "on_id", "on_uid", "reached_at"), rows)


def _together(problems: Sequence[Rejected]) -> Rejected:
    """Return one rejection with all problems. Its code is the code of the first one."""
    detail = "; ".join(problem.detail for problem in problems[:_MOST_TOLD])
    fields = {path: text for problem in problems for path, text in problem.fields.items()}
    return Rejected(problems[0].code, detail, fields=fields, status=problems[0].status)


def _missing(name: str) -> Rejected:
    detail = (
        f"the tenant has no job {name} in this cell; submit job {name} first, or earlier in the same request, or remove"
        " this name"
    )
    return invalid(f"after.{name}", detail, MISSING)


def _missed(name: str, goal: str, outcome: str) -> Rejected:
    detail = (
        f"job {name} has ended ({outcome}), so it can no longer be {goal}; submit job {name} again before this job, or"
        " wait for `ended`"
    )
    return invalid(f"after.{name}", detail, MISSED)
