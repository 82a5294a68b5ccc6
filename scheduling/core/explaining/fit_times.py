"""When pending tasks fit together: at the latest by the time limits of running tasks, or probably by the run times that
were measured for their jobs (§2.6). Only time limits justify bookings (`core/booking`); measured times are shown.
"""

from __future__ import annotations

import math

import numpy as np

from scheduling.core.booking.bookings import fit_at, wanted_of
from scheduling.core.booking.run_ends import ends_of, holding
from scheduling.core.cell.state import CellState
from scheduling.core.explaining.forecast import Ends
from scheduling.core.kernels.placement import NOT_TRIED
from scheduling.core.placing.equivalence_classes import GroupedQueue
from scheduling.core.vocabulary.kernel_arrays import Floats, Ints, Tables

# A job's run time is taken from at least so many tasks that ended, at this percentile.
LEAST_RUNS = 5
PERCENTILE = 95.0


class FitTimes:
    """Finds out when classes of pending tasks fit, after one pass. `seen`: tasks that ended recently, if known."""

    def __init__(self, state: CellState, sorting: GroupedQueue, tables: Tables, now: float, seen: Ends | None) -> None:
        self._state, self._sorting, self._tables, self._now, self._seen = state, sorting, tables, now, seen
        self._slots: Ints | None = None
        self._latest: Floats = np.zeros(0)

    def by_limits(self, group: int, gang: int, number: int) -> float:
        """Return the time in seconds since the epoch at which tasks of `group` fit if all tasks end at or before their
        time limits; inf if they do not. `gang`: the id of the job that is the gang; 0 if it is none. Then `number`
        tasks have to fit together.
        """
        if not self._state.tasks.job_max_run_s.any():
            return math.inf
        return self._fit(group, gang, number, self._ends())

    def by_run_times(self, group: int, gang: int, number: int) -> float:
        """Return the same time if each task without a time limit ends after the time that most tasks of its job took
        before. For a task that already ran longer, and for a job of which few tasks have ended, no end is assumed.
        """
        if self._seen is None or not self._seen.seen:
            return math.inf
        ends = self._ends().copy()
        tasks, slots = self._state.tasks, self._slots
        assert slots is not None
        measured = _run_times(self._seen, self._now)
        of_job = np.full(len(tasks.job_at), math.inf)
        for job_id, run_s in measured.items():
            if job_id in tasks.jobs:
                of_job[tasks.jobs[job_id].slot] = run_s
        probable = tasks.since[slots] + of_job[tasks.job[slots]]
        probable[probable <= self._now] = math.inf
        return self._fit(group, gang, number, np.minimum(ends, probable))

    def _ends(self) -> Floats:
        if self._slots is None:
            self._slots = holding(self._state, self._tables.running.gone)
            self._latest = ends_of(self._state, self._slots, self._now)
        return self._latest

    def _fit(self, group: int, gang: int, number: int, ends: Floats) -> float:
        sorting, slots = self._sorting, self._slots
        assert slots is not None
        here = np.flatnonzero(sorting.of_task == group)
        here = here[self._tables.placed.machine[here] != NOT_TRIED]
        job = int(sorting.job[here[0]])
        of = np.array([group], dtype=np.int32)
        if gang:
            job = next(place for place, one in enumerate(sorting.jobs) if one.id == gang)
            own = np.flatnonzero(sorting.job == job)
            of, number = np.unique(sorting.of_task[own]), len(own)
        wanted = wanted_of(self._tables, of, job, number)
        if wanted is None:
            return math.inf
        at = fit_at(self._state, self._tables, wanted, int(sorting.ceiling[group]), slots, ends).at
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
