"""Machines drain, go down, come back and leave. Everything journalled; capacity is published to quota.

    services.joining ────────► up ◄──────── machines_up ──────── down
                               │ ▲                                 ▲
                machine_drain ─▼ │ machine_undrain                 │ machines_down (silent)
                             draining ─────────────────────────────┘
                                                    machine_remove ──► removed

Tasks leave down and draining machines in `services.leaving`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db import connection

from borglet.messages import JoinRequest
from quota.errors import Conflict, Refused
from quota.permissions import Action, Principal, require
from quota.services import capacity as quota_capacity
from scheduling import journal
from scheduling.core import events
from scheduling.core.states import EvictionCause, MachineStatus
from scheduling.journal import Entry
from scheduling.link import contact
from scheduling.link.facts import Facts, read_facts
from scheduling.models import Cell, Departure, Machine, Task
from scheduling.models.machines import REMOVED
from scheduling.services import credentials, keeping, transitions
from scheduling.services.credentials import must_be_there
from scheduling.services.machine_events import machine_set_event
from scheduling.services.transitions import Eviction

UP, DRAINING, DOWN = MachineStatus.UP.value, MachineStatus.DRAINING.value, MachineStatus.DOWN.value


# -- facts and states


def machine_set(*, principal: Principal, machine: Machine, **facts: Any) -> Machine:
    """Change facts of a machine: those of `JoinRequest`, except `token`. Equal facts change nothing.

    Raises `Refused` naming the field. Locks: the cell's row, then the machine's.
    """
    require(principal, Action.MACHINE_ADMIN, cell=machine.cell.name)
    unknown = [name for name in facts if name not in JoinRequest.__struct_fields__ or name == "token"]
    if unknown:
        problems = dict.fromkeys(unknown, "no fact of a machine")
        raise Refused("invalid", told(problems), fields=problems)
    with journal.write(machine.cell_id, principal) as entry:
        row = Machine.objects.select_for_update().get(pk=machine.pk)
        if set_facts(row, facts, extra=machine.cell.extra_resources):
            row.save(update_fields=Facts.COLUMNS)
            entry.append(machine_set_event(row))
            publish_capacity(entry)
    machine.refresh_from_db()
    return machine


def set_facts(machine: Machine, changed: Mapping[str, Any], *, extra: Sequence[str]) -> bool:
    """Put checked facts on `machine`, unsaved. False when they are what it has. Raises `Refused`."""
    before = Facts.of(machine)
    request = before.as_request(extra=extra, **changed)
    after, problems = read_facts(request, extra=extra)
    if after is None:
        raise Refused("invalid", told(problems), fields=problems)
    if after.hostname != before.hostname:
        raise Refused("invalid", "a machine keeps its name", fields={"hostname": "can't be changed"})
    if after == before:
        return False
    for name, value in after.columns().items():
        setattr(machine, name, value)
    return True


def machine_drain(*, principal: Principal, machine: Machine, reason: str) -> Machine:
    """Take no new tasks, and let those there leave, at the cell's rate and within their jobs' `max_down`."""
    return _set_state(principal, machine, DRAINING, reason)


def machine_undrain(*, principal: Principal, machine: Machine, reason: str = "") -> Machine:
    return _set_state(principal, machine, UP, reason)


def _set_state(principal: Principal, machine: Machine, state: str, reason: str) -> Machine:
    """What an SRE wants of a machine. One that is down stays down, and will be `state` when it comes back."""
    require(principal, Action.MACHINE_ADMIN, cell=machine.cell.name)
    with journal.write(machine.cell_id, principal) as entry:
        row = Machine.objects.select_for_update().get(pk=machine.pk)
        must_be_there(row)
        if row.state == DOWN:
            entry.append(events.MachineState(machine_id=row.id, state=state, reason=reason))
            entry.append(events.MachineState(machine_id=row.id, state=DOWN, reason=row.reason))
        elif row.state != state:
            _change_states(entry, {row.id: state}, reason)
    machine.refresh_from_db()
    return machine


def machine_down(*, principal: Principal, machine: Machine, reason: str) -> Machine:
    """It does not answer: its tasks are placed elsewhere, at the cell's rate."""
    require(principal, Action.MACHINE_ADMIN, cell=machine.cell.name)
    machines_down(principal=principal, cell_id=machine.cell_id, machine_ids=[machine.id], reason=reason)
    machine.refresh_from_db()
    return machine


def machines_down(
    *, principal: Principal, cell_id: int, machine_ids: Sequence[int], reason: str
) -> list[int]:
    """Mark machines down that are up or draining. Returns those changed. Locks: cell, then machines by id."""
    with journal.write(cell_id, principal) as entry:
        rows = _lock(cell_id, machine_ids, [UP, DRAINING])
        _change_states(entry, {row.id: DOWN for row in rows}, reason)
    return [row.id for row in rows]


def machine_up(*, principal: Principal, machine: Machine, reason: str = "") -> Machine:
    """It answers again. A machine that was draining before it went down drains on."""
    require(principal, Action.MACHINE_ADMIN, cell=machine.cell.name)
    with journal.write(machine.cell_id, principal) as entry:
        machines_return(entry, [machine.id], reason)
    machine.refresh_from_db()
    return machine


def machines_return(entry: Entry, machine_ids: Sequence[int], reason: str) -> list[int]:
    """Down machines that answer again, under an open entry. Returns those changed."""
    rows = _lock(entry.cell_id, machine_ids, [DOWN])
    if rows:
        wanted = _wanted_states([row.id for row in rows])
        _change_states(entry, {row.id: wanted.get(row.id, UP) for row in rows}, reason)
    return [row.id for row in rows]


