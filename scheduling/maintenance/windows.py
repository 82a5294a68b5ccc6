"""Requests about maintenance windows: write one, change it, cancel it.

window_write ─► planned ── master: drains begin ─► draining ── master, at its end ─► ended
                   │                                  │
                   └────────── window_cancel ─────────┴─► cancelled
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from django.db.models import Q

from quota.vocabulary.errors import Conflict, NotFound, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.brakes import confirmation
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.journal.row_events import maintenance_event
from scheduling.machines.machines import DRAINING
from scheduling.maintenance.draining import drain_reason, drains_settle
from scheduling.maintenance.lead import LONGEST_LEAD_S
from scheduling.maintenance.scope import machines_of
from scheduling.models import Cell, Drain, Machine, MaintenanceWindow, Task
from scheduling.tasks import counters

# A window covers at most so many machines, because one transaction drains them.
MOST_MACHINES = 5_000
# It names at most so many hostnames. More machines are a rack or a power domain.
MOST_NAMES = 500
# A cell has at most so many windows that have not ended.
MOST_OPEN = 1_000
# So far ahead may a window start, and so long may it last.
FARTHEST_S, LONGEST_S = 400 * 86_400.0, 90 * 86_400.0
# A start this much in the past still counts as now.
_LATE_S = 300.0
# So many windows of a cell are kept that have ended.
KEPT = 500
_SCOPE = ("machines", "rack", "power_domain")


def window_write(
    *,
    principal: Principal,
    cell: Cell,
    ends_at: dt.datetime,
    reason: str,
    starts_at: dt.datetime | None = None,
    machines: Sequence[str] = (),
    rack: str = "",
    power_domain: str = "",
    lead_s: float | None = None,
    break_budgets: bool = False,
    confirm: int | None = None,
) -> MaintenanceWindow:
    """Write a maintenance window for machines, a rack or a power domain, of which exactly one is given.

    `starts_at`: now by default. `lead_s`: the machines are drained this many seconds before; None: the master estimates
    it. `break_budgets`: at the start, the remaining tasks are evicted despite disruption budgets. `confirm`: the number
    of tasks that stop; required if it is above the share `confirm_share` of the cell's tasks. Raises `Rejected`
    if a value is wrong. Locks the cell's row.
    """
    require(principal, Action.MACHINE_ADMIN, cell=cell.name)
    with journal.write(cell.id, principal) as entry:
        row = MaintenanceWindow(
            cell=cell,
            machines=sorted(set(machines)),
            rack=rack,
            power_domain=power_domain,
            starts_at=starts_at or entry.time,
            ends_at=ends_at,
            lead_s=lead_s,
            break_budgets=break_budgets,
            reason=reason[:300],
            asked_by=principal.name,
            created_at=entry.time,
        )
        if MaintenanceWindow.objects.filter(cell=cell, state__in=MaintenanceWindow.OPEN).count() >= MOST_OPEN:
            detail = f"cell {cell.name} has {MOST_OPEN} open maintenance windows; cancel those that are not needed"
            raise Conflict("too-many-windows", detail)
        _check_times(row, entry.time, starts=True)
        _check_scope(row)
        _confirm(row, confirm)
        row.save()
        entry.append(maintenance_event(row))
        old = MaintenanceWindow.objects.filter(cell=cell, ended_at__isnull=False).order_by("-ended_at", "-id")
        MaintenanceWindow.objects.filter(pk__in=list(old.values_list("pk", flat=True)[KEPT:])).delete()
    return row


def window_change(
    *, principal: Principal, cell: Cell, number: int, confirm: int | None = None, **changed: Any
) -> MaintenanceWindow:
    """Change the window `number`. `changed`: the new values, named as in `window_write`; the others stay.

    When its drains have begun, only `ends_at` and `reason` can be changed. Raises `Conflict` if it has ended or another
    value is given then, and `Rejected` if a value is wrong. Locks the cell's row.
    """
    require(principal, Action.MACHINE_ADMIN, cell=cell.name)
    with journal.write(cell.id, principal) as entry:
        row = _locked(cell, number)
        if changed.keys() & set(_SCOPE):
            changed = {"machines": [], "rack": "", "power_domain": "", **changed}
            changed["machines"] = sorted(set(changed["machines"]))
        before = {name: getattr(row, name) for name in changed}
        changed = {name: value for name, value in changed.items() if before[name] != value}
        if not changed:
            return row
        if late := [name for name in changed if name not in ("ends_at", "reason")]:
            _must_be_planned(row, late)
        for name, value in changed.items():
            setattr(row, name, value)
        row.reason, row.changed_by = row.reason[:300], principal.name
        _check_times(row, entry.time, starts="starts_at" in changed)
        if changed.keys() & set(_SCOPE):
            _check_scope(row)
        if changed.keys() & {*_SCOPE, "starts_at", "ends_at"} and row.state == MaintenanceWindow.PLANNED:
            _confirm(row, confirm)
        row.save()
        entry.append(maintenance_event(row))
        if "reason" in changed:
            reason = drain_reason(row)
            Drain.objects.filter(window=row).update(reason=reason)
            Machine.objects.filter(drain__window=row, state=DRAINING).update(reason=reason)
    return row


def window_cancel(*, principal: Principal, cell: Cell, number: int, reason: str = "") -> MaintenanceWindow:
    """Cancel the window `number`. Its machines receive tasks again, except those that a person drains. Raises
    `Conflict` if it has ended. Locks: the cell's row, then the rows of the machines.
    """
    require(principal, Action.MACHINE_ADMIN, cell=cell.name)
    with journal.write(cell.id, principal) as entry:
        row = _locked(cell, number)
        detail = f"cancelled by {principal.name}" + (f": {reason}" if reason else "")
        window_close(entry, row, MaintenanceWindow.CANCELLED, detail, entry.time)
    return row


def window_close(entry: JournalEntry, row: MaintenanceWindow, state: str, detail: str, now: dt.datetime) -> None:
    """End or cancel an open window, whose row is locked. Its drains end, unless another window covers the machine."""
    ids = list(machines_of([row]).filter(drain__window__isnull=False).values_list("id", flat=True))
    ids += Drain.objects.filter(window=row).exclude(machine__in=ids).values_list("machine_id", flat=True)
    row.state, row.detail, row.ended_at = state, detail[:500], entry.time
    row.save(update_fields=["state", "detail", "ended_at"])
    entry.append(maintenance_event(row))
    drains_settle(entry, draining_windows(entry.cell_id), ids, now)


def draining_windows(cell_id: int) -> list[MaintenanceWindow]:
    """Return the windows of the cell whose machines are being drained, and lock their rows in order of id."""
    rows = MaintenanceWindow.objects.select_for_update().filter(cell_id=cell_id, state=MaintenanceWindow.DRAINING)
    return list(rows.order_by("id"))


def _locked(cell: Cell, number: int) -> MaintenanceWindow:
    row = MaintenanceWindow.objects.select_for_update().filter(cell=cell, pk=number).first()
    if row is None:
        raise NotFound("maintenance window", str(number))
    if row.state not in MaintenanceWindow.OPEN:
        detail = f"maintenance window {row.pk} is {row.state}; write a new one"
        raise Conflict("window-ended", detail, figures={"window": row.pk})
    return row


def _must_be_planned(row: MaintenanceWindow, names: Sequence[str]) -> None:
    if row.state != MaintenanceWindow.PLANNED:
        detail = (
            f"the machines of maintenance window {row.pk} are being drained already, so only ends_at and reason can be"
            f" changed; leave out {', '.join(sorted(names))}, or cancel the window and write a new one"
        )
        raise Conflict("window-began", detail, fields=dict.fromkeys(names, detail), figures={"window": row.pk})


def _check_times(row: MaintenanceWindow, now: dt.datetime, *, starts: bool) -> None:
    """Raise `Rejected` if the times of a window are wrong. `starts`: whether the start is new."""
    if starts and (now - row.starts_at).total_seconds() > _LATE_S:
        raise invalid(
            "starts_at", f"starts_at is {row.starts_at.isoformat()}, which is in the past; leave it out to start now"
        )
    if (row.starts_at - now).total_seconds() > FARTHEST_S:
        raise invalid("starts_at", f"starts_at is more than {FARTHEST_S / 86_400:.0f} days ahead; give an earlier time")
    if row.ends_at <= max(row.starts_at, now):
        what = "ends_at must be after starts_at and after the present time; give a later time"
        raise invalid("ends_at", what)
    if (row.ends_at - row.starts_at).total_seconds() > LONGEST_S:
        raise invalid("ends_at", f"a window lasts at most {LONGEST_S / 86_400:.0f} days; give an earlier ends_at")
    if row.lead_s is not None and not 0 <= row.lead_s <= LONGEST_LEAD_S:
        raise invalid("lead_s", f"lead_s is {row.lead_s:g}; give a number from 0 to {LONGEST_LEAD_S:g}")


def _check_scope(row: MaintenanceWindow) -> None:
    """Raise `Rejected` if the window does not name exactly one kind of machines, or covers none or too many."""
    if sum(map(bool, (row.machines, row.rack, row.power_domain))) != 1:
        what = "give exactly one of machines, rack and power_domain"
        raise Rejected("invalid", what, fields=dict.fromkeys(("machines", "rack", "power_domain"), what))
    found = set(machines_of([row]).values_list("hostname", flat=True)[: MOST_MACHINES + 1])
    if row.machines:
        if len(row.machines) > MOST_NAMES:
            raise invalid("machines", f"the window names {len(row.machines)} machines; name at most {MOST_NAMES}")
        if unknown := sorted(set(row.machines) - found):
            what = f"this cell has no machine {', '.join(unknown[:5])}; check the host names"
            raise Rejected("not-found", what, fields={"machines": what}, status=404)
        return
    field, value = ("rack", row.rack) if row.rack else ("power_domain", row.power_domain)
    if not 1 <= len(found) <= MOST_MACHINES:
        number = f"more than {MOST_MACHINES}" if found else "no"
        kind = field.replace("_", " ")
        raise invalid(
            field, f"the {kind} {value!r} has {number} machines; choose one with 1 to {MOST_MACHINES} machines"
        )


def _confirm(row: MaintenanceWindow, confirm: int | None) -> None:
    """Raise `Conflict` if the window, the windows that overlap with it and the drains that are in progress stop so many
    tasks together that the request needs a confirmation.
    """
    open_ones = MaintenanceWindow.objects.filter(cell=row.cell, state__in=MaintenanceWindow.OPEN)
    others = open_ones.filter(starts_at__lt=row.ends_at, ends_at__gt=row.starts_at).exclude(pk=row.pk)
    own = machines_of([row]).count()
    covered = machines_of([row, *others]).order_by().values("id")
    drained = Drain.objects.filter(machine__cell=row.cell, only__isnull=True).order_by().values("machine_id")
    running = Task.objects.filter(Q(machine__in=covered) | Q(machine__in=drained), state=counters.RUNNING).count()
    confirmation.require(
        row.cell, running, confirm, what=f"drain {own} machines for maintenance, with other drains and windows"
    )
