"""`compaction`: the smallest share of a cell's machines, in per cent, on which the work of the cell fits (§5.1).

The work is the production and monitoring jobs of the real cell (see `tests.bench.cells`). As in §5.1, machines are
removed in a random order until the work no longer fits, and each time all jobs are packed from scratch on the remaining
machines. The work fits if at most 0.2 % of its tasks stay pending. The result is the 90th percentile of 11 seeds. All
scorers get the same order of machines and tasks, and the default policy. Bisection finds the share to 1/1000 of the
cell (`scheduling.simulator.experiments.packing`).

Cases:
* `google2011x5-prod-hybrid`, `-bestfit`, `-epvm`: the real cell with three scorers;
* the names in `tests.bench.variants`: changed cells, with the default scorer;
* `worst-distance`: the largest `distance` of the changed cells;
* `must-wait`: the number of tasks that stay pending in a cell of full size with newly drawn constraints. `bound`: how
  many of them cannot be placed in any order;
* `openb-…`: a cell with GPUs and a published protocol: see `tests.bench.openb`.

`floor` is a proven lower bound of the share (`tests.bench.floors`), the median over the seeds. `distance` is the share
minus the floor of the same seed, the 90th percentile.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduling.core.pass_ import schedule_pass
from scheduling.core.vocabulary.policy import Policy
from scheduling.simulator.experiments.packing.compaction import STEPS, smallest_step
from scheduling.simulator.experiments.packing.shrinking import Packing, ShrinkingCell
from tests.bench import cells, floors, openb, variants
from tests.bench.wanted import wanted

SEEDS = 11
PERCENTILE = 90
SCORERS = {
    "google2011x5-prod-hybrid": "hybrid",
    "google2011x5-prod-bestfit": "best-fit",
    "google2011x5-prod-epvm": "e-pvm",
}
OPENB = "openb-default-130"
WORST, MUST_WAIT = "worst-distance", "must-wait"
NEW_CONSTRAINTS = 3


def measure() -> Iterator[dict[str, Any]]:
    seeds = range(3 if os.environ.get("BENCH_SMALL") == "1" else SEEDS)
    distances: dict[str, float] = {}
    with ProcessPoolExecutor(min(len(seeds), os.cpu_count() or 1)) as pool:
        for case in wanted((*SCORERS, *variants.CELLS, WORST, MUST_WAIT, OPENB, *openb.ONLINE)):
            if case == OPENB:
                yield openb.measure_case(case)
            elif case in openb.ONLINE:
                yield openb.measure_online(case)
            elif case == MUST_WAIT:
                yield _must_wait()
            elif case == WORST:
                if distances:
                    name = max(distances, key=lambda one: distances[one])
                    yield {"case": WORST, "value": distances[name], "unit": "points", "better": "lower", "cell": name}
            else:
                result = _result(case, list(pool.map(compacted, [case] * len(seeds), seeds)))
                if case in variants.CELLS:
                    distances[case] = result["distance"]
                yield result


def _result(case: str, found: list[tuple[float, float]]) -> dict[str, Any]:
    """Return the figures of a case. `found` has, for each seed, the share of machines and its lower bound, from 0 to
    1."""
    shares, floored = 100 * np.array(found).T
    workload = _workload(case)
    return {
        "case": case,
        "value": _percentile(shares),
        "unit": "%",
        "better": "lower",
        "min": round(float(shares.min()), 1),
        "median": round(float(np.median(shares)), 1),
        "max": round(float(shares.max()), 1),
        "floor": round(float(np.median(floored)), 1),
        "distance": _percentile(shares - floored),
        "seeds": len(shares),
        "machines": len(workload.machines),
        "tasks": workload.tasks,
    }


def _percentile(values: NDArray[np.float64]) -> float:
    return round(float(np.percentile(values, PERCENTILE, method="higher")), 1)


def _must_wait() -> dict[str, Any]:
    """Pack the production work of the full-size cell, with other constraints, and count the tasks that stay pending."""
    workload = cells.google2011(seed=NEW_CONSTRAINTS).prod()
    state = workload.load()
    plan = schedule_pass(state, Policy(max_assignments=2**40), now=0.0, rng=np.random.default_rng(NEW_CONSTRAINTS))
    return {
        "case": MUST_WAIT,
        "value": state.pending - len(plan.assignments),
        "unit": "tasks",
        "better": "lower",
        "bound": floors.must_wait(workload, workload.machines),
        "tasks": workload.tasks,
    }


@cache
def _workload(case: str) -> cells.Workload:
    return cells.google2011().prod() if case in SCORERS else variants.CELLS[case](variants.REPORTED)


def compacted(case: str, seed: int) -> tuple[float, float]:
    """Return the smallest share of the cell's machines on which the work fits, and its lower bound, from 0 to 1.

    The share is 1 also if the work does not fit on all machines.
    """
    workload = _workload(case)
    policy = Policy(scorer=SCORERS.get(case, "hybrid"), max_assignments=2**40)
    cell = ShrinkingCell(workload, Packing(policy), seed=seed)
    size = len(workload.machines)
    floor = floors.floor(workload, cell.machines, may_wait=cell.may_wait) / size
    low = math.floor(STEPS * floor) - 1  # fewer machines have too little capacity
    step = smallest_step(lambda step: cell.fits(math.ceil(step / STEPS * size)), low, STEPS)
    return (step or STEPS) / STEPS, floor
