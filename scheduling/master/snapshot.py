"""The snapshot of a cell: events from which the present state of the cell can be built. Every reader of the journal
starts with a snapshot.

    rows ── snapshot ──► (revision, events) ── apply, one by one ──► state in memory, DNS names, checkpoint

These events describe the present state, not what happened in the past. Applied to an empty state, they give the same
state as the whole journal (`scheduling.master.invariants` compares the two).
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from django.db import transaction
from django.db.models import Q

from borglet.messages import Phase
from scheduling.core.cell.state import CellState
from scheduling.core.garbage import collection_paused
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.events import Event
from scheduling.core.vocabulary.requirement import Group, Requirement, split_task_id, task_id
from scheduling.core.vocabulary.states import EvictionCause, JobState
from scheduling.journal.row_events import (
    job_submitted_event,
    machine_set_event,
    maintenance_event,
    pool_event,
    update_started_event,
)
from scheduling.journal.sql import execute, query
from scheduling.models import Cell, CrashedPair, Departure, Job, JobSpec, Machine, MaintenanceWindow, Pool, Update
from scheduling.models.machines import REMOVED
from scheduling.spec import parser
from scheduling.tasks.counters import DEAD, RUNNING


@dataclass(slots=True)
class CellSnapshot:
    """The state of a cell at `revision`, as events from which it can be built. `events`: (event, time in seconds since
    the epoch).
    """

    cell_id: int
    cell: str
    revision: int
    extra_resources: tuple[str, ...]
    events: list[tuple[Event, float]] = field(default_factory=list)


def take(cell_id: int, *, reports: bool = False) -> CellSnapshot:
    """Return the snapshot of a cell, read in one transaction. Makes about thirteen queries for any number of tasks.

    `reports`: whether the events say which tasks are up. Then a state that follows the journal and one from rows agree
    about when these tasks end at the latest.
    """
    with transaction.atomic():
        execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cell = Cell.objects.get(pk=cell_id)
        taken = CellSnapshot(cell.id, cell.name, cell.revision, tuple(cell.extra_resources))
        created = cell.created_at.timestamp()
        taken.events += [(event, created) for event in _machines(cell_id)]
        taken.events += _windows(cell_id)
        taken.events += _pools(cell_id)
        taken.events += _jobs(cell, reports)
        taken.events += _updates(cell_id)
    return taken


def load_state(cell_id: int) -> CellState:
    """Return the state of a cell as the scheduler keeps it in memory, read from database rows."""
    with collection_paused():
        taken = take(cell_id, reports=True)
        state = CellState(taken.extra_resources)
        state.load(taken.events, revision=taken.revision)
    return state


def _machines(cell_id: int) -> Iterator[Event]:
    came: dict[str, list[int]] = defaultdict(list)
    for machine in Machine.objects.filter(cell_id=cell_id).exclude(state=REMOVED).order_by("id"):
        yield machine_set_event(machine)
        for digest in machine.packages:
            came[digest].append(machine.id)
    if came:
        yield events.PackagesHeld(came={digest: tuple(machines) for digest, machines in came.items()})


def _windows(cell_id: int) -> Iterator[tuple[Event, float]]:
    open_ones = MaintenanceWindow.objects.filter(cell_id=cell_id, state__in=MaintenanceWindow.OPEN)
    for window in open_ones.order_by("id"):
        yield maintenance_event(window), window.created_at.timestamp()


def _pools(cell_id: int) -> Iterator[tuple[Event, float]]:
    for pool in Pool.objects.filter(cell_id=cell_id).order_by("name"):
        yield pool_event(pool), pool.changed_at.timestamp()


def _jobs(cell: Cell, reports: bool) -> list[tuple[Event, float]]:
    """Return (event, time) for all events that describe live jobs, and ended jobs that still have incarnations on
    machines.

    The jobs are sorted by id. So an alloc set comes before the jobs inside it, because these jobs are newer.
    """
    live = ~Q(state=JobState.DEAD.value) | Q(tasks__departures__isnull=False)
    jobs = list(Job.objects.filter(live, cell=cell).distinct().select_related("tenant").order_by("id"))
    ids = [job.id for job in jobs]
    wanted = _Requirements(ids, cell.extra_resources)
    rows = [_TaskRow(*row) for row in query(_TASKS, [ids])]
    tasks = {job_id: list(group) for job_id, group in groupby(rows, key=attrgetter("job_id"))}
    departed: dict[int, list[Departure]] = {}
    for departure in Departure.objects.filter(task__cell=cell).order_by("task_id", "incarnation"):
        departed.setdefault(departure.task_id, []).append(departure)
    crashed: dict[int, list[CrashedPair]] = {}
    for pair in CrashedPair.objects.filter(task__cell=cell, task__job_id__in=ids).order_by("task_id", "id"):
        crashed.setdefault(pair.task_id, []).append(pair)
    result: list[tuple[Event, float]] = []
    for job in jobs:
        result += _job(job, tasks.get(job.id, []), wanted, departed, crashed, reports)
    return result


# Of a reservation only one that differs from the limit is read, because most are equal.
_TASKS = """
SELECT job_id, index, state, machine_id, incarnation, spec_version,
    CASE WHEN reservation <> "limit" THEN reservation END, ports, alloc_id, devices, extract(epoch FROM since)::float8,
    up
