"""When running tasks end: at the latest by their time limit, or probably by the run times that were measured."""

from __future__ import annotations

import numpy as np

from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import RUNNING
from scheduling.core.vocabulary.kernel_arrays import Bools, Floats, Ints

# The seconds that a run may last beyond its limit: from SIGTERM to SIGKILL, and the report of the end. A task that
# uses booked capacity must end by so much before the gang starts.
MARGIN_S = 15.0


def latest_ends(since: Floats, max_run_s: Floats, now: float) -> Floats:
    """Return the times [N] at which runs end at the latest, in seconds since the epoch; inf for runs without a limit.

    A run that has exceeded its limit is being stopped, so it ends now. If it has exceeded the limit by more than
    `MARGIN_S`, its program was started again after a failure. Then it has the whole time again.
    """
    ends = since + max_run_s
    ends = np.where(ends > now, ends, np.where(ends + MARGIN_S > now, now, now + max_run_s))
    result: Floats = np.where(max_run_s > 0.0, ends, np.inf)
    return result


def ends_of(state: CellState, slots: Ints, now: float) -> Floats:
    """Return when the running tasks in `slots` [N] end at the latest, as `latest_ends`."""
    tasks = state.tasks
    return latest_ends(tasks.since[slots], tasks.job_max_run_s[tasks.job[slots]], now)


def holding(state: CellState, gone: Bools) -> Ints:
    """Return the slots of the running tasks that hold resources of a machine themselves. `gone` [T]: tasks that the
    pass has preempted, which are left out. Tasks inside allocs are left out too.
    """
    tasks = state.tasks
    return np.flatnonzero((tasks.state == RUNNING) & (tasks.machine >= 0) & (tasks.alloc < 0) & ~gone)
