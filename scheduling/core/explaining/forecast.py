"""Forecasts when the next task of a pending class starts, as a range of time. Without data about ended tasks, there is
no forecast. An *opening* is capacity for one task of the class that becomes free.

    tasks that end ─► Ends ─► on machines that could hold the class ─► rate of openings ─┐
    queue ahead ─► openings that other tasks use ────────────────────────────────────────┴─► Expected

The model: capacity becomes free as a Poisson process. Its rate is estimated from the tasks that ended within a
window. The waiting time for the k-th opening is then a quotient of two gamma variables. The range begins at the 10th
percentile of the numerator divided by the 90th percentile of the denominator. It ends at the 90th percentile of the
numerator divided by the 10th of the denominator. More urgent work that arrives later is not considered.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.kernel_arrays import Bools, Floats, Ints
from scheduling.core.vocabulary.reasons import Basis, ExpectedStart

if TYPE_CHECKING:  # its kernels cost every process that imports them 45 MB
    from scheduling.core.cell.state import CellState

# How far back ends are counted, and how many are kept.
WINDOW_S = 1800.0
KEPT = 4096
# Nothing is said of a time beyond this: the cell will be another one by then.
FARTHEST_S = 7 * 86_400.0
_Z = 1.2816  # of the 10th and 90th percentile


class Ends:
    """The tasks that recently ended or were killed, each with its time, machine, priority and released resources.

    Evicted tasks are not included, because they become pending again, and other tasks already use their capacity.
    """

    def __init__(self, axis: int, kept: int = KEPT) -> None:
        self.time: Floats = np.zeros(kept, dtype=np.float64)
        self.machine: Ints = np.zeros(kept, dtype=np.int64)
        self.slot: Ints = np.zeros(kept, dtype=np.int64)  # where that machine was in the state's arrays
        self.priority: Ints = np.zeros(kept, dtype=np.int64)
        self.by_limit: Bools = np.zeros(kept, dtype=np.bool_)
        self.limit: Ints = np.zeros((kept, axis), dtype=np.int64)
        self.reservation: Ints = np.zeros((kept, axis), dtype=np.int64)
        self.job: Ints = np.zeros(kept, dtype=np.int64)
        self.ran_s: Floats = np.zeros(kept, dtype=np.float64)  # nan: the task did not finish
        self.seen = 0
        self.since: float | None = None

    def observe(self, state: CellState, event: events.Event, time: float) -> None:
        """Record an event. Call it before `state` applies the event. `time`: seconds since the epoch."""
        if self.since is None:
            self.since = time
        if not isinstance(event, events.TaskEnded) or not event.machine_id:
            return
        job = state.tasks.jobs.get(event.job_id)
        if job is None or not 0 <= event.index < len(job.tasks):
            return
        task = int(job.tasks[event.index])
        if task < 0 or state.tasks.machine[task] < 0:
            return
        at = self.seen % len(self.time)
        self.seen += 1
        self.time[at], self.machine[at], self.slot[at] = time, event.machine_id, state.tasks.machine[task]
        self.priority[at], self.by_limit[at] = job.priority, job.by_limit
        self.limit[at] = state.tasks.shapes.limit[state.tasks.shape[task]]
        self.reservation[at] = state.tasks.reservation[task]
        self.job[at] = job.id
        self.ran_s[at] = time - state.tasks.since[task] if event.how == "finished" else math.nan

    def window(self, now: float) -> tuple[Ints, float]:
        """Return two values: the indexes of the tasks that ended recently, in arrays such as `self.time`, and the
        length of the observed time in seconds.
        """
        rows = np.arange(min(self.seen, len(self.time)))
        rows = rows[self.time[rows] >= now - WINDOW_S]
        begin = max(now - WINDOW_S, self.since if self.since is not None else now)
        if self.seen > len(self.time):
            begin = max(begin, float(self.time.min()))
        return rows, max(0.0, now - begin)


def openings(
    seen: Ends, now: float, *, able: Bools, machine_ids: Ints, ceiling: int, by_limit: bool, r: int, want: int
) -> tuple[int, float, float]:
    """Measure how much capacity was freed for a class by tasks that ended recently. Return three numbers: how many
    tasks ended, how many tasks of the class fit into the freed capacity, and the observed time in seconds.

    `able`, `machine_ids`: by machine slot, whether the machine could hold a task of the class, and the id of the
    machine. `r`: the resource that is short. `want`: how much of `r` one task of the class asks for. Ended tasks with a
    priority below `ceiling` do not count, because the class could have preempted them. `by_limit`: whether the class is
    placed by limits; then ended tasks that were placed by reservation do not count.
    """
    rows, seconds = seen.window(now)
    # A slot may have another machine by now.
    rows = rows[(machine_ids[seen.slot[rows]] == seen.machine[rows]) & able[seen.slot[rows]]]
    rows = rows[seen.priority[rows] >= ceiling]
    if by_limit:
        rows = rows[seen.by_limit[rows]]
    freed = (seen.limit if by_limit else seen.reservation)[rows, r]
    return int(np.count_nonzero(freed)), float(freed.sum()) / max(1, want), seconds


def expected_start(*, ends: int, room: float, seconds: float, ahead: tuple[float, float]) -> ExpectedStart:
    """Return the range of time in which the next task of a class is expected to start.

    `ends`: how many tasks ended within the last `seconds` seconds. `room`: how many tasks of the class fit into the
    capacity that became free. `ahead`: the minimum and maximum number of tasks before the class in the queue, counted
    in tasks of the size of the class.
    """
    if ends == 0 or room <= 0.0 or seconds <= 0.0:
        return ExpectedStart(Basis.NO_HISTORY)
    each = room / ends  # tasks that one end makes room for
    fewest, most = (max(1.0, (1.0 + tasks) / each) for tasks in ahead)
    low = seconds * _gamma(fewest, -_Z) / _gamma(ends + 1.0, _Z)
    high = seconds * _gamma(most, _Z) / _gamma(float(ends), -_Z)
    promised = high <= FARTHEST_S
    return ExpectedStart(
        Basis.ENDS if promised else Basis.NO_HISTORY,
        round(low, 1) if promised else None,
        round(high, 1) if promised else None,
        ends=ends,
        window_s=round(seconds, 1),
        room=round(room, 3),
        least=round(ahead[0], 1),
        ahead=round(ahead[1], 1),
    )


def _gamma(shape: float, z: float) -> float:
    """Return a quantile of the gamma distribution with shape `shape` and rate 1, but at least 0.02. `z`: the same
    quantile of the standard normal distribution. The function uses the approximation of Wilson and Hilferty.
    """
    root = 1.0 - 1.0 / (9.0 * shape) + z / (3.0 * math.sqrt(shape))
    return max(0.02, shape * max(0.0, root) ** 3)
