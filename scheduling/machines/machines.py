"""The states of machines: up, draining, down, removed. The journal contains every change of state.

    joining.machines_join ──► up ◄────── machines_return ────── down
                              │ ▲                                 ▲
              machines_drain ─▼ │ machine_undrain                 │ machines_down (silent)
                            draining ─────────────────────────────┘
                                                   machine_remove ──► removed

`scheduling.machines.evacuation` evicts tasks from machines that are down or draining. `publish_capacity` reports the
capacity of the cell to quota.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db.models import Count, F, Func

from quota.admission import published_capacity as quota_capacity
from quota.vocabulary.errors import Conflict, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, require
from quota.vocabulary.resources import NAMES, QuantityError, as_mapping, parse_vector
from scheduling.allocs import kept_allocs
from scheduling.brakes import confirmation
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.states import EvictionCause, MachineStatus
from scheduling.core.vocabulary.task_events import Eviction
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.journal.row_events import machine_set_event
from scheduling.journal.sql import query
from scheduling.machines import credentials, last_contact
from scheduling.machines.credentials import locked_machine, must_be_there
from scheduling.machines.facts import CLAIMED, COLUMNS, MAX_ATTRIBUTES, Facts, read_facts, wrong_facts
from scheduling.machines.leaving_tasks import leaves
from scheduling.models import Cell, Departure, Drain, Machine, MaintenanceWindow, Task
from scheduling.models.machines import REMOVED
from scheduling.pools.rules import MOST_SET
from scheduling.tasks import counters, departures, transitions

UP, DRAINING, DOWN = MachineStatus.UP.value, MachineStatus.DRAINING.value, MachineStatus.DOWN.value
# The longest deadline of a drain.
MAX_DEADLINE_S = 30 * 86_400.0


# -- facts and states


def store_facts(entry: JournalEntry, row: Machine, facts: Mapping[str, Any], *, extra: Sequence[str]) -> None:
    """Store changed facts about a machine, such as its capacity or attributes, in its locked row. Does nothing if no
    fact has changed. Raises `Rejected` if a fact is not valid; the error names the wrong field.
    """
    if set_facts(row, facts, extra=extra):
        if "capacity" in facts:
            row.granted = []
        row.save(update_fields=[*COLUMNS, "granted"])
        entry.append(machine_set_event(row))
        publish_capacity(entry)


def machine_grow(*, principal: Principal, machine: Machine, capacity: Mapping[str, Any]) -> Machine:
    """Set some amounts of a machine's capacity. The other amounts do not change.

    `capacity`: quantities in the form of job files. CPU is in cores of the machine, as its Borglet reports it, and not
    in normalised cores. Raises `Rejected` if a quantity is not valid; the error names the
    wrong field. Locks: the cell's row, then the machine's.
    """
    require(principal, Action.MACHINE_ADMIN, cell=machine.cell.name)
    if not capacity:
        raise invalid("capacity", 'the capacity is empty; name the resources to change, for example {"cpu": 8}')
    extra = machine.cell.extra_resources
    try:
        amounts = as_mapping(parse_vector(capacity, extra=extra), extra=extra)
    except QuantityError as error:
        raise invalid("capacity", str(error)) from error
    with locked_machine(principal, machine) as (entry, row):
        attributes = {name: value for name, value in row.attributes.items() if name != CLAIMED}
        counts = as_mapping(row.machine_capacity, extra=extra) | {name: amounts[name] for name in capacity}
        store_facts(entry, row, {"capacity": counts, "attributes": attributes}, extra=extra)
    return machine


def set_facts(machine: Machine, changed: Mapping[str, Any], *, extra: Sequence[str]) -> bool:
    """Check the facts about a machine in `changed`, such as its capacity or attributes, and set them on `machine`
    without saving it. Return whether a value changed. Raises `Rejected` if a fact is not valid. `extra`: the names of
    the cell's own resources.
    """
    before = Facts.of(machine)
    request = before.as_request(extra=extra, **changed)
    # Those that SREs have set, and the pool, come on top of the reported ones.
    after, problems = read_facts(request, extra=extra, most=MAX_ATTRIBUTES + MOST_SET + 1)
    if after is None:
        raise wrong_facts(problems)
    if after.hostname != before.hostname:
        raise invalid("hostname", "the hostname of a machine cannot change; remove this field")
    columns = after.columns(machine.cpu_factor)
    if all(getattr(machine, name) == value for name, value in columns.items()):
        return False
    for name, value in columns.items():
        setattr(machine, name, value)
    return True


def machines_drain(
    *,
    principal: Principal,
    cell: Cell,
    machines: Sequence[Machine],
    reason: str,
    deadline_s: float | None = None,
    break_budgets: bool = False,
    confirm: int | None = None,
) -> list[Machine]:
    """Drain machines of a cell: evict their tasks at a limited rate, within the disruption budgets of the jobs. Return
    the machines whose drain began or changed.

    `deadline_s`: seconds until the machines should be empty. `break_budgets`: after the deadline, evict the remaining
    tasks in spite of the budgets. `confirm`: the number of tasks to evict; required if it is above the share
    `confirm_share` of the cell's tasks. A new drain replaces the deadline of an older one, and does not end with a
    maintenance window. A machine that is down is drained after it returns. Raises `Rejected` if `deadline_s` or
    `break_budgets` is wrong. Locks: the cell's row, then the machines' in order of id.
    """
    require(principal, Action.MACHINE_ADMIN, cell=cell.name)
    _check_deadline(deadline_s, break_budgets=break_budgets)
    changed = []
    with journal.write(cell.id, principal) as entry:
        locked = Machine.objects.select_for_update().filter(pk__in=[m.id for m in machines], cell=cell).order_by("id")
        rows = list(locked.select_related(None))
        for row in rows:
            must_be_there(row)
        drains = {drain.machine_id: drain for drain in Drain.objects.filter(machine__in=rows)}
        _confirm_drain(cell, rows, drains, confirm)
        tasks = _tasks_on([row.id for row in rows])
        deadline = entry.time + dt.timedelta(seconds=deadline_s) if deadline_s is not None else None
        for row in rows:
            known = drains.get(row.id)
            own = known is not None and known.repacking_id is None and known.window_id is None
            if known is not None and own and deadline is None and known.deadline is None:
                continue
            drain = known or Drain(machine=row)
            if known is None or known.repacking_id is not None:
                drain.began_at, drain.tasks = entry.time, tasks.get(row.id, 0)
            drain.reason, drain.asked_by, drain.only, drain.repacking = reason[:300], principal.name, None, None
            drain.deadline, drain.break_budgets, drain.window = deadline, break_budgets, None
            drain.save()
            state = events.MachineState(
                machine_id=row.id,
                state=DRAINING,
                reason=reason,
                break_budgets=break_budgets,
                deadline=deadline.timestamp() if deadline is not None else 0.0,
            )
            announce_wish(entry, row, state)
            changed.append(row)
        if changed:
            set_rows(entry, [row.id for row in changed if row.state != DOWN], DRAINING, reason)
    return changed


def machine_undrain(*, principal: Principal, machine: Machine, reason: str = "") -> Machine:
    """End the drain of a machine. If the machine is down, it stays down until it connects again. A maintenance window
    that drains the machine now does not drain it again.
    """
    with locked_machine(principal, machine) as (entry, row):
        if Drain.objects.filter(machine=row, window__isnull=False).exists():
            # Windows whose drains have begun do not drain it again.
            running = MaintenanceWindow.objects.filter(cell_id=row.cell_id, state=MaintenanceWindow.DRAINING)
            running.update(returned=Func(F("returned"), row.id, function="array_append"))
        ended, _ = Drain.objects.filter(machine=row).delete()
        if ended or row.state == DRAINING:
            announce_wish(entry, row, events.MachineState(machine_id=row.id, state=UP, reason=reason))
            if row.state != DOWN:
                set_rows(entry, [row.id], UP, reason)
    return machine


def announce_wish(entry: JournalEntry, row: Machine, state: events.MachineState) -> None:
    """Append the event `state`, which contains the state that an SRE has requested. A machine that is down stays down,
    so a second event with the state down follows.
    """
    entry.append(state)
    if row.state == DOWN:
        entry.append(events.MachineState(machine_id=row.id, state=DOWN, reason=row.reason))


def _check_deadline(deadline_s: float | None, *, break_budgets: bool) -> None:
    if deadline_s is not None and not 0 <= deadline_s <= MAX_DEADLINE_S:
        raise invalid("deadline_s", f"{deadline_s:g} s is out of range; give 0 to {MAX_DEADLINE_S:g}, or leave it out")
    if break_budgets and deadline_s is None:
        raise invalid(
            "break_budgets",
            "break_budgets needs a deadline; give deadline_s too, for example 0 to break budgets at once",
        )


def _confirm_drain(cell: Cell, rows: Sequence[Machine], drains: Mapping[int, Drain], confirm: int | None) -> None:
    """Raise `Conflict` if the drain would stop so many tasks that it needs a confirmation, and `confirm` is too low."""
    if all(row.id in drains and drains[row.id].only is None for row in rows):
        return
    wanted = {row.id for row in rows}
    others = Drain.objects.filter(machine__cell=cell).exclude(machine__in=wanted).order_by()
    ids = list(others.values_list("machine_id", flat=True))
    # A re-packing lets only some tasks leave its machines.
    also = Task.objects.filter(leaves(), machine__in=ids, state=counters.RUNNING).count()
    leaving = sum(_tasks_on(wanted).values()) + also
    confirmation.require(cell, leaving, confirm, what=f"drain {len(wanted) + len(ids)} machines")


def _tasks_on(machine_ids: Iterable[int]) -> dict[int, int]:
    there = Task.objects.filter(machine__in=list(machine_ids), state=counters.RUNNING).order_by()
    return dict(there.values_list("machine_id").annotate(number=Count("id")))


def machines_down(*, principal: Principal, cell_id: int, machine_ids: Sequence[int], reason: str) -> list[int]:
    """Mark the machines that are up or draining as down. Return the ids of these machines. Locks: the row of the cell,
    then the rows of the machines.
    """
    with journal.write(cell_id, principal) as entry:
        rows = _lock(cell_id, machine_ids, [UP, DRAINING])
        _change_states(entry, {row.id: DOWN for row in rows}, reason)
    return [row.id for row in rows]


def machines_return(entry: JournalEntry, machine_ids: Sequence[int], reason: str) -> list[int]:
    """Mark the machines that are down as up again, or as draining if they have a drain. Return the ids of these
    machines. Locks the machines' rows in order of id.
    """
    rows = _lock(entry.cell_id, machine_ids, [DOWN])
    if rows:
        draining = set(Drain.objects.filter(machine__in=rows).order_by().values_list("machine_id", flat=True))
        _change_states(entry, {row.id: DRAINING if row.id in draining else UP for row in rows}, reason)
    return [row.id for row in rows]


def machine_remove(*, principal: Principal, machine: Machine, reason: str) -> None:
    """Remove a machine from its cell. Its secret becomes invalid. A machine with the same hostname may join later.

    Tasks on the machine are evicted if the machine is down; otherwise the function raises `Conflict`. Processes of
    evicted tasks may still run on the machine, and an SRE must stop them.
    """
    with locked_machine(principal, machine) as (entry, row):
        tasks = list(Task.objects.filter(machine=row, state=counters.RUNNING).values_list("id", "incarnation"))
        if tasks and row.state != DOWN:
            detail = f"{len(tasks)} tasks run on {row.hostname}; drain the machine and wait until it is empty"
            raise Conflict("machine-busy", detail, fields={"machine": detail}, figures={"tasks": len(tasks)})
        cause = entry.append(events.MachineState(machine_id=row.id, state=DOWN, reason=reason))
        transitions.tasks_evict(
            entry,
            [
                Eviction(
                    identity,
                    incarnation,
                    EvictionCause.MACHINE_SHUTDOWN.value,
                    detail=f"machine {row.hostname} was removed: {reason}",
                    gone=True,
                    caused_by=cause,
                )
                for identity, incarnation in tasks
            ],
        )
        left = Departure.objects.filter(machine=row).values_list("task_id", "incarnation")
        departures.tasks_gone(entry, [(identity, incarnation, None) for identity, incarnation in left])
        kept_allocs.forget_machine(row.id)
        row.state, row.reason = REMOVED, reason
        row.quarantined, row.kept, row.packages = [], [], []
        row.set_attributes, row.hidden_attributes, row.assigned_pool = {}, {}, ""
        credentials.void(row)
        row.state_since = entry.time
        row.save()
        Drain.objects.filter(machine=row).delete()
        entry.append(events.MachineRemoved(machine_id=row.id, reason=reason), caused_by=cause)
        publish_capacity(entry)
    last_contact.forget(machine.cell_id, [machine.id])


# -- quarantine


def quarantine_release(
    *, principal: Principal, machine: Machine, keys: Iterable[str] | None, action: str, reason: str = ""
) -> Machine:
    """Store an SRE's decision about incarnations in quarantine: stop them, or let them run.

    `keys`: the incarnations, as `uid/index/incarnation`; None: all incarnations without a decision. `action`: `stop`
    or `keep` (let them run). Raises `Rejected` if `action` is unknown or an incarnation is not in quarantine. Locks:
    the row of the cell, then the row of the machine.
    """
    if action not in ("stop", "keep"):
        raise invalid("action", f"the action {action!r} is unknown; give stop or keep")
    with locked_machine(principal, machine) as (entry, row):
        known = {item["key"] for item in row.quarantined}
        undecided = {item["key"] for item in row.quarantined if not item.get("release")}
        wanted = undecided if keys is None else set(keys)
        if unknown := sorted(wanted - known):
            detail = f"tasks {', '.join(unknown[:5])} are not in quarantine on {row.hostname}; reload the list"
            raise Rejected("not-in-quarantine", detail, fields={"keys": detail})
        quarantine_set(
            entry,
            row,
            [{**item, "release": action} if item["key"] in wanted else item for item in row.quarantined],
            f"{action} {len(wanted)} in quarantine" + (f": {reason}" if reason else ""),
        )
    return machine


def quarantine_set(entry: JournalEntry, machine: Machine, items: Sequence[Mapping[str, Any]], reason: str) -> None:
    """Store `items` as the machine's list of incarnations in quarantine, one mapping per incarnation. Append an event
    with the present state of the machine. The caller must have locked the machine's row.
    """
    if list(items) == machine.quarantined:
        return
    machine.quarantined = list(items)
    machine.save(update_fields=["quarantined"])
    entry.append(events.MachineState(machine_id=machine.id, state=machine.state, reason=reason))


# -- shared parts


def _lock(cell_id: int, machine_ids: Sequence[int], states: Sequence[str]) -> list[Machine]:
    return list(
        Machine.objects.select_for_update()
        .filter(cell_id=cell_id, pk__in=machine_ids, state__in=states)
        .only("id")
        .order_by("id")
    )


def _change_states(entry: JournalEntry, states: Mapping[int, str], reason: str) -> None:
    for state in sorted(set(states.values())):
        set_rows(entry, [machine for machine, wanted in states.items() if wanted == state], state, reason)
    entry.extend(
        events.MachineState(machine_id=machine, state=state, reason=reason) for machine, state in sorted(states.items())
    )


def set_rows(entry: JournalEntry, machine_ids: Sequence[int], state: str, reason: str) -> None:
    Machine.objects.filter(pk__in=machine_ids).update(state=state, reason=reason[:300], state_since=entry.time)


def publish_capacity(entry: JournalEntry) -> None:
    """Report the cell's capacity to the app `quota`. It is the sum over all machines of the cell, including those that
    are down.
    """
    cell = Cell.objects.only("name", "extra_resources").get(pk=entry.cell_id)
    rows = query(
        "SELECT part.position, sum(part.amount)::bigint FROM scheduling_machine AS m,"
        " unnest(m.capacity) WITH ORDINALITY AS part(amount, position)"
        " WHERE m.cell_id = %s AND m.state <> %s GROUP BY part.position",
        [entry.cell_id, REMOVED],
    )
    sums = dict(rows)
    size = len(NAMES) + len(cell.extra_resources)
    quota_capacity.publish(
        cell=cell.name, capacity=[sums.get(position, 0) for position in range(1, size + 1)], revision=entry.revision
    )
