"""The input of an experiment: the machines of a cell at one moment, and the jobs that it must run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain

import msgspec

from quota.vocabulary.bands import DEFAULT_BANDS, band_of
from scheduling.core.cell.state import CellState
from scheduling.core.vocabulary import events


@dataclass(frozen=True)
class CellWork:
    """The machines of a cell, and the jobs that it must run. All tasks are pending. `extra_resources`: the resources
    that the cell defines itself.
    """

    machines: tuple[events.MachineSet, ...]
    jobs: tuple[events.JobSubmitted, ...]
    extra_resources: tuple[str, ...] = ()

    @property
    def tasks(self) -> int:
        """Return the number of tasks of all jobs."""
        return sum(group.size for job in self.jobs for group in job.groups)

    def only(self, wanted: Callable[[events.JobSubmitted], bool]) -> CellWork:
        """Return the same machines with those jobs for which `wanted` returns True."""
        return replace(self, jobs=tuple(job for job in self.jobs if wanted(job)))

    def prod(self) -> CellWork:
        """Return the same machines with the production and monitoring jobs (§2.5)."""
        return self.only(is_prod)

    def nonprod(self) -> CellWork:
        """Return the same machines with the batch and free jobs."""
        return self.only(lambda job: not is_prod(job))

    def load(self) -> CellState:
        """Return a state in which every machine is up, and every task is pending."""
        state = CellState(self.extra_resources)
        state.load(((event, 0.0) for event in chain[events.Event](self.machines, self.jobs)), revision=1)
        return state

    def cloned(self, times: int) -> tuple[events.MachineSet, ...]:
        """Return the machines `times` times. Clones have ids, names, racks and power domains of their own."""
        most = max((machine.machine_id for machine in self.machines), default=0)
        return tuple(
            machine if clone == 0 else _clone(machine, clone, clone * most)
            for clone in range(times)
            for machine in self.machines
        )


def is_prod(job: events.JobSubmitted) -> bool:
    """Return whether the priority of a job is in a prod band. Raises `LookupError` if it is in no band."""
    return band_of(job.priority, DEFAULT_BANDS).prod


def _clone(machine: events.MachineSet, clone: int, offset: int) -> events.MachineSet:
    return msgspec.structs.replace(
        machine,
        machine_id=machine.machine_id + offset,
        hostname=f"{machine.hostname}-{clone}",
        rack=f"{machine.rack}-{clone}" if machine.rack else "",
        power_domain=f"{machine.power_domain}-{clone}" if machine.power_domain else "",
    )
