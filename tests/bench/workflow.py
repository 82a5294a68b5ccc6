"""`workflow`: a workflow of 5,000 nodes on simulated machines, in a complete installation.

`make up` runs with a new home folder and simulated machines. The nodes are in layers: each node runs after three nodes
of the layer before. Each has one job with one task, which runs for `BENCH_TASK_S` seconds.

The result is the overhead per node in milliseconds: the time from the submission until the workflow has ended, without
the time of the tasks on the longest path, divided by the number of nodes (target: 50). `cpu_ms`: the CPU time of all
processes per node, including PostgreSQL, the scheduler, and the simulated machines. `submit_s`: how long the submission
took. `twice`: nodes that had more than one job. `load`: the load average before.

    BENCH_NODES=500 BENCH_LAYERS=10 BENCH_MACHINES=50     a shorter bench
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from tests.bench.installation import installation

NAME = "deep"
_TARGET_MS, _WITHIN_S, _POLL_S = 50.0, 1_800.0, 0.5


def measure() -> Iterator[dict[str, Any]]:
    nodes, layers = int(os.environ.get("BENCH_NODES", "5000")), int(os.environ.get("BENCH_LAYERS", "50"))
    machines, task_s = int(os.environ.get("BENCH_MACHINES", "200")), float(os.environ.get("BENCH_TASK_S", "0.1"))
    load = round(os.getloadavg()[0], 1)
    with installation(machines=f"simulated:{machines}") as where:
        client = where.client()
        path = f"/api/v1/cells/{client.profile.cell}/workflows/{client.profile.tenant}/{NAME}/"
        cpu_before, began = where.cpu_s(), time.monotonic()
        client.put(path, _file(nodes, layers, task_s))
        submit_s = time.monotonic() - began
        found: dict[str, Any] = client.get(path)
        while found["ended_at"] is None and time.monotonic() - began < _WITHIN_S:
            time.sleep(_POLL_S)
            found = client.get(path)
        wall_s, cpu_s = time.monotonic() - began, where.cpu_s() - cpu_before
        attempts = [row["attempt"] for row in client.pages(f"{path}nodes/")]
    overhead_ms = 1_000 * (wall_s - layers * task_s) / nodes
    result = {
        "case": "layers",
        "value": round(overhead_ms, 1),
        "unit": "ms",
        "better": "lower",
        "nodes": nodes,
        "layers": layers,
        "wall_s": round(wall_s, 1),
        "cpu_ms": round(1_000 * cpu_s / nodes, 1),
        "submit_s": round(submit_s, 2),
        "state": found["state"],
        "twice": sum(number > 1 for number in attempts),
        "load": load,
    }
    if overhead_ms > _TARGET_MS or found["state"] != "succeeded" or attempts != [1] * nodes:
        result["failed"] = f"target missed: {_TARGET_MS:g} ms per node, and each node once"
    yield result


def _file(nodes: int, layers: int, task_s: float) -> dict[str, Any]:
    width = -(-nodes // layers)
    task = {
        "command": ["simulated"],
        "limit": {"cpu": "100m", "ram": "64Mi"},
        "env": {"SIM_DURATION_S": str(task_s)},
        "restart": {"on": "never"},
    }
    graph: dict[str, Any] = {}
    for number in range(nodes):
        layer, place = divmod(number, width)
        before = [f"n{(layer - 1) * width + (place + shift) % width}" for shift in range(3)] if layer else []
        graph[f"n{number}"] = {"job": {"task": task}, "after": dict.fromkeys(before, "succeeded")}
    return {"kind": "Workflow", "name": NAME, "parallel": nodes, "nodes": graph}
