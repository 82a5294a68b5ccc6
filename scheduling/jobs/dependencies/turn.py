"""Releases jobs whose other jobs have reached their goals, and ends jobs that can no longer start (§2.3). The master
does this once per second.

    waiting jobs, by an index ── a goal reached or missed? ──► lock the cell ─► read again ─┬─ all reached ─► release
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
# Open dependencies of waiting jobs, except those whose other job has neither ended nor a task that is up. The last
# condition saves time, and `goal_state` is the rule.
_OPEN = """
    SELECT d.id, d.job_id, d.goal, d.name, o.state, o.outcome, o.tasks_up, o.tasks_total, o.tasks_dead,
        o.max_running
    FROM scheduling_job AS j JOIN scheduling_jobdependency AS d ON d.job_id = j.id
    LEFT JOIN scheduling_job AS o ON o.id = d.on_id
    WHERE j.cell_id = %s AND j.waiting AND j.ended_at IS NULL AND d.reached_at IS NULL
    AND (o.id IS NULL OR o.ended_at IS NOT NULL OR (d.goal = 'running' AND o.tasks_up > 0)) ORDER BY d.id"""


@dataclass(frozen=True, slots=True)
class _Decided:
    """Dependencies that are decided. `reached`: the id of each, with the id of its job. `missed`: why a job cannot
    start, by the id of the job.
    """

    reached: dict[int, int]
    missed: dict[int, str]

    def __bool__(self) -> bool:
        return bool(self.reached or self.missed)


def dependencies_settle(cell_id: int, *, most: int = journal.CHUNK) -> int:
    """Release the waiting jobs of the cell whose other jobs have reached their goals. End at most `most` tasks of
    waiting jobs that can no longer start: they have failed with the cause `dependency`. Return the number of jobs that
    were released or began to end. A later call ends further tasks.

    Locks the cell's row, then the tasks in order of id. If nothing is decided, it makes one query and locks nothing.
    """
    if not _decided(cell_id):
        return 0
    with journal.write(cell_id, system("dependencies")) as entry:
        decided = _decided(cell_id)
        JobDependency.objects.filter(pk__in=decided.reached).update(reached_at=entry.time)
        _end(entry, decided.missed, most)
        released = jobs_release(entry, set(decided.reached.values()) - decided.missed.keys())
    return released + len(decided.missed)


def _decided(cell_id: int) -> _Decided:
    found = _Decided({}, {})
    for identity, job_id, goal, name, state, *facts in query(_OPEN, [cell_id]):
        other = None if state is None else OtherJob(name, state, *facts)
        match goal_state(JobGoal(goal), other):
            case GoalState.REACHED:
                found.reached[identity] = job_id
            case GoalState.MISSED:
                found.missed.setdefault(job_id, _detail(name, goal, other))
        if len(found.reached) + len(found.missed) >= _AT_ONCE:
            break
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
    return f"{CAUSE}: job {name} has ended ({other.outcome}), so it can no longer be {goal}, as this job demands"
