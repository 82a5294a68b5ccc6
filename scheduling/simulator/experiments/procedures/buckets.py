"""Figure 9: requests rounded up to powers of two."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from quota.vocabulary.resources import CPU, RAM, Vector
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import Group
from scheduling.simulator.experiments.experiment import (
    Case,
    Experiment,
    ExperimentInput,
    Figures,
    Results,
    Row,
    additional,
)
from scheduling.simulator.experiments.packing.cell_work import CellWork, is_prod
from scheduling.simulator.experiments.packing.compaction import compact
from scheduling.simulator.experiments.procedures.compaction import WHOLE

BUCKETS = "buckets"
SMALLEST = {CPU: 500, RAM: 2**30}


def rounded(limit: Vector) -> Vector:
    """Return a limit whose CPU and RAM are rounded up to 0.5, 1, 2, 4, … cores and to 1, 2, 4, … GiB."""
    result = list(limit)
    for resource, smallest in SMALLEST.items():
        bucket = smallest
        while bucket < limit[resource]:
            bucket *= 2
        result[resource] = bucket
    return tuple(result)


def bucketed(work: CellWork) -> tuple[CellWork, int]:
    """Return the work with rounded limits of prod jobs, and the number of its tasks that are then larger than every
    machine. These tasks are left out.
    """
    kinds = {(machine.capacity[CPU], machine.capacity[RAM]) for machine in work.machines}
    jobs: list[events.JobSubmitted] = []
    large = 0
    for job in work.jobs:
        if not is_prod(job):
            jobs.append(job)
            continue
        groups = []
        for group in job.groups:
            limit = rounded(group.requirement.limit)
            if any(limit[CPU] <= cpu and limit[RAM] <= ram for cpu, ram in kinds):
                groups.append(Group(msgspec.structs.replace(group.requirement, limit=limit), group.ranges))
            else:
                large += group.size
        if groups:
            jobs.append(msgspec.structs.replace(job, groups=tuple(groups)))
    return replace(work, jobs=tuple(jobs)), large


def buckets(given: ExperimentInput, seed: int) -> Figures:
    """Return the fewest machines on which the cell's work fits if CPU and RAM in the limits of prod tasks are rounded
    up to powers of two. `machines`: without the tasks that are then larger than every machine. `upper`: with one more
    machine for each of these tasks. `large`: the number of these tasks.
    """
    work, large = bucketed(given.work)
    lower = compact(work, given.packing(), seed=seed).machines
    return {"machines": lower, "upper": lower + large, "large": large}


CASES: dict[str, Case] = {BUCKETS: buckets}


def _rows(results: Results) -> list[Row]:
    trials, whole = results[BUCKETS], results[WHOLE]
    return [
        additional("lower bound", trials, whole, paper_low=30, paper_high=50),
        additional("upper bound", trials, whole, name="upper", paper_low=30, paper_high=50),
    ]


EXPERIMENT = Experiment(
    name="buckets",
    figure=9,
    title="Requests rounded up to powers of two",
    paper="30–50 % more resources in the median case.",
    differs="Only the limits of prod tasks are rounded up. The paper also rounds those of allocs, which the trace does"
    " not have. Reservations follow usage and stay the same. Machines have a little less RAM than a power of two, so a"
    " limit that was rounded up to a large power of two often does not fit.",
    cases=(WHOLE, BUCKETS),
    rows=_rows,
)
