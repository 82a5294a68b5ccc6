"""Copies the state of a cell, so that events can be applied to the copy. Pure."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

from scheduling.core.cell.tasks import LiveJob
from scheduling.core.garbage import collection_paused
from scheduling.history.checkpoints.recorded import JobDetails, RecordedState


def copied(state: RecordedState) -> RecordedState:
    """Return an independent copy of a state. Both share the values that never change."""
    tasks, machines = state.tasks, state.machines
    # Collections of values that never change. `deepcopy` would look at each value.
    flat: list[Any] = [tasks.ports, tasks._free, tasks._free_jobs, tasks.shapes.requirement, tasks.shapes._shape]
    flat += [machines.slot, machines.facts, state.departed, *state.crashed.values()]
    flat += [holders for ports in machines.ports.values() for holders in ports.held().values()]
    copies: dict[int, Any] = {id(one): one.copy() for one in flat}
    copies |= {id(job): _job(job) for job in tasks.jobs.values()}
    copies |= {id(details): _details(details) for details in state.details.values()}
    with collection_paused():
        return copy.deepcopy(state, copies)


def _job(job: LiveJob) -> LiveJob:
    result = copy.copy(job)
    result.tasks = job.tasks.copy()
    return result


def _details(details: JobDetails) -> JobDetails:
    return replace(details, versions=details.versions.copy(), since=details.since.copy())