FROM scheduling_task WHERE job_id = ANY(%s) ORDER BY id"""


class _TaskRow(NamedTuple):
    """The row of a task. `reservation`: None if it equals the limit. `since`: when the task got its state, in seconds
    since the epoch.
    """

    job_id: int
    index: int  # type: ignore[assignment]
    state: str
    machine_id: int | None
    incarnation: int
    spec_version: int
    reservation: list[int] | None
    ports: list[int]
    alloc_id: int | None
    devices: list[int]
    since: float
    up: bool


def _job(
    job: Job,
    tasks: list[_TaskRow],
    wanted: _Requirements,
    departed: dict[int, list[Departure]],
    crashed: dict[int, list[CrashedPair]],
    reports: bool,
) -> Iterator[tuple[Event, float]]:
    ranges: dict[Requirement, list[tuple[int, int]]] = {}
    for task in tasks:
        known = ranges.setdefault(wanted.of(job.id, task.spec_version, task.index), [])
        if known and known[-1][1] == task.index - 1:
            known[-1] = (known[-1][0], task.index)
        else:
            known.append((task.index, task.index))
    groups = tuple(Group(requirement, tuple(spans)) for requirement, spans in ranges.items())
    yield job_submitted_event(job, groups), job.created_at.timestamp()
    tasks_reserved: list[tuple[int, int]] = []
    reservations: list[tuple[int, ...]] = []
    reserved_at = 0.0
    for task in tasks:
        identity = task_id(job.id, task.index)
        for pair in crashed.get(identity, ()):
            yield from _crash(task, pair)
        for departure in departed.get(identity, ()):
            yield from _departure(task, departure)
        yield from _task(task, job, wanted.of(job.id, task.spec_version, task.index))
        if task.state == RUNNING and task.reservation is not None:
            tasks_reserved.append((task.job_id, task.index))
            reservations.append(tuple(task.reservation))
            reserved_at = max(reserved_at, task.since)
    if reports:  # after all placements, because many events of one kind are applied together
        yield from ((_came_up(task), task.since) for task in tasks if task.state == RUNNING and task.up)
    if reservations:
        yield events.ReservationsSet(tasks=tuple(tasks_reserved), reservations=tuple(reservations)), reserved_at
    if job.state == JobState.DEAD.value:
        yield events.JobEnded(job_id=job.id, how=job.outcome), job.created_at.timestamp()


def _task(task: _TaskRow, job: Job, wanted: Requirement) -> Iterator[tuple[Event, float]]:
    if task.state != RUNNING and task.spec_version != job.spec_version:
        yield (
            events.TaskUpdated(
                job_id=task.job_id, index=task.index, spec_version=task.spec_version, requirement=wanted
            ),
            task.since,
        )
    if task.state == RUNNING:
        placed = events.TaskPlaced(
            job_id=task.job_id,
            index=task.index,
            machine_id=task.machine_id or 0,
            incarnation=task.incarnation,
            ports=tuple(task.ports),
            spec_version=task.spec_version,
            alloc=task.alloc_id or 0,
            devices=tuple(task.devices),
        )
        yield placed, task.since
    elif task.state == DEAD:
        ended = events.TaskEnded(
            job_id=task.job_id, index=task.index, machine_id=0, incarnation=task.incarnation, how="", gone=True
        )
        yield ended, task.since


def _came_up(task: _TaskRow) -> events.TaskReported:
    return events.TaskReported(
        job_id=task.job_id,
        index=task.index,
        machine_id=task.machine_id or 0,
        incarnation=task.incarnation,
        phase=Phase.UP.value,
        health="",
        up=True,
    )


def _departure(task: _TaskRow, departure: Departure) -> Iterator[tuple[Event, float]]:
    """Yield the events (with their time in seconds) for an incarnation that has to stop and whose processes have not
    ended yet.
    """
    time = departure.since.timestamp()
    yield _placed(task, departure.machine_id, departure.incarnation, departure.ports), time
    yield (
        events.TaskEvicted(
            job_id=task.job_id,
            index=task.index,
            machine_id=departure.machine_id,
            incarnation=departure.incarnation,
            cause=departure.cause,
            preemptor=split_task_id(departure.preemptor) if departure.preemptor is not None else None,
        ),
        time,
    )


def _crash(task: _TaskRow, pair: CrashedPair) -> Iterator[tuple[Event, float]]:
    time = pair.at.timestamp()
    yield _placed(task, pair.machine_id, 0, []), time
    yield (
        events.TaskEvicted(
            job_id=task.job_id,
            index=task.index,
            machine_id=pair.machine_id,
            incarnation=0,
            cause=EvictionCause.FAILURE.value,
            gone=True,
            avoid=True,
        ),
        time,
    )


def _placed(task: _TaskRow, machine_id: int | None, incarnation: int, ports: list[int]) -> events.TaskPlaced:
    return events.TaskPlaced(
        job_id=task.job_id,
        index=task.index,
        machine_id=machine_id or 0,
        incarnation=incarnation,
        ports=tuple(ports),
        spec_version=task.spec_version,
    )


def _updates(cell_id: int) -> Iterator[tuple[Event, float]]:
    for update in Update.objects.filter(job__cell_id=cell_id, state=Update.OPEN).order_by("id"):
        yield update_started_event(update), update.created_at.timestamp()


class _Requirements:
    """The requirements of tasks, by job and version of the spec, read from the specs of all jobs."""

    def __init__(self, job_ids: list[int], extra: Sequence[str]) -> None:
        used = set(query("SELECT DISTINCT job_id, spec_version FROM scheduling_task WHERE job_id = ANY(%s)", [job_ids]))
        self._specs: dict[tuple[int, int], tuple[list[int], list[Requirement]]] = {}
        rows = JobSpec.objects.filter(job_id__in=job_ids).values_list("job_id", "version", "spec", "packages")
        for job_id, version, stored, packages in rows.iterator():
            if (job_id, version) in used:
                read = parser.load(stored, extra=extra, packages=packages)
                segments = list(read.segments())
                self._specs[(job_id, version)] = (
                    [first for first, _, _ in segments],
                    [read.requirement_of(task) for _, _, task in segments],
                )

    def of(self, job_id: int, version: int, index: int) -> Requirement:
        firsts, requirements = self._specs[(job_id, version)]
        return requirements[bisect.bisect_right(firsts, index) - 1]
