"""Releases jobs whose other jobs have reached their goals, and ends jobs that can no longer start (§2.3). The master
does this once per second.

    awaited jobs, by an index ── a goal reached or missed? ──► lock the cell ─► read again ─┬─ all reached ─► release
                                                                                            └─ one missed ──► end

The second read is under the cell's lock, and releases and ends are events of the journal. So each job is released or
ended once, also if a master fails or two masters work at the same time.
"""

from __future__ import annotations

from dataclasses import dataclass

from quota.vocabulary.permissions import system
from scheduling.core.vocabulary.states import JobGoal, TaskState
from scheduling.core.vocabulary.task_events import Ending
from scheduling.jobs import updates
from scheduling.jobs.dependencies.release import jobs_release
from scheduling.jobs.dependencies.rules import GoalState, OtherJob, goal_state
from scheduling.journal import journal
from scheduling.journal.sql import query
from scheduling.models import JobDependency, Task
from scheduling.tasks import counters, transitions

CAUSE = "dependency"
# Dependencies of one transaction. The next second handles more.
_AT_ONCE = 5_000
# The open dependencies that are decided. The statement reads each job that others wait for once, by the index of open
# dependencies, and then only the dependencies on jobs that may have reached or missed a goal. So its work does not
# depend on how many jobs wait. `goal_state` has the same rule, and decides.
_DECIDED = """
    WITH RECURSIVE awaited AS (
        (SELECT on_id FROM scheduling_jobdependency WHERE open AND on_id IS NOT NULL ORDER BY on_id LIMIT 1)
        UNION ALL
        SELECT (SELECT d.on_id FROM scheduling_jobdependency AS d WHERE d.open AND d.on_id > a.on_id
                ORDER BY d.on_id LIMIT 1)
        FROM awaited AS a WHERE a.on_id IS NOT NULL
    ), other AS (
        SELECT o.id, o.kind, o.state, o.outcome, o.tasks_up, o.tasks_total, o.tasks_dead, o.max_running,
            EXISTS (SELECT FROM scheduling_update AS u WHERE u.job_id = o.id AND u.state = 'open') AS updating
        FROM awaited AS a JOIN scheduling_job AS o ON o.id = a.on_id
        WHERE o.cell_id = %(cell)s AND (o.ended_at IS NOT NULL OR o.tasks_up > 0)
    ), decided AS (
        SELECT d.id, d.job_id, d.goal, d.name, o.state, o.outcome, o.tasks_up, o.tasks_total, o.tasks_dead,
            o.max_running, o.updating, o.kind
        FROM other AS o JOIN scheduling_jobdependency AS d ON d.on_id = o.id AND d.open
        WHERE o.state = 'dead'
        UNION ALL
        SELECT d.id, d.job_id, d.goal, d.name, o.state, o.outcome, o.tasks_up, o.tasks_total, o.tasks_dead,
            o.max_running, o.updating, o.kind
        FROM other AS o JOIN scheduling_jobdependency AS d ON d.on_id = o.id AND d.open AND d.goal = 'running'
        WHERE o.state <> 'dead' AND NOT o.updating AND o.tasks_up >= least(
            o.tasks_total - o.tasks_dead, coalesce(nullif(o.max_running, 0), o.tasks_total))
        UNION ALL
        SELECT d.id, d.job_id, d.goal, d.name, NULL, '', 0, 0, 0, 0, false, ''
        FROM scheduling_jobdependency AS d WHERE d.open AND d.on_id IS NULL
    )
    SELECT d.* FROM decided AS d JOIN scheduling_job AS j ON j.id = d.job_id
    WHERE j.cell_id = %(cell)s AND j.waiting AND j.ended_at IS NULL
    AND (%(ids)s::bigint[] IS NULL OR d.id = ANY(%(ids)s::bigint[]))
    LIMIT %(most)s"""


@dataclass(frozen=True, slots=True)
class _Decided:
    """Dependencies that are decided, by their `ids`. `reached`: the id of each, with the id of its job. `missed`: why a
    job cannot start, by the id of the job.
    """

    ids: list[int]
    reached: dict[int, int]
    missed: dict[int, str]

    def __bool__(self) -> bool:
        return bool(self.ids)


def dependencies_settle(cell_id: int, *, most: int = journal.CHUNK) -> int:
    """Release the waiting jobs of the cell whose other jobs have reached their goals. End at most `most` tasks of
    waiting jobs that can no longer start: they have failed with the cause `dependency`. Return the number of jobs that
    were released or began to end. A later call ends further tasks.

    Locks the cell's row, then the tasks in order of id. If nothing is decided, it makes one query and locks nothing.
    """
    if not (found := _decided(cell_id)):
        return 0
    with journal.write(cell_id, system("dependencies")) as entry:
        decided = _decided(cell_id, among=found.ids)
        JobDependency.objects.filter(pk__in=decided.reached).update(reached_at=entry.time, open=False)
        _end(entry, decided.missed, most)
        released = jobs_release(entry, set(decided.reached.values()) - decided.missed.keys())
    return released + len(decided.missed)


def _decided(cell_id: int, *, among: list[int] | None = None) -> _Decided:
    """Return decided dependencies of the cell. `among`: look only at these ids, in the second read under the lock."""
    found = _Decided([], {}, {})
    for identity, job_id, goal, name, state, *facts in query(
        _DECIDED, {"cell": cell_id, "ids": among, "most": _AT_ONCE}
    ):
        other = None if state is None else OtherJob(name, state, *facts)
        decided = goal_state(JobGoal(goal), other)
        if decided is GoalState.OPEN:
            continue
        found.ids.append(identity)
        if decided is GoalState.REACHED:
            found.reached[identity] = job_id
        else:
            found.missed.setdefault(job_id, _detail(name, goal, other))
    return found


def _end(entry: journal.JournalEntry, missed: dict[int, str], most: int) -> None:
    if not missed:
        return
    living = Task.objects.filter(job_id__in=missed).exclude(state=TaskState.DEAD.value).order_by("id")
    tasks = list(living.values_list("id", "job_id")[:most])
    updates.updates_close(entry, list(missed), "the job can no longer start")
    endings = [Ending(task, "failed", cause=CAUSE, detail=missed[job_id]) for task, job_id in tasks]
    transitions.tasks_end(entry, endings)
    counters.jobs_end_if_over(entry, list(missed))


def _detail(name: str, goal: str, other: OtherJob | None) -> str:
    if other is None:
        return f"{CAUSE}: job {name} was deleted before it was known whether it had reached its state ({goal})"
    return f"{CAUSE}: job {name} has ended ({other.outcome}), so it can no longer be {goal}, for which this job waits"
