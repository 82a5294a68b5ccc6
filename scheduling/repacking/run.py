"""The run of a re-packing: the master begins steps, and sees when they are done. All progress is in rows, so another
master continues where one ended.

    waiting ─┬─ what changed since the plan? ─► skipped: the machine receives tasks again
             └─ nothing that matters ─► moving ── the drain evicts its tasks, within disruption budgets ─┐
                                                    │                                                     │
                       not within the time, or the machine is down ─► skipped      all have new machines ─► freed
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import structlog
from django.db.models import Case, Count, IntegerField, Q, Value, When
from prometheus_client import Counter

from quota.vocabulary.permissions import system
from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import PENDING, RUNNING
from scheduling.core.placing.queue import Slots
from scheduling.core.repacking.fitting_job import why_not_needed
from scheduling.core.repacking.movable_tasks import MovableTasks
from scheduling.core.repacking.relocation import Relocation
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import split_task_id
from scheduling.core.vocabulary.states import TaskState
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.journal.sql import query
from scheduling.machines.cordons import cordon_open, machines_uncordon
from scheduling.machines.machines import DOWN
from scheduling.models import Departure, Repacking, RepackingStep, Task
from scheduling.models.machines import REMOVED
from scheduling.repacking.limits import JobLimits, limits_of_jobs, rules_for_step
from scheduling.repacking.repackings import spares_use, stop

log = structlog.get_logger(__name__)

# While a task that has left waits for a machine, no further step begins. After so long, the re-packing stops.
STOP_AFTER_S = 60.0
# So many waiting steps are checked in one turn at most.
LOOKED_AT = 20
CHANGED_DRAIN = "an SRE has ended or replaced the drain, or removed the machine; make a new plan to try it again"
_OPEN = (RepackingStep.WAITING, RepackingStep.MOVING)

steps_ended = Counter("borg_repacking_steps_total", "Steps of re-packings that ended", ["outcome"])
tasks_moved = Counter("borg_repacking_moves_total", "Tasks that re-packings let leave their machines", [])
stops = Counter("borg_repacking_stops_total", "Re-packings that stopped because a task found no machine", [])


@dataclass(slots=True)
class _Decisions:
    """What a turn changes. `begun`: (step, ids of the tasks that leave)."""

    begun: list[tuple[RepackingStep, list[int]]] = field(default_factory=list)
    ended: list[tuple[RepackingStep, str, str]] = field(default_factory=list)  # step, state, detail
    stop: str = ""


def run_advance(
    repacking: Repacking, state: CellState, relocation: Relocation, *, patience_s: float, booked: frozenset[int]
) -> bool:
    """Take a turn at a running re-packing. Return whether it changed something.

    `patience_s`: how long a step may last; afterwards it is skipped. `state`: the state of the cell, at most a second
    old. `booked`: the ids of machines on which capacity is booked for a gang. Locks: the cell's row, then the rows of
    machines that receive tasks again.
    """
    steps = _open_steps(repacking)
    decisions = _Decisions()
    moving = [step for step in steps if step.state == RepackingStep.MOVING]
    unplaced = _unplaced(repacking)
    _look_at_moving(repacking, moving, unplaced, decisions, patience_s)
    ended = {step.pk for step, _, _ in decisions.ended}
    moving = [step for step in moving if step.pk not in ended]
    waiting = [step for step in steps if step.state == RepackingStep.WAITING]
    if not decisions.stop and not unplaced and waiting:
        _begin(repacking, moving, waiting, state, relocation, decisions, patience_s, booked)
    return _apply(repacking, decisions, last=not moving and not waiting)


def _unplaced(repacking: Repacking) -> dict[int, dt.datetime]:
    """Return since when each task that the re-packing moved waits for a machine, by task id. Tasks of steps that were
    skipped count for some time too.
    """
    recent = _database_now() - dt.timedelta(seconds=2 * STOP_AFTER_S)
    begun = repacking.steps.filter(
        Q(state=RepackingStep.MOVING) | Q(state=RepackingStep.SKIPPED, ended_at__gt=recent), began_at__isnull=False
    )
    moved = [task for tasks in begun.order_by().values_list("tasks", flat=True) for task in tasks]
    pending = Task.objects.filter(pk__in=moved, state=TaskState.PENDING.value, incarnation__gt=0).order_by()
    return dict(pending.values_list("id", "since"))


def _open_steps(repacking: Repacking) -> list[RepackingStep]:
    """Return the steps that are moving, and the first ones that wait."""
    first = Case(When(state=RepackingStep.MOVING, then=Value(0)), default=Value(1), output_field=IntegerField())
    steps = repacking.steps.filter(state__in=_OPEN).select_related("machine").order_by(first, "position")
    return list(steps[: repacking.at_once + LOOKED_AT])


def _look_at_moving(
    repacking: Repacking,
    moving: Sequence[RepackingStep],
    unplaced: dict[int, dt.datetime],
    decisions: _Decisions,
    patience_s: float,
) -> None:
    """Find out which steps are done, which have to be skipped, and whether the re-packing has to stop. A step is done
    when the tasks that left are up again, or have ended, or have not come up within the patience.
    """
    now = _database_now()
    for task, since in sorted(unplaced.items()):
        if now - since > dt.timedelta(seconds=STOP_AFTER_S):
            job, index = split_task_id(task)
            decisions.stop = f"task {index} of job {job} left its machine and has found no other one"
            break
    if not moving:
        return
    machines = [step.machine_id for step in moving]
    own = set(repacking.drains.filter(machine__in=machines).order_by().values_list("machine_id", flat=True))
    stopping = _counted(Departure.objects.filter(machine__in=machines).order_by().values_list("machine_id"))
    there: dict[int, set[int]] = {machine: set() for machine in machines}
    running = Task.objects.filter(machine__in=machines, state=TaskState.RUNNING.value, alloc__isnull=True).order_by()
    for machine, task in running.values_list("machine_id", "id"):
        there[machine].add(task)
    planned = [task for step in moving for task in step.tasks]
    down = Task.objects.filter(pk__in=planned, up=False).exclude(state=TaskState.DEAD.value).order_by()
    starting = set(down.values_list("id", flat=True))
    for step in moving:
        left = there[step.machine_id]
        if repacking.goal == Repacking.JOB:
            left &= set(step.tasks)
        late = now - (step.began_at or now) > dt.timedelta(seconds=patience_s)
        if step.machine.state == REMOVED:
            decisions.ended.append((step, RepackingStep.SKIPPED, "the machine was removed"))
        elif step.machine_id not in own:
            decisions.ended.append((step, RepackingStep.SKIPPED, CHANGED_DRAIN))
        elif step.machine.state == DOWN:
            decisions.ended.append((step, RepackingStep.SKIPPED, "the machine is down"))
        elif left or stopping.get(step.machine_id):
            if late:
                what = _format_waiting(len(left), stopping.get(step.machine_id, 0))
                decisions.ended.append((step, RepackingStep.SKIPPED, f"{what} after {patience_s:g} s"))
        elif late or not starting & set(step.tasks):
            decisions.ended.append((step, RepackingStep.FREED, ""))


def _begin(
    repacking: Repacking,
    moving: Sequence[RepackingStep],
    waiting: Sequence[RepackingStep],
    state: CellState,
    relocation: Relocation,
    decisions: _Decisions,
    patience_s: float,
    booked: frozenset[int],
) -> None:
    """Choose the steps that begin now, so that at most `at_once` tasks are moving, or one step alone has more. Steps
    that are no longer possible are skipped.
    """
    motion = sum(step.moves for step in moving)
    if motion and motion + waiting[0].moves > repacking.at_once:
        return
    jobs = limits_of_jobs(repacking.cell_id, patience_s=patience_s)
    rules = rules_for_step(repacking, jobs, booked=booked)
    movable = MovableTasks(state, rules)
    slots = state.machines.slot
    closed = np.array([slots[machine] for machine in sorted(booked) if machine in slots], dtype=np.int64)
    drains = repacking.drains.filter(machine__in=[step.machine_id for step in waiting])
    own = set(drains.order_by().values_list("machine_id", flat=True))
    leaving = _slots(state, [task for step in moving for task in step.tasks])
    for step in waiting:
        if motion and motion + step.moves > repacking.at_once:
            break
        here = _tasks_on(repacking, step, movable)
        reason = _changed(step, own, movable, jobs, here)
        if not reason and repacking.goal == Repacking.JOB:
            reason = why_not_needed(
                state, relocation, rules, job_id=repacking.job_id or 0, machine_id=step.machine_id, leaving=here
            )
        if not reason:
            places = relocation.places(np.concatenate((leaving, here)), closed)[len(leaving) :]
            if (places < 0).any():
                reason = f"task {_format_task(state, jobs, here[np.argmin(places)])} fits on no other machine now"
        if reason:
            decisions.ended.append((step, RepackingStep.SKIPPED, reason))
            continue
        decisions.begun.append((step, state.tasks.id[here].tolist()))
        leaving = np.concatenate((leaving, here))
        motion += step.moves


def _tasks_on(repacking: Repacking, step: RepackingStep, movable: MovableTasks) -> Slots:
    """Return the slots of the tasks that leave in a step, as far as they still run on the machine."""
    slot = movable.state.machines.slot.get(step.machine_id)
    if slot is None:
        return np.zeros(0, dtype=np.int64)
    here = movable.on(slot)
    if repacking.goal == Repacking.JOB:
        here = here[np.isin(movable.state.tasks.id[here], step.tasks)]
    return here


def _changed(step: RepackingStep, own: set[int], movable: MovableTasks, jobs: dict[int, JobLimits], here: Slots) -> str:
    """Return what has changed since the plan so that the step must be skipped, or an empty text."""
    state = movable.state
    if step.machine_id not in own or step.machine_id not in state.machines.slot:
        return CHANGED_DRAIN
    if step.machine.state == DOWN:
        return "the machine is down"
    if step.machine_id in movable.rules.kept_machines:
        return "the machine has files of ended allocs or unknown tasks, or its capacity is booked for a gang"
    new = here[~np.isin(state.tasks.id[here], step.tasks)]
    if len(new):
        return f"task {_format_task(state, jobs, new[0])} was placed there after the plan"
    kept = here[movable.kept[here]]
    if len(kept):
        job = state.tasks.job_at[state.tasks.job[kept[0]]]
        why = jobs[job.id].kept if job is not None and job.id in jobs else ""
        return f"task {_format_task(state, jobs, kept[0])} must not move now: {why or 'its job has changed'}"
    return ""


def _apply(repacking: Repacking, decisions: _Decisions, *, last: bool) -> bool:
    """Store the decisions of a turn. `last`: no step was open before this turn. Return whether something changed."""
    if not (decisions.begun or decisions.ended or decisions.stop or last):
        return False
    with journal.write(repacking.cell_id, system("repacking")) as entry:
        row = Repacking.objects.select_for_update().filter(pk=repacking.pk, state=Repacking.RUNNING).first()
        if row is None:
            return False  # a person has stopped it meanwhile
        for step, tasks in decisions.begun:
            _store_begin(entry, row, step, tasks)
        ended = [one for one in decisions.ended if _store_end(entry, *one)]
        returned = [
            step.machine_id for step, state, _ in ended if state == RepackingStep.SKIPPED or row.goal == Repacking.JOB
        ]
        if returned:
            machines_uncordon(entry, row, returned, f"re-packing {row.pk} has ended here")
        if decisions.stop:
            stop(entry, row, decisions.stop)
            stops.inc()
            log.error("a re-packing stopped", repacking=row.pk, reason=decisions.stop)
            return True
        spares_use(entry, row, len(returned))
        if not row.steps.filter(state__in=_OPEN).exists():
            _store_done(entry, row)
    return True


def _store_begin(entry: JournalEntry, row: Repacking, step: RepackingStep, tasks: list[int]) -> None:
    waiting = RepackingStep.objects.filter(pk=step.pk, state=RepackingStep.WAITING)
    if not waiting.update(state=RepackingStep.MOVING, began_at=entry.time, tasks=tasks):
        return  # another master has begun or ended it
    only = tasks if row.goal == Repacking.JOB else None
    cordon_open(row, step.machine_id, only=only, tasks=step.moves)
    tasks_moved.inc(len(tasks))
    entry.append(
        events.RepackingSet(
            repacking=row.pk, state=row.state, machine_id=step.machine_id, step=RepackingStep.MOVING, tasks=len(tasks)
        )
    )


def _store_end(entry: JournalEntry, step: RepackingStep, state: str, detail: str) -> bool:
    """End a step. Return False if another master has changed it since it was read."""
    known = RepackingStep.objects.filter(pk=step.pk, state=step.state)
    if not known.update(state=state, detail=detail[:500], ended_at=entry.time):
        return False
    steps_ended.labels(state).inc()
    entry.append(
        events.RepackingSet(
            repacking=step.repacking_id,
            state=Repacking.RUNNING,
            machine_id=step.machine_id,
            step=state,
            detail=detail[:500],
        )
    )
    return True


def _store_done(entry: JournalEntry, row: Repacking) -> None:
    counts = _counted(row.steps.order_by().values_list("state"))
    freed, skipped = counts.get(RepackingStep.FREED, 0), counts.get(RepackingStep.SKIPPED, 0)
    if row.goal == Repacking.JOB:
        row.detail = "the tasks have moved, and the scheduler tries the job next" if freed else "the step was skipped"
    else:
        row.detail = f"{freed} machines are free" + (f"; {skipped} were skipped" if skipped else "")
    row.state, row.ended_at = Repacking.DONE, entry.time
    row.save(update_fields=["state", "detail", "ended_at"])
    entry.append(events.RepackingSet(repacking=row.pk, state=row.state, detail=row.detail))


def _slots(state: CellState, task_ids: Iterable[int]) -> Slots:
    """Return the slots of those tasks that run or wait for a machine."""
    found = []
    for identity in task_ids:
        job_id, index = split_task_id(identity)
        job = state.tasks.jobs.get(job_id)
        if job is not None and index < len(job.tasks) and job.tasks[index] >= 0:
            found.append(int(job.tasks[index]))
    slots = np.array(found, dtype=np.int64)
    machine = state.tasks.machine[slots]
    there = (machine >= 0) & (state.machines.status[machine] != 0)
    draining = there & ~state.machines.up[machine]
    running = (state.tasks.state[slots] == RUNNING) & draining
    result: Slots = slots[running | (state.tasks.state[slots] == PENDING)]
    return result


def _format_task(state: CellState, jobs: dict[int, JobLimits], slot: int) -> str:
    job, index = split_task_id(int(state.tasks.id[slot]))
    return f"{jobs[job].name if job in jobs else job}/{index}"


def _format_waiting(left: int, stopping: int) -> str:
    if left:
        return f"{left} tasks still run there, for example because disruption budgets were used up,"
    return f"{stopping} tasks were still stopping"


def _counted(rows: object) -> dict[object, int]:
    return dict(rows.annotate(number=Count("pk")))  # type: ignore[attr-defined]


def _database_now() -> dt.datetime:
    return query("SELECT now()", [])[0][0]  # type: ignore[no-any-return]
