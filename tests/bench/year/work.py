"""What the tenants of the simulated year submit, and how long their tasks run. Pure: equal seeds give equal work."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

TENANTS = 8
BATCH, SERVICE = 100, 200  # priorities
TASKS_OF_SERVICE = 16
# Names of batch jobs come again after this many jobs, as those of nightly jobs do.
_NAMES = 4_000
_SHORTEST_S, _TAIL, _LONGEST_S = 3_600.0, 0.6, 2 * 86_400.0
_FAILING = 8  # of 256 runs


def batch_jobs(rng: np.random.Generator, first: int, tasks: int) -> list[dict[str, Any]]:
    """Return job files with `tasks` tasks in all. Most jobs are small, and few have most of the tasks (§5.1). `first`:
    the number of batch jobs before.
    """
    files = []
    while tasks > 0:
        size = int(min(1 + rng.pareto(1.2) * 3, 200, tasks))
        tasks -= size
        number = first + len(files)
        files.append(
            {
                "name": f"batch{number % _NAMES}",
                "tenant": tenant_of(number),
                "priority": BATCH,
                "tasks": size,
                "labels": {"team": f"team{number % 50}"},
                "task": {
                    "command": ["/bin/batch", f"--part={number}"],
                    "limit": {
                        "cpu": f"{rng.integers(1, 9) * 50}m",
                        "ram": f"{rng.integers(1, 9) * 64}Mi",
                        "disk": "64Mi",
                    },
                },
            }
        )
    return files


def service_job(number: int, version: int) -> dict[str, Any]:
    """Return the job file of a service. Versions differ in a flag, so an update restarts the tasks."""
    return {
        "name": f"web{number}",
        "tenant": tenant_of(number),
        "priority": SERVICE,
        "appclass": "latency-sensitive",
        "tasks": TASKS_OF_SERVICE,
        "labels": {"team": f"team{number % 50}"},
        "update": {"max_down": TASKS_OF_SERVICE},
        "task": {
            "command": ["/bin/server", "--port=$(port.http)", f"--release={version}"],
            "ports": ["http"],
            "limit": {"cpu": "400m", "ram": "512Mi", "disk": "64Mi"},
        },
    }


def tenant_of(number: int) -> str:
    return f"t{number % TENANTS}"


def runs(task_ids: NDArray[np.int64], incarnations: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Return how long incarnations of batch tasks run, in seconds, and which of them fail. The result depends on the
    ids only, so that a run of the bench that continues an earlier one draws the same.
    """
    mixed = task_ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= incarnations.astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(31)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(29)
    share = (mixed >> np.uint64(11)).astype(np.float64) / 2**53
    lengths = np.minimum(_SHORTEST_S * (1.0 - share) ** -_TAIL, _LONGEST_S)
    return lengths, (mixed & np.uint64(255)) < _FAILING
