"""The maintenance calendar of a cell: which machines go into maintenance, and when.

    MaintenanceSet ─► Calendar ─ planned ─► PlannedWindows: which of them close machines to tasks, or make them worse
                             └─ draining ─► machines that are being drained for a window, for explanations

A window is *planned* until the master drains its machines. Until then, the scheduler keeps machines free of tasks that
the window would interrupt (`core/placing/closed_machines.py`). Machines are resolved by their present names, racks and
power domains, so a machine that joins a rack belongs to the windows of this rack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from scheduling.core.cell.machines import MachineTable
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.kernel_arrays import Bools, Floats

PLANNED, DRAINING = "planned", "draining"
OPEN = (PLANNED, DRAINING)


@dataclass(frozen=True, slots=True, eq=False)
class PlannedWindows:
    """The planned windows of a cell, in the order of their starts. W is the number of windows, M the number of slots of
    machines.

    `starts`, `ends` [W]: in seconds since the epoch. `covers` [W, M]: whether each window covers the machine in each
    slot.
    """

    starts: Floats
    ends: Floats
    covers: Bools
    _first: dict[int, Bools] = field(default_factory=dict)

    def covered(self, number: int) -> Bools:
        """Return an array [M]: whether any of the first `number` windows covers the machine in each slot."""
        if number not in self._first:
            self._first[number] = np.logical_or.reduce(self.covers[:number], axis=0)
        return self._first[number]

    def begins(self, slot: int) -> float:
        """Return when the first window of the machine in `slot` starts; inf if it has none."""
        return float(self.starts[self.covers[:, slot]].min(initial=np.inf))


class Calendar:
    """The maintenance windows of a cell that have not ended. `windows`: by the number of the window."""

    def __init__(self) -> None:
        self.windows: dict[int, events.MaintenanceSet] = {}
        self._version = 0
        self._known: tuple[int, int] = (-1, -1)
        self._until = math.inf
        self._planned: PlannedWindows | None = None

    def set(self, event: events.MaintenanceSet) -> None:
        """Store a window, or forget one that has ended."""
        if event.state in OPEN:
            self.windows[event.window] = event
        else:
            self.windows.pop(event.window, None)
        self._version += 1

    def planned(self, machines: MachineTable, now: float) -> PlannedWindows | None:
        """Return the planned windows that have not ended, or None if there is none. The result is kept until windows
        or machines change, or a window ends. `now`: in seconds since the epoch; it does not decrease.
        """
        if not self.windows:
            return None
        if self._known != (self._version, machines.layout) or now >= self._until:
            self._known = (self._version, machines.layout)
            own = [one for one in self.windows.values() if one.state == PLANNED and one.ends_at > now]
            own.sort(key=lambda one: (one.starts_at, one.window))
            self._until = min((one.ends_at for one in own), default=math.inf)
            self._planned = _resolved(own, machines) if own else None
        return self._planned

    def drained(self, machines: MachineTable) -> tuple[Bools, Floats]:
        """Return two arrays [M]: whether the machine in each slot is in a window for which the machines are being
        drained, and when the last of these windows ends, in seconds since the epoch; 0 if there is none.
        """
        own = [one for one in self.windows.values() if one.state == DRAINING]
        if not own:
            return np.zeros(len(machines.id), dtype=np.bool_), np.zeros(len(machines.id))
        found = _resolved(own, machines)
        ends: Floats = np.where(found.covers, found.ends[:, None], 0.0).max(axis=0, initial=0.0)
        covered: Bools = np.logical_or.reduce(found.covers, axis=0)
        return covered, ends


def _resolved(windows: list[events.MaintenanceSet], machines: MachineTable) -> PlannedWindows:
    slots: dict[tuple[str, str], list[int]] = {}
    for slot, facts in machines.facts.items():
        for kind, name in (("host", facts.hostname), ("rack", facts.rack), ("power", facts.power_domain)):
            slots.setdefault((kind, name), []).append(slot)
    covers: Bools = np.zeros((len(windows), len(machines.id)), dtype=np.bool_)
    for row, one in enumerate(windows):
        for kind, names in (("host", one.machines), ("rack", (one.rack,)), ("power", (one.power_domain,))):
            for name in filter(None, names):
                covers[row, slots.get((kind, name), [])] = True
    return PlannedWindows(
        starts=np.array([one.starts_at for one in windows], dtype=np.float64),
        ends=np.array([one.ends_at for one in windows], dtype=np.float64),
        covers=covers,
    )
