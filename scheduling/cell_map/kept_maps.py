"""Keeps the map of each cell in the memory of the process, and brings it up to date from the journal when it is read.

To read the sums of 150,000 tasks from rows takes half a second. Most readings come soon after another one, so only the
machines of the events since then are read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduling.cell_map.changes import MOST_EVENTS, machines_of_events
from scheduling.cell_map.rows import MachineFacts, machine_facts, task_sums
from scheduling.models import Cell, Event

# A cell of 10,000 machines and 20 tenants takes 10 MB.
MOST_CELLS = 8


@dataclass(frozen=True, slots=True)
class CellMap:
    """The machines of a cell at a revision. `history`: the number of the journal's history. `facts`: by machine id, in
    the order of the ids. `sums`: rows of `scheduling.cell_map.rows.SUMS`, one per machine and tenant.
    """

    revision: int
    history: int
    facts: dict[int, MachineFacts]
    sums: NDArray[np.void]


class KeptMaps:
    """The maps of the cells that were read last. Any thread may call the methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, CellMap] = OrderedDict()
        self._reading: dict[int, threading.Lock] = {}

    def read(self, cell: Cell) -> CellMap:
        """Return the map of a cell at the revision of the row `cell`, or at a later one.

        Makes three queries if the process has read the cell before and two otherwise; two more if limits, reservations
        or priorities have changed since. Only one thread at a time reads a cell.
        """
        with self._lock:
            own = self._reading.setdefault(cell.id, threading.Lock())
        with own:
            known = self._kept.get(cell.id)
            fresh = self._advanced(cell, known) if known is not None else None
            if fresh is None:
                fresh = CellMap(cell.revision, cell.history_ordinal, machine_facts(cell.id), task_sums(cell.id))
            with self._lock:
                self._kept[cell.id] = fresh
                self._kept.move_to_end(cell.id)
                while len(self._kept) > MOST_CELLS:
                    gone, _map = self._kept.popitem(last=False)
                    self._reading.pop(gone, None)
            return fresh

    def forget(self) -> None:
        """Forget all maps."""
        with self._lock:
            self._kept.clear()

    def _advanced(self, cell: Cell, known: CellMap) -> CellMap | None:
        """Return `known` with the changes up to the revision of `cell`, or None if the cell must be read again."""
        if known.history != cell.history_ordinal or known.revision < cell.journal_floor:
            return None
        if known.revision >= cell.revision:
            return known
        rows = Event.objects.filter(cell_id=cell.id, revision__gt=known.revision, revision__lte=cell.revision)
        events = list(
            rows.order_by("revision", "seq").values_list(
                "kind", "job_id", "task_index", "machine_id", "revision", named=True
            )[: MOST_EVENTS + 1]
        )
        if len(events) > MOST_EVENTS:
            return None
        touched = sorted(machines_of_events(cell.id, events))
        if not touched:
            return CellMap(cell.revision, known.history, known.facts, known.sums)
        facts = dict(known.facts)
        for identity in touched:
            facts.pop(identity, None)
        facts |= machine_facts(cell.id, touched)
        rest = known.sums[~np.isin(known.sums["machine_id"], touched)]
        sums = np.concatenate([rest, task_sums(cell.id, touched)])
        return CellMap(cell.revision, known.history, dict(sorted(facts.items())), sums)


maps = KeptMaps()
