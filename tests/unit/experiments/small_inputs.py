"""Cells of a few machines as inputs of experiments, with results that can be computed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.kernel_arrays import Ints
from scheduling.core.vocabulary.requirement import Group, Requirement, split_task_id
from scheduling.simulator.experiments.experiment import ExperimentInput
from scheduling.simulator.experiments.packing.cell_work import CellWork
from scheduling.simulator.workload import Ending

GIB = 2**30
PROD, BATCH = 200, 100


@dataclass(frozen=True)
class Constant:
    """A behaviour of simulated tasks: they use 1 GiB of RAM, and the milli-cores that `cpu` gives for their job."""

    cpu: Mapping[int, int]

    def ending(self, task_id: int, incarnation: int, priority: int) -> Ending | None:
        return None

    def demand(self, task_id: Ints, limit: Ints, priority: Ints, now: float) -> Ints:
        used = np.zeros((len(task_id), 3), dtype=np.int64)
        used[:, 0] = [self.cpu[split_task_id(identity)[0]] for identity in task_id.tolist()]
        used[:, 1] = GIB
        return used


def machines(number: int, *, cpu: int = 8000, ram: int = 64 * GIB) -> tuple[events.MachineSet, ...]:
    return tuple(
        events.MachineSet(
            machine_id=n + 1,
            hostname=f"m{n}",
            address="127.0.0.1",
            capacity=(cpu, ram, 2**40, 0, 0, 0),
            rack=f"r{n // 4}",
        )
        for n in range(number)
    )


def job(
    number: int, *, tasks: int, cpu: int, ram: int = GIB, priority: int = PROD, tenant: str = "a", apart: bool = False
) -> events.JobSubmitted:
    requirement = Requirement((cpu, ram, GIB, 0, 0, 0), max_per_machine=1 if apart else 0)
    return events.JobSubmitted(
        job_id=number,
        uid=f"{number:032x}",
        tenant_id=1 + ord(tenant[0]),
        tenant=tenant,
        name=f"j{number}",
        job_kind="job",
        priority=priority,
        latency_sensitive=priority >= PROD,
        spec_version=1,
        groups=(Group(requirement, ((0, tasks - 1),)),),
    )


def cell(number: int, *jobs: events.JobSubmitted, cpu: int = 8000) -> CellWork:
    return CellWork(machines(number, cpu=cpu), jobs)


def mixed(number: int = 10) -> ExperimentInput:
    """Return a cell with four prod tasks, and four batch tasks that fit beside them on the same machines.

    A prod task requests all eight cores of a machine and uses a quarter of them. A batch task requests five cores.
    """
    work = cell(number, job(1, tasks=4, cpu=8000), job(2, tasks=4, cpu=5000, priority=BATCH))
    return ExperimentInput(work, Constant({1: 2000, 2: 5000}))
