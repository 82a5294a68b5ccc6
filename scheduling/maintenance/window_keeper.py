"""The part of a master that begins and ends the drains of maintenance windows. The master does this once per second.

    planned, due ─► lock the cell ─► read again ─► drains, state `draining`
    draining ─┬─ a machine of the window has no drain yet ─► drained too, unless a person has returned it
              ├─ the window has started ─► all tasks leave
              └─ the window has ended ─► drains end, state `ended`

Everything that must not be lost is in rows, and each step is one transaction with its events, which reads the window
again under the cell's lock. So each step happens once, also if a master fails or two masters work at the same time.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db.models import Q
from django.db.models.functions import Now

from quota.vocabulary.permissions import system
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.journal.row_events import maintenance_event
from scheduling.maintenance.draining import drains_settle
from scheduling.maintenance.lead import LONGEST_LEAD_S
from scheduling.maintenance.preview import leads_of, least_lead_s
from scheduling.maintenance.scope import machines_of
from scheduling.maintenance.windows import draining_windows, window_close
from scheduling.models import Drain, MaintenanceWindow
from scheduling.policy.cell_settings import CellSettings

# The leads of windows are estimated again after this many seconds.
ESTIMATED_EVERY_S = 60.0
_PRINCIPAL = "maintenance"


class WindowKeeper:
    """Begins and ends the drains of the maintenance windows of one cell. It keeps only estimates in memory."""

    def __init__(self, cell_id: int) -> None:
        self.cell_id = cell_id
        self._leads: dict[int, float] = {}
        self._known: list[Any] = []  # the facts of the windows for which leads were estimated
        self._estimated: dt.datetime | None = None

    def turn(self, settings: CellSettings, *, now: dt.datetime | None = None) -> bool:
        """Begin and end what is due. Return whether something changed. Without open windows, it makes one query.

        `now`: only for tests; otherwise the clock of the database decides.
        """
        rows = MaintenanceWindow.objects.filter(cell_id=self.cell_id, state__in=MaintenanceWindow.OPEN)
        found = list(rows.annotate(clock=Now()).values_list("id", "state", "starts_at", "ends_at", "clock"))
        if not found:
            self._known = []
            return False
        now = now or found[0][4]
        soon = now + dt.timedelta(seconds=LONGEST_LEAD_S)
        near = [pk for pk, _, starts, ends, _ in found if starts <= soon or ends <= now]
        windows = list(rows.filter(pk__in=near).order_by("id")) if near else []
        changed = False
        for row in windows:
            if row.ends_at <= now:
                changed |= self._end(row, now)
        windows = [row for row in windows if row.ends_at > now]
        self._estimate(windows, settings, now)
        for row in windows:
            left_s = (row.starts_at - now).total_seconds()
            if row.state == MaintenanceWindow.PLANNED and left_s <= self._leads[row.pk]:
                changed |= self._begin(row, now)
        return self._follow([row for row in windows if row.state == MaintenanceWindow.DRAINING], now) or changed

    def _estimate(self, windows: list[MaintenanceWindow], settings: CellSettings, now: dt.datetime) -> None:
        """Estimate the leads of the windows if this is due, or if a window has changed. Windows with a lead of their
        own need no estimate.
        """
        if all(one.state != MaintenanceWindow.PLANNED or _is_set(one, settings, now) for one in windows):
            least = least_lead_s(settings)
            self._leads = {one.pk: least if one.lead_s is None else one.lead_s for one in windows}
            self._known = []
            return
        facts: list[Any] = [settings, *map(_facts, windows)]
        late = self._estimated is None or (now - self._estimated).total_seconds() >= ESTIMATED_EVERY_S
        if facts != self._known or late:
            self._leads, self._known, self._estimated = leads_of(windows, settings), facts, now

    def _begin(self, row: MaintenanceWindow, now: dt.datetime) -> bool:
        """Drain the machines of a planned window."""
        with journal.write(self.cell_id, system(_PRINCIPAL)) as entry:
            locked = _locked(row, MaintenanceWindow.PLANNED)
            # Somebody may have changed the window since it was found to be due.
            if locked is None or _facts(locked) != _facts(row):
                return False
            locked.state, locked.drains_at = MaintenanceWindow.DRAINING, entry.time
            locked.save(update_fields=["state", "drains_at"])
            entry.append(maintenance_event(locked))
            self._settle(entry, list(machines_of([locked]).values_list("id", flat=True)), now)
        return True

    def _end(self, row: MaintenanceWindow, now: dt.datetime) -> bool:
        with journal.write(self.cell_id, system(_PRINCIPAL)) as entry:
            locked = _locked(row, *MaintenanceWindow.OPEN)
            if locked is None or locked.ends_at > now:
                return False
            window_close(entry, locked, MaintenanceWindow.ENDED, "", now)
        return True

    def _follow(self, rows: list[MaintenanceWindow], now: dt.datetime) -> bool:
        """Drain machines that belong to a window since its drains began, and let all tasks leave after its start."""
        if not rows:
            return False
        missing = Q(drain__isnull=True) | Q(drain__repacking__isnull=False)
        ids = set(machines_of(rows).filter(missing).values_list("id", flat=True))
        started = [row for row in rows if row.starts_at <= now]
        if started:
            ids |= _held_back(started, Q(only__isnull=False))
            ids |= _held_back([row for row in started if row.break_budgets], Q(break_budgets=False))
        if not ids:
            return False
        with journal.write(self.cell_id, system(_PRINCIPAL)) as entry:
            return bool(self._settle(entry, sorted(ids), now))
        return False

    def _settle(self, entry: JournalEntry, machine_ids: list[int], now: dt.datetime) -> int:
        return drains_settle(entry, draining_windows(self.cell_id), machine_ids, now)


def _is_set(window: MaintenanceWindow, settings: CellSettings, now: dt.datetime) -> bool:
    """Return whether it is clear without an estimate when the drains of the window begin."""
    return window.lead_s is not None or (window.starts_at - now).total_seconds() <= least_lead_s(settings)


def _facts(window: MaintenanceWindow) -> tuple[Any, ...]:
    """Return what decides when the drains of a window begin."""
    scope = (tuple(window.machines), window.rack, window.power_domain)
    return window.pk, window.state, window.starts_at, window.lead_s, scope


def _held_back(windows: list[MaintenanceWindow], condition: Q) -> set[int]:
    """Return the ids of the machines of the windows whose drains satisfy the condition, and belong to a window."""
    drains = Drain.objects.filter(condition, window__isnull=False, machine__in=machines_of(windows))
    return set(drains.order_by().values_list("machine_id", flat=True)) if windows else set()


def _locked(row: MaintenanceWindow, *states: str) -> MaintenanceWindow | None:
    return MaintenanceWindow.objects.select_for_update().filter(pk=row.pk, state__in=states).first()
