"""When pending tasks fit together: if running tasks end at their time limits, or after the run times that were measured
for their jobs (§2.6). Only time limits justify bookings (`core/booking`); measured times are only shown.
"""

from __future__ import annotations

import math

import numpy as np

from scheduling.core.booking.bookings import fit_between_windows, wanted_of
from scheduling.core.booking.run_ends import Occupants, occupants_of
from scheduling.core.cell.state import CellState
from scheduling.core.explaining.forecast import Ends
from scheduling.core.kernels.placement import HELD_BACK, NOT_TRIED
from scheduling.core.placing.closed_machines import run_limit_s
from scheduling.core.placing.equivalence_classes import GroupedQueue
from scheduling.core.vocabulary.kernel_arrays import Tables

# A job's run time is taken from at least this many tasks that ended, at this percentile.
LEAST_RUNS = 5
PERCENTILE = 95.0


class FitTimes:
    """Finds out when classes of pending tasks fit, after one pass. `seen`: tasks that ended recently, if known."""

    def __init__(self, state: CellState, sorting: GroupedQueue, tables: Tables, now: float, seen: Ends | None) -> None:
        self._state, self._sorting, self._tables, self._now, self._seen = state, sorting, tables, now, seen
        self._occupants: Occupants | None = None

    def by_limits(self, group: int, gang: int, number: int) -> float:
        """Return the time in seconds since the epoch at which tasks of `group` fit if all tasks end at or before their
        time limits; inf if they do not. `gang`: the id of the job that is the gang; 0 if it is none. Then `number`
        tasks have to fit together.
        """
        if not self._state.tasks.job_ends_within_s.any():
            return math.inf
        return self._fit(group, gang, number, self._there)

    def by_run_times(self, group: int, gang: int, number: int) -> float:
        """Return the same time if each task without a time limit ends after the time that most tasks of its job took
        before. For a task that already ran longer, and for a job of which few tasks have ended, no end is assumed.
        """
        if self._seen is None or not self._seen.seen:
            return math.inf
        tasks, there = self._state.tasks, self._there
        measured = _run_times(self._seen, self._now)
        of_job = np.full(len(tasks.job_at), math.inf)
        for job_id, run_s in measured.items():
            if job_id in tasks.jobs:
                of_job[tasks.jobs[job_id].slot] = run_s
        probable = there.since + of_job[tasks.job[there.slots]]
        probable[probable <= self._now] = math.inf
        return self._fit(group, gang, number, there._replace(ends=np.minimum(there.ends, probable)))

    @property
    def _there(self) -> Occupants:
        if self._occupants is None:
            queue = len(self._sorting.slots)
            self._occupants = occupants_of(self._state, self._sorting, self._tables, queue, self._now)
        return self._occupants

    def _fit(self, group: int, gang: int, number: int, there: Occupants) -> float:
        sorting = self._sorting
        here = np.flatnonzero(sorting.of_task == group)
        here = here[~np.isin(self._tables.placed.machine[here], (NOT_TRIED, HELD_BACK))]
        job = int(sorting.job[here[0]])
        of = np.array([group], dtype=np.int32)
        if gang:
            job = next(place for place, one in enumerate(sorting.jobs) if one.id == gang)
            own = np.flatnonzero(sorting.job == job)
            of, number = np.unique(sorting.of_task[own]), len(own)
        wanted = wanted_of(self._tables, of, job, number)
        if wanted is None:
            return math.inf
        run_s = run_limit_s(sorting.jobs[job])
        ceiling = int(sorting.ceiling[group])
        at = fit_between_windows(self._state, self._tables, wanted, ceiling, there, sorting, run_s).at
        return at if at >= self._now else math.inf


def _run_times(seen: Ends, now: float) -> dict[int, float]:
    """Return the run time in seconds that most tasks of a job do not exceed, by job id."""
    rows, _ = seen.window(now)
    rows = rows[~np.isnan(seen.ran_s[rows])]
    jobs, number = np.unique(seen.job[rows], return_counts=True)
    return {
        job: float(np.percentile(seen.ran_s[rows[seen.job[rows] == job]], PERCENTILE))
        for job in jobs[number >= LEAST_RUNS].tolist()
    }
