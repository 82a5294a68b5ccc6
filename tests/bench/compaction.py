"""`compaction`: the smallest share of a cell's machines on which its work fits, by scorer (§5.1), in per cent.

The work is the production and monitoring jobs of the real cell (`tests.bench.cells`: clones, attributes, constraints).
As in §5.1, machines are removed in a random order until the work no longer fits, and each time it is packed from
scratch on the remaining machines. It fits while at most 0.2 % of its tasks stay pending. There are 11 seeds. The result
is the 90th percentile, beside the range. For each scorer, the machines are removed in the same order, and the tasks
come in the same order. The policy has its default settings (spreading, mixing, sampling). The threshold is found by
bisection, to 1/1000 of the cell (`scheduling.simulator.experiments.packing`).

Cases: `google2011x5-prod-hybrid`, `-bestfit`, `-epvm`; the cells of `tests.bench.variants`; and `worst-distance`, the
largest `distance` of these cells. `floor` is a true lower bound (`tests.bench.floors`), its median over the seeds.
`distance` is how far the share is above the floor of the same seed, the 90th percentile. `must-wait` is a cell of full
size with newly drawn constraints: the number of tasks that stay pending, and how many of them fit in no order of
placement. The GPU cell has a published protocol of its own: see `tests.bench.openb`.
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
    """`found`: share and floor by seed."""
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
    """Production of the cell of full size, on all its machines, with constraints drawn by another seed."""
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
    """The smallest share of the cell's machines into which the work fits, and the floor, a share too.

    The share is 1 even when the work does not fit at all.
    """
    workload = _workload(case)
    policy = Policy(scorer=SCORERS.get(case, "hybrid"), max_assignments=2**40)
    cell = ShrinkingCell(workload, Packing(policy), seed=seed)
    size = len(workload.machines)
    floor = floors.floor(workload, cell.machines, may_wait=cell.may_wait) / size
    low = math.floor(STEPS * floor) - 1  # below it too little capacity is left
    step = smallest_step(lambda step: cell.fits(math.ceil(step / STEPS * size)), low, STEPS)
    return (step or STEPS) / STEPS, floor
