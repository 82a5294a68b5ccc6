"""The steps of a re-packing that have begun: how far they are, and whether their tasks have found other machines."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from django.db.models import Count, Exists, OuterRef, Q

from scheduling.core.vocabulary.requirement import split_task_id
from scheduling.core.vocabulary.states import TaskState
from scheduling.journal.sql import query
from scheduling.machines.machines import DOWN
from scheduling.models import Departure, JobSpec, Repacking, RepackingStep, Task
from scheduling.models.machines import REMOVED

# While a task that has left waits for a machine, no further step begins. After this long, the re-packing stops.
STOP_AFTER_S = 60.0
CHANGED_DRAIN = "an SRE has ended or replaced the drain, or removed the machine; make a new plan to try it again"


@dataclass(slots=True)
class Decisions:
    """What a turn changes. `begun`: (step, ids of the tasks that leave, without those inside allocs). `opened`: (step,
    `Drain.only` from now on). `ended`: (step, state, detail). `stop`: why the re-packing stops, or an empty text.
    """

    begun: list[tuple[RepackingStep, list[int]]] = field(default_factory=list)
    opened: list[tuple[RepackingStep, list[int] | None]] = field(default_factory=list)
    ended: list[tuple[RepackingStep, str, str]] = field(default_factory=list)
    stop: str = ""


def unplaced(repacking: Repacking) -> dict[int, dt.datetime]:
    """Return since when each task that the re-packing moved waits for a machine, by task id. Tasks of steps that were
    skipped count for some time too. A task does not count if its job was updated after the start of the re-packing: it
    may wait because of what its tenant has changed.
    """
    recent = database_now() - dt.timedelta(seconds=2 * STOP_AFTER_S)
    begun = repacking.steps.filter(
        Q(state=RepackingStep.MOVING) | Q(state=RepackingStep.SKIPPED, ended_at__gt=recent), began_at__isnull=False
    )
    moved = [task for tasks in begun.order_by().values_list("tasks", flat=True) for task in tasks]
    pending = Task.objects.filter(pk__in=moved, state=TaskState.PENDING.value, incarnation__gt=0).order_by()
    return dict(pending.exclude(_updated(repacking)).values_list("id", "since"))


def _updated(repacking: Repacking) -> Exists:
    return Exists(JobSpec.objects.filter(job=OuterRef("job"), created_at__gt=repacking.started_at))


def look_at_moving(
    repacking: Repacking,
    moving: Sequence[RepackingStep],
    waiting: Mapping[int, dt.datetime],
    decisions: Decisions,
    patience_s: float,
) -> None:
    """Find out which steps are done, of which steps further tasks leave, which steps have to be skipped, and whether
    the re-packing has to stop. `waiting`: as `unplaced` returns.

    A step is done when the tasks that were up before they left are up again, or have ended, or have not come up within
    the patience.
    """
    now = database_now()
    for task, since in sorted(waiting.items()):
        if now - since > dt.timedelta(seconds=STOP_AFTER_S):
            job, index = split_task_id(task)
            decisions.stop = f"task {index} of job {job} left its machine and has found no other one"
            break
    if not moving:
        return
    machines = [step.machine_id for step in moving]
    drains = repacking.drains.filter(machine__in=machines).order_by()
    only = dict(drains.values_list("machine_id", "only"))
    stopping = counted(Departure.objects.filter(machine__in=machines).order_by().values_list("machine_id"))
    there: dict[int, set[int]] = {machine: set() for machine in machines}
    running = Task.objects.filter(machine__in=machines, state=TaskState.RUNNING.value, alloc__isnull=True).order_by()
    for machine, task in running.values_list("machine_id", "id"):
        there[machine].add(task)
    awaited = [task for step in moving for task in step.awaited]
    down = Task.objects.filter(pk__in=awaited, up=False).exclude(state=TaskState.DEAD.value).order_by()
    starting = dict(down.values_list("id", "machine_id"))
    for step in moving:
        here, named = there[step.machine_id], only.get(step.machine_id)
        if repacking.goal == Repacking.JOB:
            here &= set(step.tasks)
        leaving = here if named is None else here & set(named)
        late = now - (step.began_at or now) > dt.timedelta(seconds=patience_s * parts(step.moves, repacking.at_once))
        still = stopping.get(step.machine_id, 0)
        if step.machine.state == REMOVED:
            decisions.ended.append((step, RepackingStep.SKIPPED, "the machine was removed"))
        elif step.machine_id not in only:
            decisions.ended.append((step, RepackingStep.SKIPPED, CHANGED_DRAIN))
        elif step.machine.state == DOWN:
            decisions.ended.append((step, RepackingStep.SKIPPED, "the machine is down"))
        elif late and (here or still):
            what = f"{_format_waiting(len(here), still)} after {patience_s:g} s"
            decisions.ended.append((step, RepackingStep.SKIPPED, what))
        elif leaving or still or (not late and _starts(step, starting)):
            continue
        elif not here:
            decisions.ended.append((step, RepackingStep.FREED, ""))
        elif not waiting:
            rest = sorted(here)
            part = first_part(rest, tasks_inside(rest), repacking.at_once)
            everything = part == rest and repacking.goal == Repacking.MACHINES
            decisions.opened.append((step, None if everything else sorted({*(named or ()), *part})))


def _starts(step: RepackingStep, down: Mapping[int, int | None]) -> bool:
    """Return whether a task that has left is not up again. `down`: the machine of each task that is not up, by id."""
    return any(task in down and down[task] != step.machine_id for task in step.awaited)


def parts(moves: int, at_once: int) -> int:
    """Return in how many parts the tasks of a step leave."""
    return max(1, math.ceil(moves / at_once))


def first_part(tasks: Sequence[int], inside: Mapping[int, int], at_once: int) -> list[int]:
    """Return the first of the `tasks` (ids), so many that at most `at_once` leave together, but at least one. `inside`:
    how many tasks leave with each of them, if it is an alloc.
    """
    number = 0
    for position, task in enumerate(tasks):
        number += 1 + inside.get(task, 0)
        if number > at_once:
            return list(tasks[: max(1, position)])
    return list(tasks)


def tasks_inside(allocs: Sequence[int]) -> dict[int, int]:
    """Return how many tasks run inside each alloc, by id. Makes one query."""
    inner = Task.objects.filter(alloc__in=allocs, state=TaskState.RUNNING.value).order_by()
    return dict(inner.values_list("alloc_id").annotate(number=Count("pk")))


def counted(rows: object) -> dict[object, int]:
    return dict(rows.annotate(number=Count("pk")))  # type: ignore[attr-defined]


def database_now() -> dt.datetime:
    return query("SELECT now()", [])[0][0]  # type: ignore[no-any-return]


def _format_waiting(left: int, stopping: int) -> str:
    if left:
        return f"{left} tasks still run there, for example because disruption budgets were used up,"
    return f"{stopping} tasks were still stopping"
