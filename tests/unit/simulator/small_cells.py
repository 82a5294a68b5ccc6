"""Small simulated cells: twelve machines in three racks, and jobs that arrive over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scheduling.core.cell.state import CellState
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import Group
from scheduling.simulator.behaviour import Drawn
from scheduling.simulator.simulation import Settings, Simulation
from scheduling.simulator.workload import Ending, MachineChange, Submissions, Workload
from tests.builders import GIB, needs, vector

MACHINES, RACKS = 12, 3
BUSY_S = 900.0


def machine(number: int, **others: Any) -> events.MachineSet:
    return events.MachineSet(
        machine_id=number,
        hostname=f"m{number}",
        address="127.0.0.1",
        capacity=vector(cpu=16_000, ram=64 * GIB, disk=100 * GIB),
        rack=f"r{number % RACKS}",
        **others,
    )


def job(
    number: int, *, tasks: int = 1, cpu: int = 1000, ram: int = GIB, priority: int = 200, **others: Any
) -> events.JobSubmitted:
    return events.JobSubmitted(
        job_id=number,
        uid=f"{number:032x}",
        tenant_id=1,
        tenant="demo",
        name=f"job{number}",
        job_kind="job",
        priority=priority,
        latency_sensitive=priority >= 120,
        spec_version=1,
        groups=(Group(needs(cpu=cpu, ram=ram), ((0, tasks - 1),)),),
        **others,
    )


@dataclass(frozen=True)
class Lasting:
    """A behaviour of simulated tasks. Those of job N run for `seconds[N]` seconds.

    They use all RAM of their limit and half of its CPU.
    """

    seconds: dict[int, float]

    def ending(self, task_id: int, incarnation: int, priority: int) -> Ending | None:
        after_s = self.seconds.get(task_id >> 20)
        return Ending(after_s, "finished") if after_s is not None else None

    def demand(self, task_id: Any, limit: Any, priority: Any, now: float) -> Any:
        result = limit[:, :3].copy()
        result[:, 0] //= 2
        return result


def simulation(
    jobs: Sequence[tuple[float, events.JobSubmitted]] = (),
    *,
    behaviour: Any = None,
    changes: Sequence[MachineChange] = (),
    settings: Settings | None = None,
    machines: int = MACHINES,
    seed: int = 2011,
) -> Simulation:
    """Return a cell of `machines` machines, to which the `jobs` (time in seconds, job) are submitted."""
    state = CellState()
    state.load(((machine(number), 0.0) for number in range(1, machines + 1)), revision=machines)
    arrivals = Submissions(np.array([at for at, _ in jobs]), [one for _, one in jobs])
    workload = Workload(behaviour or Lasting({}), arrivals, changes)
    return Simulation(state, workload, settings, seed=seed)


def busy(seed: int = 2011, **others: Any) -> Simulation:
    """Return a cell that is busy for a quarter of an hour, with 100 jobs of all bands and failures of machines."""
    rng = np.random.default_rng(seed)
    times = np.sort(rng.uniform(0.0, BUSY_S, size=100)).tolist()
    jobs = [
        (
            at,
            job(
                number,
                tasks=int(rng.integers(1, 8)),
                cpu=int(rng.integers(1_000, 8_000)),
                ram=int(rng.integers(1, 20)) * GIB // 4,
                priority=int(rng.choice([25, 100, 118, 200, 360])),
            ),
        )
        for number, at in enumerate(times, start=1)
    ]
    changes = []
    for number in range(1, MACHINES + 1, 4):
        at = 75.0 * number
        changes += [MachineChange(at, number, None), MachineChange(at + 200.0, number, machine(number))]
    behaviour = Drawn(seed, median_s=600.0)
    return simulation(jobs, behaviour=behaviour, changes=changes, seed=seed, **others)
