"""`compaction`: into how small a share of a cell its work fits, by scorer (§5.1). Per cent of the machines.

The production and monitoring work of the real cell (`tests.bench.cells`: clones, attributes, constraints). As §5.1
says: machines are removed in a random order until the work no longer fits, and each time it is packed from scratch on
those that remain; it still fits while at most 0.2 % of its tasks stay pending; 11 seeds, of which the 90th percentile
is the result, beside the range. Every scorer sees the same machines go in the same order, and the same order of tasks;
all policies are on (spreading, mixing, sampling, as a cell has them by default). The threshold is found by bisection,
to 1/1000 of the cell.

Cases: `google2011x5-prod-hybrid`, `-bestfit`, `-epvm`; `floor` is the share at which the CPU asked for alone would fill
the average machine. And `openb-default-130`, a GPU cell by its own published protocol: see `tests.bench.openb`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from quota.vocabulary.resources import CPU
from scheduling.core.pass_ import schedule_pass
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.policy import Policy
from tests.bench import cells, openb
from tests.bench.wanted import wanted

SEEDS = 11
PERCENTILE = 90
MAY_STAY_PENDING = 0.002
STEPS = 1000  # of the cell's size
SCORERS = {
    "google2011x5-prod-hybrid": "hybrid",
    "google2011x5-prod-bestfit": "best-fit",
    "google2011x5-prod-epvm": "e-pvm",
}
OPENB = "openb-default-130"


def measure() -> Iterator[dict[str, Any]]:
    seeds = range(3 if os.environ.get("BENCH_SMALL") == "1" else SEEDS)
    with ProcessPoolExecutor(min(len(seeds), os.cpu_count() or 1)) as pool:
        for case in wanted((*SCORERS, OPENB)):
            if case == OPENB:
                yield openb.measure_case(case)
                continue
            shares = [100 * share for share in pool.map(compacted, seeds, [SCORERS[case]] * len(seeds))]
            workload = _workload()
            yield {
                "case": case,
                "value": round(float(np.percentile(shares, PERCENTILE, method="higher")), 1),
                "unit": "%",
                "better": "lower",
                "min": round(min(shares), 1),
                "median": round(float(np.median(shares)), 1),
                "max": round(max(shares), 1),
                "floor": round(100 * floor(workload), 1),
                "seeds": len(shares),
                "machines": len(workload.machines),
                "tasks": workload.tasks,
            }


@cache
def _workload() -> cells.Workload:
    return cells.google2011().prod()


def floor(workload: cells.Workload) -> float:
    asked = sum(group.requirement.limit[CPU] * group.size for job in workload.jobs for group in job.groups)
    return asked / sum(machine.capacity[CPU] for machine in workload.machines)


def compacted(seed: int, scorer: str) -> float:
    """The smallest share of the cell's machines into which the work fits; 1 even when it doesn't fit at all."""
    cell = Shrinking(_workload(), seed, Policy(scorer=scorer, max_assignments=2**40))
    low, high = math.floor(STEPS * floor(_workload())) - 50, STEPS  # below `low` too little CPU is left
    while high - low > 1:
        middle = (low + high) // 2
        if cell.fits(middle / STEPS):
            high = middle
        else:
            low = middle
    return high / STEPS


class Shrinking:
    """A cell whose machines leave in the random order of `seed`."""

    def __init__(self, workload: cells.Workload, seed: int, policy: Policy) -> None:
        self.seed = seed
        self.policy = policy
        self.workload = workload
        order = np.random.default_rng(seed).permutation(len(workload.machines))
        self.machines = [workload.machines[number] for number in order]
        self.state = workload.load()
        self.there = len(self.machines)
        self.may_wait = math.floor(MAY_STAY_PENDING * workload.tasks)

    def fits(self, share: float) -> bool:
        """Whether the work fits into the first `share` of the machines, packed from scratch."""
        self._shrink_or_grow_to(math.ceil(share * len(self.machines)))
        plan = schedule_pass(self.state, self.policy, now=0.0, rng=np.random.default_rng(self.seed))
        return self.state.pending - len(plan.assignments) <= self.may_wait

    def _shrink_or_grow_to(self, number: int) -> None:
        news: list[events.Event] = [
            events.MachineRemoved(machine_id=machine.machine_id) for machine in self.machines[number : self.there]
        ]
        news += self.machines[self.there : number]
        for event in news:
            self.state.apply(event, revision=self.state.revision + 1, time=0.0)
        self.there = number
