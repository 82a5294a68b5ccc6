"""`pack`: a whole cell from scratch, in memory (§5.1). Seconds of `schedule_pass`, after warm-up."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from quota.resources import Vector
from scheduling import spec
from scheduling.core import events
from scheduling.core.pass_ import schedule_pass
from scheduling.core.plan import Plan
from scheduling.core.policy import Policy
from scheduling.core.state import CellState
from tests.bench import google2011

RUNS = 5


def cell() -> CellState:
    """The fifth of the real cell: every machine up, every task pending."""
    state = CellState()
    for number, machine in enumerate(google2011.machines(), start=1):
        capacity: Vector = (machine["cpu_milli"], machine["ram_bytes"], machine["disk_bytes"], 0, 0, 0)
        state.apply(
            events.MachineSet(
                machine_id=number,
                hostname=machine["hostname"],
                address="127.0.0.1",
                capacity=capacity,
                platform=machine["platform"],
                rack=machine["rack"],
                power_domain=machine["power_domain"],
            ),
            revision=number,
            time=0.0,
        )
    for number, given in enumerate(google2011.specs(), start=1):
        read = spec.parse(given)
        state.apply(
            events.JobSubmitted(
                job_id=number,
                uid=f"{number:032x}",
                tenant_id=int(read.tenant[1:]) + 1,
                tenant=read.tenant,
                name=read.name,
                job_kind="job",
                priority=read.priority,
                latency_sensitive=read.latency_sensitive,
                spec_version=1,
                groups=read.groups(),
            ),
            revision=state.revision + 1,
            time=0.0,
        )
    return state


def prod_unplaced(state: CellState, plan: Plan) -> int:
    """Tasks of the production and monitoring bands that the plan leaves pending."""
    placed = Counter(assignment.job_id for assignment in plan.assignments)
    return sum(len(job.tasks) - placed[job.id] for job in state.tasks.jobs.values() if job.priority >= 120)


def measure() -> Iterator[dict[str, Any]]:
    state = cell()
    times = []
    for run in range(RUNS + 1):
        began = time.perf_counter()
        plan = schedule_pass(state, Policy(), now=0.0, rng=np.random.default_rng(run))
        times.append(time.perf_counter() - began)
    yield {
        "case": "google2011-fifth",
        "value": round(statistics.median(times[1:]), 3),
        "unit": "s",
        "better": "lower",
        "machines": len(state.machines),
        "tasks": state.pending,
        "placed": len(plan.assignments),
        "prod_unplaced": prod_unplaced(state, plan),
    }
