"""What has to change so that a cell requests again what it requested at an earlier moment. Pure.

    state at the moment ─► requested ─┐
                                      ├─► Differences: jobs to stop, to submit again, and that are live in both states
    present state ───────► requested ─┘

Jobs are compared by tenant and name, because a job that has ended comes back as a new job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from scheduling.core.cell.tasks import DEAD, LiveJob
from scheduling.history.checkpoints.recorded import RecordedState

JobName = tuple[str, str]  # tenant, name


@dataclass(frozen=True, slots=True)
class RequestedJob:
    """A job that is live in a state. `version`: of its spec. `alloc_set`: the name of the alloc set that contains it,
    or "". `alive`, `dead`: the indexes of its tasks. `machines`: the id of the machine, by index of a running task.
    `waiting`: whether it waits for other jobs.
    """

    id: int
    tenant: str
    name: str
    kind: str
    alloc_set: str
    version: int
    alive: frozenset[int]
    dead: frozenset[int]
    machines: Mapping[int, int]
    waiting: bool = False

    @property
    def key(self) -> JobName:
        return self.tenant, self.name

    @property
    def outer(self) -> JobName:
        """Return the tenant and name of the alloc set that contains the job."""
        return self.tenant, self.alloc_set

    @property
    def title(self) -> str:
        return f"{self.tenant}/{self.name}"


@dataclass(frozen=True, slots=True)
class Pair:
    """A name that a live job has at both moments. The ids of the jobs may differ, and then kind and alloc set too."""

    then: RequestedJob
    now: RequestedJob

    @property
    def back(self) -> frozenset[int]:
        """Return the indexes of the tasks that were alive and are dead now."""
        return self.then.alive & self.now.dead

    @property
    def over(self) -> frozenset[int]:
        """Return the indexes of the tasks that were dead and are alive now."""
        return self.then.dead & self.now.alive

    @property
    def elsewhere(self) -> int:
        """Return how many tasks run at both moments, but on different machines."""
        here = self.now.machines
        return sum(here.get(index, machine) != machine for index, machine in self.then.machines.items())


@dataclass(frozen=True, slots=True)
class Differences:
    """`stop`: live jobs that the cell did not have. `submit`: jobs that have ended since. `pairs`: the others.
    `joined`, `removed`, `changed`: names of machines.
    """

    stop: list[RequestedJob] = field(default_factory=list)
    submit: list[RequestedJob] = field(default_factory=list)
    pairs: list[Pair] = field(default_factory=list)
    joined: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)


def differences(then: RecordedState, now: RecordedState) -> Differences:
    """Compare the live jobs and the machines of a cell at an earlier moment with those at present."""
    earlier, present = requested(then), requested(now)
    found = Differences()
    for name in sorted(earlier.keys() | present.keys()):
        before, after = earlier.get(name), present.get(name)
        if before and after:
            found.pairs.append(Pair(before, after))
        elif after:
            found.stop.append(after)
        elif before:
            found.submit.append(before)
    machines, present_machines = _machines(then), _machines(now)
    found.joined.extend(sorted(name for _, name in present_machines.keys() - machines.keys()))
    found.removed.extend(sorted(name for _, name in machines.keys() - present_machines.keys()))
    both = machines.keys() & present_machines.keys()
    found.changed.extend(sorted(key[1] for key in both if machines[key] != present_machines[key]))
    return found


def requested(state: RecordedState) -> dict[JobName, RequestedJob]:
    """Return the live jobs of a state."""
    jobs = state.tasks.jobs
    return {(job.tenant, job.name): _requested(state, job) for job in jobs.values() if not job.ended}


def _requested(state: RecordedState, job: LiveJob) -> RequestedJob:
    tasks = state.tasks
    indexes = np.flatnonzero(job.tasks >= 0)
    slots = job.tasks[indexes]
    dead = tasks.state[slots] == DEAD
    running = tasks.machine[slots] >= 0
    on = state.machines.id[tasks.machine[slots[running]]]
    outer = state.tasks.jobs.get(job.alloc_set)
    return RequestedJob(
        id=job.id,
        tenant=job.tenant,
        name=job.name,
        kind=job.kind,
        alloc_set=outer.name if outer else "",
        version=state.details[job.id].spec_version,
        alive=frozenset(indexes[~dead].tolist()),
        dead=frozenset(indexes[dead].tolist()),
        machines=dict(zip(indexes[running].tolist(), on.tolist(), strict=True)),
        waiting=job.waiting,
    )


def _machines(state: RecordedState) -> dict[tuple[int, str], tuple[object, ...]]:
    """Return the facts and the state of each machine, by its id and name."""
    machines = state.machines
    return {
        (identity, machines.facts[slot].hostname): (
            msgspec.structs.replace(machines.facts[slot], state=""),
            int(machines.status[slot]),
        )
        for identity, slot in machines.slot.items()
    }
