"""Queries of one machine for its page: what runs there, its events, and how well it is.

The rules of rights are those of REST: every user sees machines, their facts and the events of machines, but only tasks
of tenants that the user may see. Of the other tasks, tenants see the number and the sum of the limits, as in the list
of machines. SREs see all tasks.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import redis
import structlog
from django.db.models import Q
from django.urls import reverse
from django.utils import timezone

from portal.sigma.reads.journal import EventSentence, event_sentences
from quota.vocabulary.permissions import Action, Principal, may
from quota.vocabulary.resources import CPU, DISK, RAM
from scheduling.access.selectors import job_names, jobs_of_tenants
from scheduling.journal import wakeups
from scheduling.machines import last_contact
from scheduling.maintenance.scope import is_covered
from scheduling.models import Cell, Event, Machine, MaintenanceWindow, Task
from scheduling.models.machines import REMOVED
from scheduling.usage import live_usage

log = structlog.get_logger(__name__)

# The most tasks, events and windows that the page lists.
MOST_TASKS = 200
MOST_EVENTS = 40
# So many events of a machine are read. The number is fixed, because the journal of a machine grows.
MOST_READ = 400
MOST_WINDOWS = 10
# An older sample of usage is not shown.
FRESH_S = 60.0
RESOURCES = (CPU, RAM, DISK)
# The events of a machine that change its state, for its timeline.
_STATES = ("machine.set", "machine.state", "machine.removed")


@dataclass(frozen=True, slots=True)
class TaskHere:
    """A task on a machine. `usage`: its newest usage by position of the resource; None if it is not known."""

    task: Task
    usage: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class OthersHere:
    """The tasks on a machine that the user may not see: their number, and the sums of their limits and reservations."""

    tasks: int
    limit: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """What runs on a machine. `tasks`: the tasks that the user may see, the largest limits of CPU first; at most
    `MOST_TASKS`. `others`: all other tasks. `usage`: the usage of the whole machine, only for SREs; None if it is not
    known.
    """

    tasks: Sequence[TaskHere]
    others: OthersHere
    usage: tuple[int, ...] | None


def load_of(principal: Principal, machine: Machine) -> Load:
    """Return what runs on a machine. Makes two queries and one request to Redis."""
    sees_all = may(principal, Action.MACHINE_ADMIN, cell=machine.cell.name)
    rows = Task.objects.filter(machine=machine).select_related("job__tenant").order_by("id")
    every = list(rows)
    visible = {row.job_id for row in every}
    if not sees_all:
        visible = set(jobs_of_tenants(principal, machine.cell).filter(pk__in=visible).values_list("pk", flat=True))
    seen = sorted((row for row in every if row.job_id in visible), key=lambda row: (-row.limit[CPU], row.id))
    used = _usage(machine)
    hidden = [row for row in every if row.job_id not in visible] + seen[MOST_TASKS:]
    # Tasks inside an alloc use the capacity of their alloc, so only the alloc counts.
    sums = tuple(sum(row.limit[place] for row in hidden if row.alloc_id is None) for place in RESOURCES)
    tasks = [TaskHere(row, used.get((row.id, row.incarnation))) for row in seen[:MOST_TASKS]]
    whole = used.get((-machine.id, 0)) if sees_all else None
    return Load(tasks, OthersHere(len(hidden), sums), whole)


def _usage(machine: Machine) -> dict[tuple[int, int], tuple[int, ...]]:
    """Return the newest usage on a machine, by id and incarnation of the task. The usage of the whole machine has the
    key (-id of the machine, 0).
    """
    try:
        now, rows = live_usage.read_machines(machine.cell_id, [machine.id])
    except redis.RedisError as error:
        log.warning("the usage of a machine is not shown, because Redis is not reachable", error=str(error))
        return {}
    return {
        (int(row["task_id"]), max(0, int(row["incarnation"])) if row["task_id"] > 0 else 0): (
            int(row["cpu_milli"]),
            int(row["ram_bytes"]),
            int(row["disk_bytes"]),
        )
        for row in rows
        if now - row["at"] <= FRESH_S
    }


def last_report(machine: Machine) -> dt.datetime | None:
    """Return when a machine last reported, or None if this is not known. Sends one request to Redis."""
    try:
        at = wakeups.client().zscore(last_contact.key("contact", machine.cell_id), str(machine.id))
    except redis.RedisError:
        return None
    return dt.datetime.fromtimestamp(float(at), dt.UTC) if at is not None else None


@dataclass(frozen=True, slots=True)
class MachineEvent:
    """An event on a machine. `task`: the task, as `tenant/job/index`, or the job; "" for an event of the machine.
    `link`: the address of its page, or "".
    """

    row: EventSentence
    task: str
    link: str


def newest_events(machine: Machine) -> list[Event]:
    """Return the newest events of a machine and of the tasks on it, newest first. They are for SREs: use `shown_events`
    for what a user may see. Makes one query, which an index serves.
    """
    rows = Event.objects.filter(cell_id=machine.cell_id, machine_id=machine.id)
    return list(rows.order_by("-revision", "-seq")[:MOST_READ])


def shown_events(principal: Principal, machine: Machine, newest: Sequence[Event]) -> list[MachineEvent]:
    """Return those of the newest events of a machine that the user may see, at most `MOST_EVENTS`, with their jobs."""
    shown = list(newest)
    if not may(principal, Action.MACHINE_ADMIN, cell=machine.cell.name):
        ids = {event.job_id for event in newest if event.job_id is not None}
        seen = set(jobs_of_tenants(principal, machine.cell).filter(pk__in=ids).values_list("pk", flat=True))
        shown = [event for event in newest if event.job_id in seen or (event.job_id is None and _is_of_machine(event))]
    shown = shown[:MOST_EVENTS]
    names = job_names(event.job_id for event in shown if event.job_id is not None)
    return [_machine_event(machine, row, names) for row in event_sentences(shown)]


def _machine_event(machine: Machine, row: EventSentence, names: Mapping[int, tuple[str, str]]) -> MachineEvent:
    name, index = names.get(row.event.job_id or 0), row.event.task_index
    if name is None:
        return MachineEvent(row, "", "")
    parts = [machine.cell.name, *name]
    if index is None:
        return MachineEvent(row, "/".join(name), reverse("sigma:job", args=parts))
    return MachineEvent(row, f"{'/'.join(name)}/{index}", reverse("sigma:task", args=[*parts, index]))


def _is_of_machine(event: Event) -> bool:
    return event.kind.startswith("machine.")


def states_in(newest: Sequence[Event], machine: Machine) -> list[tuple[str, dt.datetime]]:
    """Return (state, since when) of a machine, oldest first, as far as the newest events reach. The last one is its
    present state.
    """
    begun: list[tuple[str, dt.datetime]] = []
    for event in reversed(newest):
        if event.kind not in _STATES:
            continue
        state = REMOVED if event.kind == "machine.removed" else str(event.data.get("state", "up"))
        if not begun or begun[-1][0] != state:
            begun.append((state, event.time))
    if not begun or begun[-1][0] != machine.state:
        begun.append((machine.state, machine.state_since))
    return begun


def coming_windows(cell: Cell, machine: Machine) -> list[MaintenanceWindow]:
    """Return the open maintenance windows of a machine, by their start. Each has `begun`: whether it has started."""
    named = Q(machines__contains=[machine.hostname])
    if machine.rack:
        named |= Q(rack=machine.rack)
    if machine.power_domain:
        named |= Q(power_domain=machine.power_domain)
    rows = MaintenanceWindow.objects.filter(named, cell=cell, state__in=MaintenanceWindow.OPEN)
    found = [
        window
        for window in rows.order_by("starts_at", "id")[:MOST_WINDOWS]
        if is_covered(window, machine) and machine.id not in window.returned
    ]
    for window in found:
        window.begun = window.starts_at <= timezone.now()  # type: ignore[attr-defined]
    return found
