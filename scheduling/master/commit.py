"""Write a plan to the database, or the part of the plan that is still valid (§3.4, optimistic concurrency).

    Plan made from revision R ──► lock the cell ──► read the changes since R ──► apply the valid part, reject the rest

The scheduler made the plan from revision R. The journal shows what has changed since then. The commit rejects each
assignment whose machine, job or task has changed, and the next pass considers the task again. All other assignments
are still valid. So any number of schedulers can work on one cell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from django.db.models import Q

from quota.vocabulary.permissions import Principal
from scheduling.allocs import alloc_sets
from scheduling.brakes import stored_brakes
from scheduling.core.placing.partial_plan import split_broken
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Assignment, Plan
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.states import JobState
from scheduling.core.vocabulary.task_events import preemptions, victims_of
from scheduling.journal import journal
from scheduling.journal.sql import query
from scheduling.models import Job, Task
from scheduling.tasks import counters, transitions

# News that can break a placement on the machine it is about. What only frees resources is not among them.
_BREAKS_MACHINE = ("task.placed", "machine.set", "machine.state", "machine.removed")
# News about a task, or all tasks of a job, that change what it needs, or what it holds where it runs.
_BREAKS_TASK = ("task.updated", "task.placed", "task.ended")
_BREAKS_JOB = ("job.changed", "job.ended")
_BREAKS_MANY = ("reservations.set",)
# News that can break any placement.
_BREAKS_ALL = "cell.pool"
# News that uses up disruption budgets of the job it is about.
_DISRUPTS = "task.evicted"
# The first jobs of a large plan, perhaps small ones of high priority, need not wait until all of it is written.
_URGENT, _MANY = 100, 500


@dataclass(slots=True)
class CommitOutcome:
    """The result of a commit. `applied`: the assignments that were written. `refused`: the assignments that were no
    longer valid. Every assignment of the plan is in one of these two lists.

    `records`: the journal records that the commit wrote, by revision. So the master need not read them from the
    journal.
    """

    applied: list[Assignment] = field(default_factory=list)
    refused: list[Assignment] = field(default_factory=list)
    records: dict[int, list[journal.JournalRecord]] = field(default_factory=dict)

    @property
    def revisions(self) -> list[int]:
        return list(self.records)


def commit(cell_id: int, plan: Plan, *, principal: Principal, chunk: int = journal.CHUNK) -> CommitOutcome:
    """Write the plan's assignments, about `chunk` assignments per revision. All tasks of a gang are written under one
    revision, or none of them is written.

    Locks: the cell's row, for one chunk at a time; then the tasks that change. Preempted tasks are locked first, in
    order of id.
    """
    outcome = CommitOutcome()
    gangs = _gangs(cell_id) if plan.assignments else frozenset()
    unfreed: set[int] = set()
    for part in _parts(plan.assignments, chunk, gangs):
        with journal.write(cell_id, principal) as entry:
            victims = sum(len(a.victims) for a in part)
            braked = not stored_brakes.stops_pass(entry, victims, what="preemption")
            holds, broken = _recheck(
                cell_id,
                part,
                since=plan.revision,
                own=outcome.revisions,
                gangs=gangs,
                unfreed=unfreed,
                braked=braked,
                bounded=plan.bounded,
            )
            applied = _apply(entry, holds)
        if braked:
            stored_brakes.stops_wanted(cell_id, victims)
        outcome.applied += applied
        done = {(a.job_id, a.index) for a in applied}
        outcome.refused += broken + [a for a in holds if (a.job_id, a.index) not in done]
        if entry:
            outcome.records[entry.revision] = entry.records()
    return outcome


def _gangs(cell_id: int) -> frozenset[int]:
    """Return the ids of the live jobs that are gangs: their tasks are placed all together or not at all."""
    rows = Job.objects.filter(cell_id=cell_id, gang=True).exclude(state=JobState.DEAD.value)
    return frozenset(rows.order_by().values_list("id", flat=True))


def _parts(assignments: Sequence[Assignment], chunk: int, gangs: frozenset[int]) -> Iterator[Sequence[Assignment]]:
    """Yield the assignments in order, in chunks of about `chunk` assignments. The first chunk of a long plan is small,
    so that urgent tasks start sooner. A chunk may be longer, because a gang is never split.
    """
    last = {a.job_id: position for position, a in enumerate(assignments) if a.job_id in gangs}
    first = 0
    while first < len(assignments):
        end = seen = first
        urgent = first == 0 and len(assignments) >= _MANY
        reach = min(first + (min(chunk, _URGENT) if urgent else chunk), len(assignments))
        while end < reach:
            end = reach
            reach = max([end, *[last[a.job_id] + 1 for a in assignments[seen:end] if a.job_id in last]])
            seen = end
        yield assignments[first:end]
        first = end


def _recheck(
    cell_id: int,
    assignments: Sequence[Assignment],
    *,
    since: int,
    own: list[int],
    gangs: frozenset[int],
    unfreed: set[int],
    braked: bool = False,
    bounded: frozenset[int] = frozenset(),
) -> tuple[list[Assignment], list[Assignment]]:
    """Return (assignments that are still valid, all other assignments). If one task of a gang is not valid, none of
    its tasks is.

    `since`: the revision from which the plan was made. `own`: later revisions that this commit wrote itself.
    `unfreed`: ids of machines on which tasks stay, because the commit rejected the assignment that would preempt them.
    Other assignments to these machines are rejected too, except into allocs, because there may be too little capacity.
    The function adds further such machines to `unfreed`. `braked`: a brake stops preemption now
    (`scheduling.policy.brake_rules`), so assignments that preempt tasks are not valid. `bounded`: as in `Plan`.
    Assignments beyond the `max_running` of these jobs are not valid.
    """
    touched = _touched(cell_id, since, own)
    inside = {(a.alloc, a.machine_id) for a in assignments if a.alloc}
    left = inside - alloc_sets.still_there(inside)
    may_start = _may_start({a.job_id for a in assignments} & bounded)
    if not touched and not left and not unfreed and not braked and not may_start:
        return list(assignments), []
    victims = {task_id(*victim) for a in assignments for victim in a.victims}
    inner = _inner_jobs(victims, touched.disrupted)
    jobs = {job for a in assignments for job, _ in a.victims}.union(*inner.values())
    limited = _with_budgets(touched.disrupted & jobs)
    broken = {
        position
        for position, a in enumerate(assignments)
        if touched.breaks(a)
        or (braked and a.victims)
        or (a.alloc and (a.alloc, a.machine_id) in left)
        or any(job in limited or inner.get(task_id(job, index), set()) & limited for job, index in a.victims)
    }
    for position, a in enumerate(assignments):
        if a.job_id in may_start and position not in broken:
            may_start[a.job_id] -= 1
            if may_start[a.job_id] < 0:
                broken.add(position)
    return split_broken(assignments, broken, gangs=gangs, unfreed=unfreed)


def _may_start(jobs: set[int]) -> dict[int, int]:
    """Return how many further tasks of each of the jobs may be placed, by job id. Jobs without `max_running` are left
    out.
    """
    if not jobs:
        return {}
    rows = Job.objects.filter(pk__in=jobs, max_running__gt=0).order_by()
    return {job: most - running for job, most, running in rows.values_list("id", "max_running", "tasks_running")}


def _inner_jobs(victims: Collection[int], jobs: set[int]) -> dict[int, set[int]]:
    """Return which of `jobs` have tasks inside those of `victims` (task ids) that are allocs, by task id of
    the alloc.
    """
    result: dict[int, set[int]] = {}
    if victims and jobs:
        rows = Task.objects.filter(alloc_id__in=victims, job_id__in=jobs).order_by().values_list("alloc_id", "job_id")
        for alloc, job in rows:
            result.setdefault(alloc, set()).add(job)
    return result


def _with_budgets(jobs: set[int]) -> set[int]:
    """Return those of `jobs` that have a disruption budget. Assignments that evict tasks of these jobs are not
    committed, because other evictions may have used up the budget since the plan was made.
    """
    if not jobs:
        return set()
    rows = Job.objects.filter(Q(disruption_budget__gt=0) | Q(max_disruptions__gt=0), pk__in=jobs)
    return set(rows.order_by().values_list("id", flat=True))


@dataclass(slots=True)
class _Touched:
    machines: set[int] = field(default_factory=set)
    jobs: set[int] = field(default_factory=set)
    tasks: set[tuple[int, int]] = field(default_factory=set)
    disrupted: set[int] = field(default_factory=set)  # jobs of which a task was evicted
    everything: bool = False  # a machine pool was changed

    def __bool__(self) -> bool:
        return bool(self.machines or self.jobs or self.tasks or self.disrupted or self.everything)

    def breaks(self, assignment: Assignment) -> bool:
        return (
            self.everything
            or assignment.machine_id in self.machines
            or assignment.job_id in self.jobs
            or (assignment.job_id, assignment.index) in self.tasks
        )


def _touched(cell_id: int, since: int, own: list[int]) -> _Touched:
    touched = _Touched()
    rows = query(
        "SELECT kind, job_id, task_index, machine_id, CASE WHEN kind = ANY(%s) THEN data::text END"
        " FROM scheduling_event WHERE cell_id = %s AND revision > %s AND NOT revision = ANY(%s)"
        " AND kind = ANY(%s)",
        [
            list(_BREAKS_MANY),
            cell_id,
            since,
            own,
            sorted({*_BREAKS_MACHINE, *_BREAKS_TASK, *_BREAKS_JOB, *_BREAKS_MANY, _BREAKS_ALL, _DISRUPTS}),
        ],
    )
    if not rows:
        return touched
    for kind, job_id, index, machine_id, many in rows:
        if kind in _BREAKS_MACHINE:
            touched.machines.add(machine_id)
        if kind in _BREAKS_TASK:
            touched.tasks.add((job_id, index))
        if kind in _BREAKS_JOB:
            touched.jobs.add(job_id)
        if kind == _BREAKS_ALL:
            touched.everything = True
        if kind == _DISRUPTS:
            touched.disrupted.add(job_id)
        if kind in _BREAKS_MANY:
            event = events.decode(many)
            assert isinstance(event, events.ReservationsSet)
            touched.tasks.update(event.tasks)
    # What a touched task holds where it runs has changed too.
    touched.machines.update(
        Task.objects.filter(pk__in=[task_id(*pair) for pair in touched.tasks], machine__isnull=False)
        .order_by()
        .values_list("machine_id", flat=True)
    )
    touched.machines.update(
        Task.objects.filter(job_id__in=touched.jobs, machine__isnull=False)
        .order_by()
        .values_list("machine_id", flat=True)
    )
    return touched


def _apply(entry: journal.JournalEntry, assignments: Sequence[Assignment]) -> list[Assignment]:
    claims = victims_of(assignments)
    if claims:
        running = {
            row[0]: row[1:]
            for row in Task.objects.filter(pk__in=claims, state=counters.RUNNING).values_list(
                "id", "machine_id", "incarnation"
            )
        }
        transitions.tasks_evict(entry, preemptions(claims, running, _delays({a.job_id for a in claims.values()})))
    return transitions.tasks_place(entry, assignments)


def _delays(job_ids: set[int]) -> dict[int, float]:
    """Return the delay bound of those jobs that have one (§2.3), in seconds, by job id."""
    return dict(
        query(
            "SELECT j.id, (s.spec->>'preemption_delay_s')::float8 FROM scheduling_job AS j JOIN scheduling_jobspec AS s"
            " ON s.job_id = j.id AND s.version = j.spec_version"
            " WHERE j.id = ANY(%s) AND s.spec->>'preemption_delay_s' IS NOT NULL",
            [sorted(job_ids)],
        )
    )
