"""`pack`: seconds of one scheduling pass that packs a whole cell from scratch in memory, with every policy (§3.4,
§5.1).

Cases:
* `google2011x5`: the real cell (see `tests.bench.cells`);
* `synthetic-100k`: 100,000 machines and 1,000,000 tasks, drawn from the real cell;
* `google2011x5-no-cache`, `-no-classes`, `-no-random`: the real cell with one technique of §3.4 switched off. `factor`:
  how many times longer the pass takes.

Each case runs in a separate process with one thread. The time to load the cell is not counted. The pass begins with an
empty cache, and explains only a few of the task classes that stay pending. `all_explained`: seconds of a pass that
explains all of them. `peak_mib`: the largest resident memory of the process. Afterwards `tests.bench.proof` checks the
plan: a pending task that would fit, or a broken rule, fails the bench.

    BENCH_CASES=google2011x5-no            run only cases whose name begins with this
    python -m tests.bench.pack CASE        run one case in this process
"""

from __future__ import annotations

import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from scheduling.core.cell.state import CellState
from scheduling.core.explaining.explain import ExplainBudget, Explainer
from scheduling.core.pass_ import schedule_pass
from scheduling.core.vocabulary.plan import Plan
from scheduling.core.vocabulary.policy import Policy, Search
from tests.bench import cells
from tests.bench.proof import prove
from tests.bench.wanted import wanted

RUNS = 5
BUDGET_S = 300.0  # per case: slow cases have fewer runs than RUNS
EVERYTHING = 2**40
_ONE_THREAD = {"NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Case:
    build: Callable[[], cells.Workload]
    search: Search = field(default_factory=Search)
    runs: int = RUNS


CASES = {
    "google2011x5": Case(cells.google2011),
    "synthetic-100k": Case(lambda: cells.synthetic(100_000, 1_000_000)),
    "google2011x5-no-cache": Case(cells.google2011, Search(caching=False), runs=1),
    "google2011x5-no-classes": Case(cells.google2011, Search(classes=False), runs=1),
    "google2011x5-no-random": Case(cells.google2011, Search(randomise=False), runs=1),
}
SMALL = ("google2011x5",)  # the cases with BENCH_SMALL=1


def measure() -> Iterator[dict[str, Any]]:
    base = 0.0
    for name in wanted(SMALL if os.environ.get("BENCH_SMALL") == "1" else tuple(CASES)):
        done = subprocess.run(
            [sys.executable, "-m", "tests.bench.pack", name],
            env={**os.environ, **_ONE_THREAD},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        result = json.loads(done.stdout)
        if name == "google2011x5":
            base = result["value"]
        elif name.startswith("google2011x5-"):
            result["factor"] = round(result["value"] / base, 2) if base else None
        yield result


def run(name: str) -> dict[str, Any]:
    """Run one case in this process, and return its result."""
    case = CASES[name]
    workload = case.build()
    state = workload.load()
    policy = Policy(search=case.search, max_assignments=EVERYTHING)
    plan, times, cpu = _timed(state, policy, case.runs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    start = time.perf_counter()
    schedule_pass(state, policy, now=0.0, rng=np.random.default_rng(0))
    all_explained = time.perf_counter() - start
    proof = prove(workload, plan, policy)
    failed = []
    if proof.fits_left:
        failed.append(f"{proof.fits_left} tasks left pending would fit")
    if proof.violations:
        failed.append(f"{proof.violations} placements break a rule")
    return {
        "case": name,
        "value": round(statistics.median(times), 3),
        "unit": "s",
        "better": "lower",
        "min": round(min(times), 3),
        "max": round(max(times), 3),
        "cpu": round(statistics.median(cpu), 3),
        "runs": len(times),
        "all_explained": round(all_explained, 3),
        "machines": len(workload.machines),
        "tasks": workload.tasks,
        "classes": plan.stats.classes,
        "placed": proof.placed,
        "prod_unplaced": proof.prod_unplaced,
        "fits_left": proof.fits_left,
        "violations": proof.violations,
        "peak_mib": round(peak),
        **({"failed": failed} if failed else {}),
    }


def _timed(state: CellState, policy: Policy, runs: int) -> tuple[Plan, list[float], list[float]]:
    """Run the pass `runs` times after one warm-up. Return the last plan, and the elapsed and CPU seconds of each run.

    If a run takes very long, fewer runs follow. If the warm-up alone exceeds `BUDGET_S`, it is the only run and counts.
    """
    times: list[float] = []
    cpu: list[float] = []
    began = time.perf_counter()
    for number in range(runs + 1):
        plan = None  # free the last plan, so that the peak memory is that of one pass
        gc.collect()
        start, start_cpu = time.perf_counter(), time.process_time()
        plan = schedule_pass(
            state, policy, now=0.0, rng=np.random.default_rng(number), explainer=Explainer(ExplainBudget())
        )
        times.append(time.perf_counter() - start)
        cpu.append(time.process_time() - start_cpu)
        if time.perf_counter() - began + times[-1] > BUDGET_S and (number or times[0] > BUDGET_S):
            break
    first = min(1, len(times) - 1)
    return plan, times[first:], cpu[first:]


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in CASES:
        sys.exit(__doc__)
    print(json.dumps(run(sys.argv[1])))
