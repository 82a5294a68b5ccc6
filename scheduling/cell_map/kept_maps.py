"""Keeps the map of each cell in the memory of the process, and brings it up to date from the journal when it is read.

To read the sums of 150,000 tasks from rows takes half a second. Most readings come soon after another one, so only the
machines of the events since then are read. Reclamation changes thousands of reservations every five seconds. So after
`RENEW_S` a thread reads all sums again, and readers do not wait for it, unless the reservations are older than `OLD_S`.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, replace

import numpy as np
import structlog
from django.db import DatabaseError, close_old_connections, connection
from numpy.typing import NDArray

from scheduling.cell_map.changes import MOST_EVENTS, RESERVATIONS, machines_of_events
from scheduling.cell_map.rows import MachineFacts, machine_facts, task_sums
from scheduling.models import Cell, Event

log = structlog.get_logger(__name__)

RENEW_S, OLD_S = 30.0, 120.0
# A cell of 10,000 machines and 20 tenants takes 10 MB.
MOST_CELLS = 8


@dataclass(frozen=True, slots=True)
class CellMap:
    """The machines of a cell at a revision. `history`: the number of the journal's history. `facts`: by machine id, in
    the order of the ids. `sums`: rows of `scheduling.cell_map.rows.SUMS`, one per machine and tenant.

    `read_at`: when all sums were read, on the clock `time.monotonic`. `reserved`: whether reservations have changed
    since.
    """

    revision: int
    history: int
    facts: dict[int, MachineFacts]
    sums: NDArray[np.void]
    read_at: float
    reserved: bool = False


class KeptMaps:
    """The maps of the cells that were read last. Any thread may call the methods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, CellMap] = OrderedDict()
        self._reading: dict[int, threading.Lock] = {}
        self._renewed: set[int] = set()  # the cells that a thread reads again

    def read(self, cell: Cell) -> CellMap:
        """Return the map of a cell at the revision of the row `cell`, or at a later one.

        Makes three queries if the process has read the cell before, one more if limits or priorities have changed, and
        two otherwise. Only one thread at a time reads a cell.
        """
        with self._lock:
            own = self._reading.setdefault(cell.id, threading.Lock())
        with own:
            known = self._kept.get(cell.id)
            fresh = self._advanced(cell, known) if known is not None else None
            age_s = time.monotonic() - fresh.read_at if fresh is not None and fresh.reserved else 0.0
            if fresh is None or age_s > OLD_S:
                fresh = _read(cell)
            self._keep(cell.id, fresh)
        if age_s > RENEW_S and fresh.reserved:
            self._renew_later(cell.id)
        return fresh

    def _keep(self, cell_id: int, fresh: CellMap) -> None:
        with self._lock:
            self._kept[cell_id] = fresh
            self._kept.move_to_end(cell_id)
            while len(self._kept) > MOST_CELLS:
                gone, _map = self._kept.popitem(last=False)
                self._reading.pop(gone, None)

    def _renew_later(self, cell_id: int) -> None:
        """Read all sums of a cell again in a thread, unless a thread does so already."""
        with self._lock:
            if cell_id in self._renewed:
                return
            self._renewed.add(cell_id)
        threading.Thread(target=self._renew, args=[cell_id], name="cell-map", daemon=True).start()

    def _renew(self, cell_id: int) -> None:
        try:
            close_old_connections()
            cell = Cell.objects.get(pk=cell_id)
            fresh = _read(cell)
            with self._lock:
                # Readers may have brought the map further meanwhile; the next reader repeats these changes.
                self._kept[cell_id] = fresh
        except (DatabaseError, Cell.DoesNotExist) as error:
            log.warning(
                "the map of a cell shows old reservations, because new ones could not be read", error=str(error)
            )
        finally:
            connection.close()
            with self._lock:
                self._renewed.discard(cell_id)

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
            rows.order_by("revision", "seq").values_list("kind", "job_id", "task_index", "machine_id", named=True)[
                : MOST_EVENTS + 1
            ]
        )
        if len(events) > MOST_EVENTS:
            return None
        reserved = known.reserved or any(event.kind == RESERVATIONS for event in events)
        touched = sorted(machines_of_events(events))
        if not touched:
            return replace(known, revision=cell.revision, reserved=reserved)
        facts = dict(known.facts)
        for identity in touched:
            facts.pop(identity, None)
        facts |= machine_facts(cell.id, touched)
        rest = known.sums[~np.isin(known.sums["machine_id"], touched)]
        sums = np.concatenate([rest, task_sums(cell.id, touched)])
        facts = dict(sorted(facts.items()))
        return replace(known, revision=cell.revision, facts=facts, sums=sums, reserved=reserved)


def _read(cell: Cell) -> CellMap:
    """Read the whole map of a cell. The rows may be newer than the revision of `cell`, but not older."""
    began = time.monotonic()
    return CellMap(cell.revision, cell.history_ordinal, machine_facts(cell.id), task_sums(cell.id), began)


maps = KeptMaps()
