"""`failover`: for how long no task of a full-size cell is placed after its master was killed (§3.1).

Case `master-cold`: seconds from SIGKILL until the next placement. The supervisor starts a new master, and there is no
standby. The value is the median; `runs` lists all runs, and `load` is the load average afterwards.

    BENCH_RUNS=1 python -m tests.bench failover     one run instead of five
"""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections.abc import Iterator
from typing import Any

from tests.bench.api import Bench
from tests.bench.full_cell import full_cell

WITHIN_S = 120.0


def measure() -> Iterator[dict[str, Any]]:
    with full_cell() as where:
        bench = Bench(where)
        taken = []
        for _ in range(int(os.environ.get("BENCH_RUNS", "5"))):
            (master,) = [one for one in where.processes() if f"cell.{bench.cell}" in one.cmdline()]
            began = time.monotonic()
            master.send_signal(signal.SIGKILL)
            bench.placed_within(WITHIN_S)
            taken.append(round(time.monotonic() - began, 2))
        yield {
            "case": "master-cold",
            "value": statistics.median(taken),
            "unit": "s",
            "better": "lower",
            "runs": taken,
            "load": round(os.getloadavg()[0], 1),
        }
