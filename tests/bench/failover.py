"""`failover`: for how long no task of a full-size cell is placed after its master was killed (§3.1).

Cases: `master-warm`, with a standby master on the same host, and `master-cold`, without a standby, where the supervisor
starts a new master. The value is the median of the seconds from SIGKILL until the next placement; `runs` lists all
runs, `worst` is the longest, and `load` is the load average afterwards. `epochs`: how often the lease was taken.

    BENCH_RUNS=10                                  runs per case
    BENCH_BUSY=2                                   processes that use the CPU meanwhile, for a busy host
"""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from tests.bench.api import Bench
from tests.bench.full_cell import full_cell
from tests.bench.installation import Installation

WITHIN_S = 120.0
# After a shorter life of a process, the supervisor waits longer before it starts it again, as in a loop of crashes.
APART_S = 31.0
CASES = {"master-warm": 1, "master-cold": 0}  # by number of standbys


def measure() -> Iterator[dict[str, Any]]:
    for case, standbys in CASES.items():
        since = dt.datetime.now(dt.UTC).isoformat()
        with full_cell(standbys=standbys) as where, _busy(int(os.environ.get("BENCH_BUSY", "0"))):
            yield {"case": case, **_measure(where, standbys, since)}


def _measure(where: Installation, standbys: int, since: str) -> dict[str, Any]:
    bench = Bench(where)
    _wait_for_states(where, 1 + standbys, since)
    taken, (_, first) = [], _lease(where)
    for run in range(int(os.environ.get("BENCH_RUNS", "5"))):
        time.sleep(APART_S)
        pid, _ = _lease(where)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        bench.placed_within(WITHIN_S)
        taken.append(round(time.monotonic() - began, 2))
        _wait_for_states(where, 2 + standbys + run, since)
    return {
        "value": statistics.median(taken),
        "unit": "s",
        "better": "lower",
        "worst": max(taken),
        "runs": taken,
        "epochs": _lease(where)[1] - first,
        "load": round(os.getloadavg()[0], 1),
    }


def _lease(where: Installation) -> tuple[int, int]:
    """Return the process id of the master that holds the lease, and the epoch of the lease."""
    web = next(one for one in where.processes() if "portal.web" in one.cmdline())
    with psycopg.connect(web.environ()["BORG_DATABASE_URL"]) as connection:
        row = connection.execute("SELECT holder, epoch FROM scheduling_lease WHERE scheduler = 'default'").fetchone()
    assert row is not None
    return int(row[0].split(":")[1]), row[1]


def _wait_for_states(where: Installation, wanted: int, since: str) -> None:
    """Wait until masters have loaded the state of the cell `wanted` times since the time `since`."""
    until = time.monotonic() + WITHIN_S
    while time.monotonic() < until:
        lines = [line for name in ("master", "standby-1") for line in _lines(where.home / "log" / f"{name}.log")]
        if (
            sum(
                line["event"] == "the master loaded the state of the cell" and line["timestamp"] > since
                for line in lines
            )
            >= wanted
        ):
            return
        time.sleep(0.2)
    raise RuntimeError(f"masters have not loaded the state {wanted} times; their logs are in {where.home / 'log'}")


def _lines(log: Path) -> Iterator[dict[str, str]]:
    for line in log.read_text().splitlines() if log.exists() else ():
        if line.startswith("{"):
            yield json.loads(line)


@contextmanager
def _busy(number: int) -> Iterator[None]:
    """Keep this many CPU cores busy during the `with` block."""
    processes = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(number)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _spin() -> None:
    while True:
        pass
