"""A sample of one fifth of a real Borg cell of May 2011, as machines and job files.

Source: Google's published cluster trace ClusterData2011_2 (John Wilkes, Charles Reiss; CC-BY 4.0), in two files,
`cell_machines_dev20.csv.gz` and `cell_tasks_t0_dev20.csv.gz`, in the folder `$BORG_DATA/google2011` (default:
../shared/data/google2011). Units of the trace: 1.0 CPU = 64 cores, 1.0 RAM = 256 GiB, 1.0 disk = 4 TiB. Requests are
rounded up, and capacities down.

    python -m tests.bench.google2011 machines OUT.csv        write a file for MACHINES=simulated:OUT.csv
"""

from __future__ import annotations

import csv
import math
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

from scheduling.simulator.traces.google2011 import (
    CPU_MILLI,
    DISK_BYTES,
    FIFTH_MACHINES,
    FIFTH_TASKS,
    PRIORITIES,
    RACK,
    RACKS_PER_DOMAIN,
    RAM_BYTES,
    TENANTS,
)
from scheduling.simulator.traces.google2011 import rows as trace_rows

COLUMNS = ("hostname", "platform", "cpu_milli", "ram_bytes", "disk_bytes", "rack", "power_domain", "attributes")


def folder() -> Path:
    return Path(os.environ.get("BORG_DATA", "../shared/data")) / "google2011"


@cache
def machines() -> list[dict[str, Any]]:
    """Return one dict per machine, with the keys `COLUMNS`."""
    return [
        {
            "hostname": f"m{row['machine']}",
            "platform": row["platform"],
            "cpu_milli": math.floor(float(row["cpu"]) * CPU_MILLI),
            "ram_bytes": math.floor(float(row["mem"]) * RAM_BYTES),
            "disk_bytes": DISK_BYTES,
            "rack": f"r{number // RACK}",
            "power_domain": f"p{number // (RACK * RACKS_PER_DOMAIN)}",
            "attributes": "",
        }
        for number, row in enumerate(trace_rows(folder() / FIFTH_MACHINES))
    ]


def write_machines(target: Path) -> None:
    with target.open("w", newline="") as file:
        out = csv.DictWriter(file, COLUMNS)
        out.writeheader()
        out.writerows(machines())


@cache
def specs() -> list[dict[str, Any]]:
    """Return one job file per job, in the order of the trace. Tasks with another size than most are `overrides`."""
    jobs: dict[str, list[dict[str, str]]] = {}
    for row in trace_rows(folder() / FIFTH_TASKS):
        jobs.setdefault(row["job"], []).append(row)
    return [_spec(job, rows) for job, rows in jobs.items()]


def _spec(job: str, rows: list[dict[str, str]]) -> dict[str, Any]:
    limits = [_limit(row) for row in rows]
    usual = max(set(map(_key, limits)), key=[_key(limit) for limit in limits].count)
    first = rows[0]
    spec: dict[str, Any] = {
        "name": f"j{job}",
        "tenant": f"t{int(job) % TENANTS:02d}",
        "priority": PRIORITIES[int(first["priority"])],
        "appclass": "latency-sensitive" if int(first["sched_class"]) >= 2 else "batch",
        "tasks": len(rows),
        "task": {"command": ["simulated"], "limit": dict(usual)},
    }
    overrides = {str(i): {"limit": limit} for i, limit in enumerate(limits) if _key(limit) != usual}
    if overrides:
        spec["overrides"] = overrides
    if int(first["different_machines"]):
        spec["spread"] = {"max_per_machine": 1}
    return spec


def _limit(row: dict[str, str]) -> dict[str, Any]:
    return {
        "cpu": f"{math.ceil(float(row['cpu']) * CPU_MILLI)}m",
        # Some tasks of the trace request no RAM or disk. A job file must request at least one byte.
        "ram": max(1, math.ceil(float(row["mem"]) * RAM_BYTES)),
        "disk": max(1, math.ceil(float(row["disk"]) * DISK_BYTES)),
    }


def _key(limit: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(limit.items())


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "machines":
        sys.exit(__doc__)
    write_machines(Path(sys.argv[2]))
