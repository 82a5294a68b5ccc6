"""Whole cells for benchmarks: the events that create the machines and submit the jobs.

    google2011(clones=5)    a sample of one fifth of a real Borg cell, copied five times as in §5.1: 12,260 machines
    synthetic(100_000, …)   machines and jobs that are drawn at random from those of the real cell

Source: Google's published cluster trace ClusterData2011_2 (John Wilkes, Charles Reiss; CC-BY 4.0). Attributes and
constraints are drawn at random: see `scheduling.simulator.experiments.packing.fifth_of_cell_2011`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from quota.vocabulary.resources import Vector
from scheduling.core.cell.state import CellState
from scheduling.simulator.experiments.packing import fifth_of_cell_2011
from scheduling.simulator.experiments.packing.cell_work import CellWork
from scheduling.simulator.experiments.packing.fifth_of_cell_2011 import SEED, TraceJob
from tests.bench import google2011 as trace

# By how much the sizes of copied jobs differ at most from the original: few jobs request round numbers (§5.4).
JITTER_PERCENT = 10
PROD_FROM = 120  # production and monitoring


class Workload(CellWork):
    """The machines of a cell, and the jobs that the cell must run."""

    def load(self) -> CellState:
        """Return the state of the cell with all machines and pending jobs.

        Python's garbage collector ignores the state from now on, as in the processes of the product.
        """
        state = super().load()
        gc.collect()
        gc.freeze()
        return state


def google2011(clones: int = 5, *, constraints: bool = True, seed: int = SEED) -> Workload:
    """Return the sample of one fifth of Google's cell, copied `clones` times; 5 copies give a cell of full size.

    Each copy has the same machines, attributes and constraints, and new jobs. `seed` determines the random attributes
    and constraints.
    """
    return _workload(fifth_of_cell_2011.fifth(trace.folder(), clones, constraints=constraints, seed=seed))


def synthetic(machines: int, tasks: int, *, seed: int = SEED) -> Workload:
    """Return a random cell. Its machines and jobs are copies of random ones of the real cell, and the jobs have `tasks`
    tasks in total.

    The CPU and RAM of each job differ from the original by up to 10 %, so that a larger cell has more distinct
    requests.
    """
    rng = np.random.default_rng(seed)
    real = fifth_of_cell_2011.trace_machines(trace.folder())
    fleet = fifth_of_cell_2011.equipped([real[number] for number in rng.integers(len(real), size=machines)], rng)
    jobs = (
        (job, fifth_of_cell_2011.demand(rng, fleet), number, f"j{number}")
        for number, job in enumerate(_drawn(tasks, rng))
    )
    return _workload(fifth_of_cell_2011.assembled(fleet, jobs))


def _workload(work: CellWork) -> Workload:
    return Workload(work.machines, work.jobs)


@cache
def _real_jobs() -> tuple[TraceJob, ...]:
    return tuple(fifth_of_cell_2011.trace_jobs(trace.folder()))


def _drawn(tasks: int, rng: np.random.Generator) -> Iterator[TraceJob]:
    jobs = _real_jobs()
    while tasks > 0:
        job = jobs[rng.integers(len(jobs))]
        factors = rng.integers(100 - JITTER_PERCENT, 100 + JITTER_PERCENT, size=2, endpoint=True)
        job = replace(job, limits=tuple((_scaled(limit, factors), ranges) for limit, ranges in job.limits))
        if job.tasks > tasks:  # the last job is shortened
            job = replace(job, limits=((job.limits[0][0], ((0, tasks - 1),)),))
        yield job
        tasks -= job.tasks


def _scaled(limit: Vector, percent: Sequence[int]) -> Vector:
    cpu, ram = (int(-(-value * factor // 100)) for value, factor in zip(limit[:2], percent, strict=True))
    return (cpu, ram, *limit[2:])
