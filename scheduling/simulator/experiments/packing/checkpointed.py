"""The cell of a checkpoint as the input of experiments: the machines that are up, and the tasks that run."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec
import numpy as np

from scheduling.core.cell.tasks import RUNNING, LiveJob
from scheduling.core.reclamation.usage_history import KINDS
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.kernel_arrays import Ints
from scheduling.core.vocabulary.reclamation_presets import Preset
from scheduling.core.vocabulary.requirement import Group
from scheduling.core.vocabulary.states import MachineStatus
from scheduling.history.checkpoints.recorded import RecordedState
from scheduling.simulator.experiments.packing.cell_work import CellWork
from scheduling.simulator.workload import Ending


def running_work(state: RecordedState) -> CellWork:
    """Return the machines that are up, and the jobs with those of their tasks that run.

    Tasks inside allocs are left out: they use the resources of their allocs, and the allocs are tasks too (§2.4).
    """
    machines, up = state.machines, state.machines.up
    return CellWork(
        machines=tuple(
            msgspec.structs.replace(machines.facts[slot], state=MachineStatus.UP.value)
            for _, slot in sorted(machines.slot.items())
            if up[slot]
        ),
        jobs=tuple(
            job
            for _, live in sorted(state.tasks.jobs.items())
            if not live.alloc_set and (job := _submitted(state, live)).groups
        ),
        extra_resources=state.extra_resources,
    )


@dataclass(frozen=True, eq=False, repr=False)
class ReservedUsage:
    """The behaviour of tasks whose usage is known only from their reservations: each task always uses the same amounts.

    `task_id` [N]: in ascending order. `usage` [N, K]: CPU (milli-cores), RAM and disk (bytes) of each task.
    """

    task_id: Ints
    usage: Ints

    @classmethod
    def of(cls, state: RecordedState, preset: Preset) -> ReservedUsage:
        """Return the usage of all running tasks, estimated from their reservations: the reservation without the safety
        margin of `preset`, the reclamation setting of the cell (§5.5).
        """
        tasks = state.tasks
        slots = np.flatnonzero(tasks.state == RUNNING)
        slots = slots[np.argsort(tasks.id[slots])]
        usage = tasks.reservation[slots][:, : len(KINDS)] / (1.0 + np.array(preset.margin))
        return cls(tasks.id[slots], usage.astype(np.int64))

    def ending(self, task_id: int, incarnation: int, priority: int) -> Ending | None:
        return None

    def demand(self, task_id: Ints, limit: Ints, priority: Ints, now: float) -> Ints:
        return self.usage[np.searchsorted(self.task_id, task_id)]

    def __repr__(self) -> str:
        digest = hashlib.sha256(self.task_id.tobytes() + self.usage.tobytes()).hexdigest()[:16]
        return f"ReservedUsage({len(self.task_id)} tasks, {digest})"


def _submitted(state: RecordedState, job: LiveJob) -> events.JobSubmitted:
    """Return the submission of a job with only its running tasks."""
    tasks, details = state.tasks, state.details[job.id]
    there = np.flatnonzero(job.tasks >= 0)
    there = there[tasks.state[job.tasks[there]] == RUNNING]
    shape = tasks.shape[job.tasks[there]]
    return events.JobSubmitted(
        job_id=job.id,
        uid=details.uid,
        tenant_id=job.tenant_id,
        tenant=job.tenant,
        name=job.name,
        job_kind=job.kind,
        priority=job.priority,
        latency_sensitive=job.latency_sensitive,
        spec_version=details.spec_version,
        groups=tuple(
            Group(tasks.shapes.requirement[one], _ranges(there[shape == one])) for one in np.unique(shape).tolist()
        ),
        port_names=job.port_names,
        gang=job.gang,
        disruption_budget=job.disruption_budget,
        max_run_s=job.max_run_s,
        ends_within_s=job.ends_within_s,
    )


def _ranges(indexes: Ints) -> tuple[tuple[int, int], ...]:
    """Return the first and the last index of each range of neighbours in `indexes`, which are in ascending order."""
    parts = np.split(indexes, np.flatnonzero(np.diff(indexes) > 1) + 1)
    return tuple((int(part[0]), int(part[-1])) for part in parts)
