"""Inject faults into a cell under load, in two lanes at the same time, and measure how it recovers."""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import redis

from tests.ha.cell import Cell
from tests.ha.faults import FAULTS, choose, hold_s, inject
from tests.ha.planning import CONTROL, MACHINES, lane_of, order
from tests.ha.services import Service, wait_until
from tests.ha.writing import Loop, max_gap_s

_DISK_IS_FULL = (b"no space left", b"short write")  # the latter of Redis
_COMPLETE_S, _TARGET_S, _LOOK_S = 300.0, 400.0, 0.5


@dataclass
class Injector:
    """Inject faults into a cell. `loops`: writes through PostgreSQL, Redis and web. `cuts`: (begin, end) of each fault
    in Unix seconds, because machines may have been unreachable meanwhile.

    Two threads may inject faults at the same time. No fault then harms a host that the other one harms.
    """

    cell: Cell
    loops: Mapping[str, Loop]
    seed: int
    cuts: list[tuple[float, float]] = field(default_factory=list)
    _busy: set[str] = field(default_factory=set)
    _choosing: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _rows: queue.Queue[dict[str, Any] | Exception | None] = field(default_factory=queue.Queue)
    _began: float = field(default_factory=time.monotonic)

    def run(self, names: Sequence[str], *, minutes: float) -> Iterator[dict[str, Any]]:
        """Inject faults, in rounds if `minutes` is not 0. Yield one object per fault when the cell has recovered, or
        when it has not recovered for five minutes; no further fault follows then.
        """
        self._began = time.monotonic()
        lanes = [
            threading.Thread(target=self._lane, args=(names, lane, minutes), name=lane) for lane in (CONTROL, MACHINES)
        ]
        for lane in lanes:
            lane.start()
        try:
            ended = 0
            while ended < len(lanes):
                row = self._rows.get()
                if isinstance(row, Exception):
                    raise row
                if row is None:
                    ended += 1
                else:
                    yield row
        finally:
            self._stop.set()
            for lane in lanes:
                lane.join()

    def _lane(self, names: Sequence[str], lane: str, minutes: float) -> None:
        rng = random.Random(f"{self.seed} targets of {lane}")
        end = self._began + minutes * 60
        try:
            for name in order(names, lane, self.seed, rounds=bool(minutes)):
                if self._stop.is_set() or (minutes and time.monotonic() >= end):
                    break
                if (services := self._reserve(name, rng)) is None:
                    break
                row = self._one(name, services)
                self._rows.put(row)
                if not row["survived"]:
                    self._stop.set()
        except Exception as error:  # noqa: BLE001 - the thread of the run raises it
            self._rows.put(error)
        self._rows.put(None)

    def _one(self, name: str, services: Sequence[Service]) -> dict[str, Any]:
        sizes = {service.log: service.log.stat().st_size for service in services}
        began, at = time.time(), time.monotonic()
        try:
            fault = inject(name, self.cell, services)
            try:
                self._stop.wait(hold_s(name))
            finally:
                fault.end()
            self.cuts.append((began, time.time()))
            took_s, problem = self._recovery(name, services)
        finally:
            with self._choosing:
                self._busy -= {service.host.name for service in services}
        row = {
            "fault": name,
            "hosts": sorted({service.host.name for service in services}),
            "at_s": round(at - self._began, 1),
            "gap_s": self._gaps_s(name, at, began) if not problem else {},
            "complete_s": round(took_s, 1),
            "survived": not problem,
            "load": round(os.getloadavg()[0], 1),
        }
        if FAULTS[name][1] == "full":
            row["met_full_disk"] = any(_met_full_disk(log, size) for log, size in sizes.items())
        return row | ({"problem": problem} if problem else {})

    def _reserve(self, name: str, rng: random.Random) -> Sequence[Service] | None:
        """Choose the services that a fault will harm, and keep their hosts for it. Wait if there are none. Return None
        if the run ends meanwhile.
        """
        found: Sequence[Service] | None = None

        def looks() -> bool:
            nonlocal found
            with self._choosing:
                try:
                    found = choose(name, self.cell, rng, self._busy)
                except (psycopg.Error, redis.RedisError):  # the other lane has just harmed what was asked
                    found = None
                self._busy |= {service.host.name for service in found or ()}
            return found is not None or self._stop.is_set()

        wait_until(looks, _TARGET_S, f"{name}: the cell has such a target", every_s=_LOOK_S)
        return found

    def _recovery(self, name: str, services: Sequence[Service]) -> tuple[float, str]:
        """Wait until the cell has recovered. Return the seconds that this took, and "" or what is still missing."""
        machines = [service.host for service in services if service.name == "borglet"]

        ended = time.time()

        def recovered() -> bool:
            if self._stop.is_set():
                raise TimeoutError(f"the run ended before the cell was complete again after {name}")
            if not self.cell.have_reported(machines, ended):
                return False
            writes = all(loop.writes() for loop in self.loops.values())
            return lane_of(name) == MACHINES or (writes and self.cell.complete(machines))

        try:
            what = f"the cell is complete again after {name}"
            return wait_until(recovered, _COMPLETE_S, what, every_s=_LOOK_S), ""
        except TimeoutError as error:
            return _COMPLETE_S, str(error)

    def _gaps_s(self, name: str, at: float, began: float) -> dict[str, float]:
        """Return for how many seconds writes failed. For faults of machines this is left out: another fault may have
        been the cause.
        """
        if lane_of(name) == MACHINES:
            return {}
        gaps = {what: round(loop.gap_s(at), 1) for what, loop in self.loops.items()}
        with suppress(psycopg.Error):  # the database may have become unreachable again
            gaps["placing"] = round(self._placing_gap_s(began), 1)
        return gaps

    def _placing_gap_s(self, since: float) -> float:
        """Return the longest pause between two placements, from the last before the time `since` until now."""
        rows = self.cell.query(
            "SELECT EXTRACT(epoch FROM time)::float FROM scheduling_event WHERE kind = 'task.placed'"
            f" AND time > to_timestamp({since - 120.0}) ORDER BY time"
        )
        return max_gap_s([at for (at,) in rows], since, time.time())


def _met_full_disk(log: Path, size: int) -> bool:
    """Return whether a service has logged that its disk is full, after its log had this size."""
    with log.open("rb") as file:
        file.seek(size)
        logged = file.read().lower()
    return any(words in logged for words in _DISK_IS_FULL)
