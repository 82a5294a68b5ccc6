"""The run of a re-packing: the master begins steps, and sees when they are done. All progress is in rows, so another
master continues where one ended.

    waiting ─┬─ what changed since the plan? ─► skipped: the machine receives tasks again
             └─ nothing that matters ─► moving ── the drain evicts its tasks, within disruption budgets ─┐
                                                    │                                                     │
                       not within the time, or the machine is down ─► skipped      all have new machines ─► freed
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

import numpy as np
import structlog
from django.db.models import Case, IntegerField, Q, Value, When
from prometheus_client import Counter

from quota.vocabulary.permissions import system
from scheduling.core.cell.machines import UP
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
from scheduling.machines.cordons import cordon_open, machines_uncordon
from scheduling.machines.machines import DOWN, DRAINING
from scheduling.models import Repacking, RepackingStep, Task
from scheduling.repacking.limits import JobLimits, limits_of_jobs, rules_for_step
from scheduling.repacking.moving_steps import CHANGED_DRAIN, Decisions, counted, first_part, look_at_moving, unplaced
from scheduling.repacking.repackings import spares_use, stop

log = structlog.get_logger(__name__)

# So many waiting steps are checked in one turn at most.
LOOKED_AT = 20
_OPEN = (RepackingStep.WAITING, RepackingStep.MOVING)
_Leaving = list[tuple[int, int | None, bool]]

steps_ended = Counter("borg_repacking_steps_total", "Steps of re-packings that ended", ["outcome"])
tasks_moved = Counter("borg_repacking_moves_total", "Tasks that re-packings moved away from their machines", [])
stops = Counter("borg_repacking_stops_total", "Re-packings that stopped because a task found no machine", [])


def run_advance(
    repacking: Repacking, state: CellState, relocation: Relocation, *, patience_s: float, booked: frozenset[int]
) -> bool:
    """Take a turn at a running re-packing. Return whether it changed something.

    `patience_s`: how long a step may last; afterwards it is skipped. `state`: the state of the cell, at most a second
    old. `booked`: the ids of machines on which capacity is booked for a gang. Locks: the cell's row, then the rows of
    machines that receive tasks again.
    """
    steps = _open_steps(repacking)
    decisions = Decisions()
    moving = [step for step in steps if step.state == RepackingStep.MOVING]
    lost = unplaced(repacking)
    look_at_moving(repacking, moving, lost, decisions, patience_s)
    ended = {step.pk for step, _, _ in decisions.ended}
    moving = [step for step in moving if step.pk not in ended]
    waiting = [step for step in steps if step.state == RepackingStep.WAITING]
    if not decisions.stop and not lost and waiting:
        _begin(repacking, moving, waiting, state, relocation, decisions, patience_s, booked)
    return _apply(repacking, decisions, last=not moving and not waiting)


def _open_steps(repacking: Repacking) -> list[RepackingStep]:
    """Return the steps that are moving, and the first ones that wait."""
    first = Case(When(state=RepackingStep.MOVING, then=Value(0)), default=Value(1), output_field=IntegerField())
    steps = repacking.steps.filter(state__in=_OPEN).select_related("machine").order_by(first, "position")
    return list(steps[: repacking.at_once + LOOKED_AT])


def _begin(
    repacking: Repacking,
    moving: Sequence[RepackingStep],
    waiting: Sequence[RepackingStep],
    state: CellState,
    relocation: Relocation,
    decisions: Decisions,
    patience_s: float,
    booked: frozenset[int],
) -> None:
    """Choose the steps that begin now, so that at most `at_once` tasks are moving. A step with more tasks begins alone,
    and they leave in parts. Steps that are no longer possible are skipped.
    """
    motion = sum(step.moves for step in moving)
    if motion and motion + waiting[0].moves > repacking.at_once:
        return
    if _is_behind(repacking, state):
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
        step.moves = movable.disrupted(here).total()
        if motion and motion + step.moves > repacking.at_once:
            break  # tasks were placed inside its allocs after the plan
        decisions.begun.append((step, state.tasks.id[here].tolist()))
        leaving = np.concatenate((leaving, here))
        motion += step.moves


def _is_behind(repacking: Repacking, state: CellState) -> bool:
    """Return whether the state does not contain all cordons of the re-packing yet. Tasks could then seem to fit on
    machines that they leave.
    """
    slots, status = state.machines.slot, state.machines.status
    cordoned = repacking.drains.filter(machine__state=DRAINING).order_by().values_list("machine_id", flat=True)
    return any(machine in slots and status[slots[machine]] == UP for machine in cordoned)


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
    return _beyond_rate(movable, jobs, here)


def _beyond_rate(movable: MovableTasks, jobs: dict[int, JobLimits], here: Slots) -> str:
    """Return why the tasks `here` exceed the rate of disruptions of their jobs, or an empty text. Without this check,
    the step would wait for the window, half done.
    """
    slots, numbers = np.unique(movable.state.tasks.job[here], return_counts=True)
    for slot, number in zip(slots.tolist(), numbers.tolist(), strict=True):
        job = movable.state.tasks.job_at[slot]
        limits = jobs.get(job.id) if job is not None else None
        rate = limits.budget.rate if limits is not None else None
        if limits is not None and rate is not None and rate.left < number:
            return (
                f"{number} tasks of job {limits.name} would move, but the number of disruptions that its budget still"
                f" allows now is {rate.left}"
            )
    return ""


def _apply(repacking: Repacking, decisions: Decisions, *, last: bool) -> bool:
    """Store the decisions of a turn. `last`: no step was open before this turn. Return whether something changed."""
    if not (decisions.begun or decisions.opened or decisions.ended or decisions.stop or last):
        return False
    with journal.write(repacking.cell_id, system("repacking")) as entry:
        row = Repacking.objects.select_for_update().filter(pk=repacking.pk, state=Repacking.RUNNING).first()
        if row is None:
            return False  # a person has stopped it meanwhile
        there = _with_inner_tasks([task for _, tasks in decisions.begun for task in tasks])
        for step, tasks in decisions.begun:
            _store_begin(entry, row, step, tasks, there)
        for step, only in decisions.opened:
            cordon_open(row, step.machine_id, only=only, tasks=step.moves)
            entry.append(_moving(row, step, detail="further tasks leave"))
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


def _with_inner_tasks(task_ids: Sequence[int]) -> _Leaving:
    """Return (id, alloc, up) of the tasks, and of the tasks inside them, as far as they run."""
    leaving = Task.objects.filter(Q(pk__in=task_ids) | Q(alloc__in=task_ids), state=TaskState.RUNNING.value)
    return list(leaving.order_by("id").values_list("id", "alloc_id", "up")) if task_ids else []


def _store_begin(entry: JournalEntry, row: Repacking, step: RepackingStep, tasks: list[int], there: _Leaving) -> None:
    """Begin a step. `tasks`: the ids of the tasks that leave. `there`: as `_with_inner_tasks` returns."""
    own = set(tasks)
    leaving = [(task, alloc, up) for task, alloc, up in there if task in own or alloc in own]
    step.moves = len(leaving)
    waiting = RepackingStep.objects.filter(pk=step.pk, state=RepackingStep.WAITING)
    if not waiting.update(
        state=RepackingStep.MOVING,
        began_at=entry.time,
        tasks=[task for task, _, _ in leaving],
        awaited=[task for task, _, up in leaving if up],
        moves=step.moves,
    ):
        return  # another master has begun or ended it
    inside = collections.Counter(alloc for _, alloc, _ in leaving if alloc is not None)
    part = first_part(tasks, inside, row.at_once)
    everything = part == tasks and row.goal == Repacking.MACHINES
    cordon_open(row, step.machine_id, only=None if everything else part, tasks=step.moves)
    tasks_moved.inc(step.moves)
    entry.append(_moving(row, step))


def _moving(row: Repacking, step: RepackingStep, *, detail: str = "") -> events.RepackingSet:
    return events.RepackingSet(
        repacking=row.pk,
        state=row.state,
        machine_id=step.machine_id,
        step=RepackingStep.MOVING,
        tasks=step.moves,
        detail=detail,
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
    counts = counted(row.steps.order_by().values_list("state"))
    freed, skipped = counts.get(RepackingStep.FREED, 0), counts.get(RepackingStep.SKIPPED, 0)
    if row.goal == Repacking.JOB:
        why = row.steps.filter(state=RepackingStep.SKIPPED).values_list("detail", flat=True).first() or ""
        row.detail = "the tasks have moved, and the scheduler tries the job next" if freed else f"skipped: {why}"[:500]
    else:
        row.detail = "1 machine is free" if freed == 1 else f"{freed} machines are free"
        row.detail += f"; {skipped} skipped" if skipped else ""
    row.state, row.ended_at = Repacking.DONE, entry.time
    row.save(update_fields=["state", "detail", "ended_at"])
    entry.append(events.RepackingSet(repacking=row.pk, state=row.state, detail=row.detail))


def _slots(state: CellState, task_ids: Iterable[int]) -> Slots:
    """Return the slots of those tasks that run or wait for a machine."""
    found = []
    for identity in task_ids:
        job_id, index = split_task_id(identity)
        job = state.tasks.jobs.get(job_id)
        # Tasks of jobs in alloc sets need no machine of their own.
        if job is not None and not job.alloc_set and index < len(job.tasks) and job.tasks[index] >= 0:
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