def machine_remove(*, principal: Principal, machine: Machine, reason: str) -> None:
    """Forget a machine for good: its name may join again, its secret is void.

    Refused while tasks run on a machine that answers; on one that is down they are evicted now. What its
    Borglet still ran is the SRE's to clean up.
    """
    require(principal, Action.MACHINE_ADMIN, cell=machine.cell.name)
    with journal.write(machine.cell_id, principal) as entry:
        row = Machine.objects.select_for_update().get(pk=machine.pk)
        must_be_there(row)
        tasks = list(
            Task.objects.filter(machine=row, state=transitions.RUNNING).values_list("id", "incarnation")
        )
        if tasks and row.state != DOWN:
            detail = f"{len(tasks)} tasks run on {row.hostname}; drain it and wait until they have left"
            raise Conflict("machine-busy", detail, fields={"machine": detail}, figures={"tasks": len(tasks)})
        cause = entry.append(events.MachineState(machine_id=row.id, state=DOWN, reason=reason))
        transitions.tasks_evict(
            entry,
            [
                Eviction(
                    identity,
                    incarnation,
                    EvictionCause.MACHINE_SHUTDOWN.value,
                    detail=f"{row.hostname} was removed: {reason}",
                    gone=True,
                    caused_by=cause,
                )
                for identity, incarnation in tasks
            ],
        )
        left = Departure.objects.filter(machine=row).values_list("task_id", "incarnation")
        transitions.tasks_gone(entry, [(identity, incarnation, None) for identity, incarnation in left])
        keeping.forget_machine(row.id)
        row.state, row.reason, row.quarantined, row.kept = REMOVED, reason, [], []
        credentials.void(row)
        row.save(update_fields=["state", "reason", *credentials.SECRET, "quarantined", "kept", "session"])
        entry.append(events.MachineRemoved(machine_id=row.id, reason=reason), caused_by=cause)
        publish_capacity(entry)
    contact.forget(machine.cell_id, [machine.id])
    machine.refresh_from_db()


# -- quarantine


def quarantine_release(
    *, principal: Principal, machine: Machine, keys: Iterable[str], action: str
) -> Machine:
    """Decide about incarnations that this cell's history doesn't know (`uid/index/incarnation`).

    `action`: `stop` ends them; `keep` lets them run on and marks them as decided.
    """
    require(principal, Action.MACHINE_ADMIN, cell=machine.cell.name)
    if action not in ("stop", "keep"):
        detail = f"{action!r}: one of stop, keep"
        raise Refused("invalid", f"action: {detail}", fields={"action": detail})
    wanted = set(keys)
    with journal.write(machine.cell_id, principal) as entry:
        row = Machine.objects.select_for_update().get(pk=machine.pk)
        known = {item["key"] for item in row.quarantined}
        if unknown := sorted(wanted - known):
            detail = f"not in quarantine on {row.hostname}: {', '.join(unknown[:5])}"
            raise Refused("not-in-quarantine", detail, fields={"keys": detail})
        quarantine_set(
            entry,
            row,
            [{**item, "release": action} if item["key"] in wanted else item for item in row.quarantined],
            f"{action} {len(wanted)} in quarantine",
        )
    machine.refresh_from_db()
    return machine


def quarantine_set(entry: Entry, machine: Machine, items: Sequence[Mapping[str, Any]], reason: str) -> None:
    """Store what is in quarantine on a locked machine; the event says so, its state stays."""
    if list(items) == machine.quarantined:
        return
    machine.quarantined = list(items)
    machine.save(update_fields=["quarantined"])
    entry.append(events.MachineState(machine_id=machine.id, state=machine.state, reason=reason))


# -- inside


def _lock(cell_id: int, machine_ids: Sequence[int], states: Sequence[str]) -> list[Machine]:
    return list(
        Machine.objects.select_for_update()
        .filter(cell_id=cell_id, pk__in=machine_ids, state__in=states)
        .only("id")
        .order_by("id")
    )


def _change_states(entry: Entry, states: Mapping[int, str], reason: str) -> None:
    for state in sorted(set(states.values())):
        ids = [machine for machine, wanted in states.items() if wanted == state]
        Machine.objects.filter(pk__in=ids).update(state=state, reason=reason[:300])
    entry.extend(
        events.MachineState(machine_id=machine, state=state, reason=reason)
        for machine, state in sorted(states.items())
    )


def _wanted_states(machine_ids: Sequence[int]) -> dict[int, str]:
    """What each machine was before it went down, as the journal tells."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT m.id, e.state FROM unnest(%s::bigint[]) AS m(id) CROSS JOIN LATERAL ("
            " SELECT data->>'state' AS state FROM scheduling_event"
            " WHERE machine_id = m.id AND kind = 'machine.state' AND data->>'state' <> 'down'"
            " ORDER BY revision DESC, seq DESC LIMIT 1) AS e",
            [list(machine_ids)],
        )
        return dict(cursor.fetchall())


def publish_capacity(entry: Entry) -> None:
    """Tell quota what the cell has: all machines that belong to it, also those down for the moment."""
    cell = Cell.objects.only("name", "extra_resources").get(pk=entry.cell_id)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT part.position, sum(part.amount)::bigint FROM scheduling_machine AS m,"
            " unnest(m.capacity) WITH ORDINALITY AS part(amount, position)"
            " WHERE m.cell_id = %s AND m.state <> %s GROUP BY part.position",
            [entry.cell_id, REMOVED],
        )
        sums = dict(cursor.fetchall())
    size = Facts.size(cell.extra_resources)
    quota_capacity.publish(
        cell=cell.name,
        capacity=[sums.get(position, 0) for position in range(1, size + 1)],
        revision=entry.revision,
    )


def told(problems: Mapping[str, str]) -> str:
    shown = "; ".join(f"{path}: {what}" for path, what in list(problems.items())[:3])
    return shown + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")
