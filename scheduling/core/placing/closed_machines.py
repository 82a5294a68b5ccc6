"""Which machines the maintenance calendar closes to pending tasks, and which ones tasks should avoid.

    time limit of a task ─┐                      ┌─► closed: the task may not start on these machines
    planned windows ──────┴─► the first k of them ┴─► avoided: it starts there only if no other machine fits

A task that may not run across the start of a window must end before it. Its machine is closed to it only within the
horizon before the window, so that capacity is idle for at most this time. Before that, the task avoids the machine. A
task without a time limit is never closed out before the window starts, but it avoids the machine within the horizon.
Both rules depend only on how many windows, in the order of their starts, concern the task. So tasks of different time
limits can be in one group, and the kernels get the rules as hard and soft constraints.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduling.core.cell.calendar import PlannedWindows
from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import LiveJob
from scheduling.core.vocabulary.kernel_arrays import Bools, Floats, Ints, Ints32
from scheduling.core.vocabulary.policy import Policy

# The seconds from the decision about a placement until the run starts: the commit, the message to the machine and the
# start of the program.
START_S = 15.0
# A machine in an avoided window counts as one that fails so many times the weight of all soft constraints. With the
# default weights, this is more than all other parts of the score together, except preemption. With a weight of 0 for
# soft constraints, tasks do not avoid machines.
AVOIDED = 4.0


@dataclass(frozen=True, slots=True, eq=False)
class ClosedMachines:
    """The windows that concern the groups of a queue. `closed`, `avoided` [G]: how many of the `planned` windows, in
    the order of their starts, close their machines to tasks of the group, or let the tasks avoid them. `until`: from
    this time on, other windows concern the tasks (seconds since the epoch; inf if none will).
    """

    planned: PlannedWindows
    closed: Ints32
    avoided: Ints32
    until: float

    def closed_to(self, group: int) -> Bools:
        """Return an array by machine slot: whether the machine is closed to the tasks of `group`."""
        return self.planned.covered(int(self.closed[group]))


@dataclass(frozen=True, slots=True, eq=False)
class Concerns:
    """The same as `ClosedMachines` before there are groups: `closed`, `avoided` [Q] by place in the queue. `key` [Q]:
    tasks whose keys differ cannot be in one group.
    """

    planned: PlannedWindows
    closed: Ints32
    avoided: Ints32
    key: Ints
    until: float

    def of_groups(self, first: Ints) -> ClosedMachines:
        """Return the windows that concern the groups whose first tasks have the places `first` [G]."""
        return ClosedMachines(self.planned, self.closed[first], self.avoided[first], self.until)


def run_limit_s(job: LiveJob) -> float:
    """Return within how many seconds a run of each task of the job ends; 0 if a task has no time limit. A task that may
    start again in place counts with one run.
    """
    return job.ends_within_s or job.max_run_s


def concerns_of(state: CellState, policy: Policy, run_s: Floats, of_task: Ints32 | Ints, now: float) -> Concerns | None:
    """Return which planned windows concern the tasks of a queue, or None if the cell has no planned window.

    `run_s` [J]: the time limit of each job, 0 for none. `of_task` [Q]: the job of each place in the queue.
    """
    planned = state.calendar.planned(state.machines, now)
    if planned is None:
        return None
    horizon = now + policy.maintenance_horizon_s
    ends = now + START_S + run_s
    limited = run_s > 0.0
    starts = planned.starts
    closed = np.where(
        limited, np.searchsorted(starts, np.minimum(ends, horizon)), np.searchsorted(starts, now, side="right")
    )
    avoided = np.where(limited, np.searchsorted(starts, ends), np.searchsorted(starts, horizon))
    avoided = np.maximum(avoided, closed)
    key = closed * np.int64(len(starts) + 1) + avoided
    numbers = np.unique(key, return_inverse=True)[1].astype(np.int64)
    return Concerns(
        planned,
        closed[of_task].astype(np.int32),
        avoided[of_task].astype(np.int32),
        numbers[of_task],
        min(float(planned.ends.min()), _next_change(starts, run_s[limited], policy.maintenance_horizon_s, now)),
    )


def _next_change(starts: Floats, run_s: Floats, horizon_s: float, now: float) -> float:
    """Return the first time after `now` at which another window concerns a task with one of the time limits."""
    before = np.unique(np.concatenate((np.array([0.0, horizon_s]), run_s + START_S)))
    times = (starts[:, None] - before).ravel()
    return float(times[times > now].min(initial=np.inf))


def crossing(planned: PlannedWindows, begin: float, run_s: float) -> Bools:
    """Return an array by machine slot: whether a window of the machine interrupts a run that begins at `begin`.
    `run_s`: the time limit of the run; if it is 0, whether the window has started and not ended then.
    """
    if run_s > 0.0:
        hit = (planned.starts < begin + run_s) & (planned.ends > begin)
    else:
        hit = (planned.starts <= begin) & (planned.ends > begin)
    result: Bools = np.logical_or.reduce(planned.covers[hit], axis=0)
    return result
