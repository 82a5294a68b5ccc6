"""A week of Google's cell of 2011, reduced to one fifth: its tasks at one moment, and every fifth job that arrived
later.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.kernel_arrays import Floats, Ints
from scheduling.core.vocabulary.requirement import split_task_id, task_id
from scheduling.simulator.behaviour import Drawn
from scheduling.simulator.traces import cell_2011, google2011
from scheduling.simulator.traces.google2011 import TraceArrivals
from scheduling.simulator.workload import Ending, Workload

EVERY, DAYS = 5, 7.0


@dataclass(frozen=True, eq=False)
class WeekArrivals:
    """Every fifth job of `trace`: when it arrives (`Arrivals`), and how its tasks behave (`Behaviour`). `initial`: how
    many jobs the cell has at the beginning; their ids are 1 to `initial`, and the arriving jobs have the next ids.
    `others`: the behaviour of the tasks of the initial jobs.
    """

    trace: TraceArrivals
    initial: int
    others: Drawn

    @property
    def times(self) -> Floats:
        return self.trace.times[::EVERY]

    def job(self, number: int) -> events.JobSubmitted:
        job_id = self.initial + number + 1
        return msgspec.structs.replace(self.trace.job(EVERY * number), job_id=job_id, uid=f"{job_id:032x}")

    def ending(self, task_id_: int, incarnation: int, priority: int) -> Ending | None:
        job_id, index = split_task_id(task_id_)
        if job_id <= self.initial:
            return self.others.ending(task_id_, incarnation, priority)
        own = task_id(EVERY * (job_id - self.initial - 1) + 1, index)
        return self.trace.ending(own, incarnation, priority)

    def demand(self, task_id: Ints, limit: Ints, priority: Ints, now: float) -> Ints:
        return self.others.demand(task_id, limit, priority, now)


def week(folder: Path, *, seed: int = google2011.SEED, days: float = DAYS) -> tuple[list[events.Event], Workload]:
    """Return the machines and the jobs of a fifth of Google's cell, and a workload for `days` days: jobs that arrive,
    failures of machines, usage and run times of tasks. All tasks are pending at first. Raises `FileNotFoundError` if a
    file is missing in `folder`.
    """
    beginning, workload = cell_2011.moment(folder, clones=1, seed=seed, days=days)
    initial = sum(isinstance(event, events.JobSubmitted) for event in beginning)
    trace = google2011.arrivals(folder, seed=seed, days=days)
    arrivals = WeekArrivals(trace, initial, Drawn(seed))
    return beginning, Workload(arrivals, arrivals, workload.changes)
