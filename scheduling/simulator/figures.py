"""The figures of a simulation, such as placements, evictions, pending hours and used machines. Users compare copies of
a simulation by them.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import PENDING
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.states import EvictionCause

BUCKETS = 64
"""Number of buckets of waiting times. Each bucket ends at 1.41 (√2) times the end of the bucket before."""

_FIRST_S = 0.01


@dataclass(slots=True)
class Figures:
    """Counts and sums from the beginning of a simulation, or from the last call of `Simulation.forget_figures`.

    `evictions`: by (cause, whether the task is prod). `pending_s`: task-seconds of waiting, by whether the task is
    prod. `waits` [BUCKETS]: how many tasks waited for a time in each bucket. `machines_s`: machine-seconds with at
    least one task. `most_used`: the largest number of machines in use.
    """

    submitted: int = 0
    placed: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    evictions: Counter[tuple[str, bool]] = field(default_factory=Counter)
    passes: int = 0
    events: int = 0
    failures: int = 0
    reservations: int = 0
    seconds: float = 0.0
    pending_s: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    running_s: float = 0.0
    machines_s: float = 0.0
    most_used: int = 0
    waits: list[int] = field(default_factory=lambda: [0] * BUCKETS)

    def as_rows(self) -> dict[str, float]:
        """Return the figures by name, in the order in which a table shows them. Times are in hours, and waits in
        seconds.
        """
        causes = sorted({cause for cause, _ in self.evictions})
        rows: dict[str, float] = {
            "jobs submitted": self.submitted,
            "placements": self.placed,
            **{f"tasks {how}": self.ended[how] for how in ("finished", "failed", "killed")},
            "evictions": sum(self.evictions.values()),
        }
        for cause in causes:
            for prod in (True, False):
                rows[f"evictions, {cause}, {'prod' if prod else 'non-prod'}"] = self.evictions[cause, prod]
        oom = EvictionCause.OUT_OF_RESOURCES.value
        rows["out-of-memory kills"] = self.evictions[oom, True] + self.evictions[oom, False]
        rows["pending hours, prod"] = round(self.pending_s[True] / 3600, 3)
        rows["pending hours, non-prod"] = round(self.pending_s[False] / 3600, 3)
        rows["wait in seconds, p50"] = self.wait_s(0.5)
        rows["wait in seconds, p90"] = self.wait_s(0.9)
        rows["tasks running, mean"] = round(self.running_s / self.seconds, 1) if self.seconds else 0.0
        rows["machines used, mean"] = round(self.machines_s / self.seconds, 1) if self.seconds else 0.0
        rows["machines used, most"] = self.most_used
        rows["machine failures"] = self.failures
        rows["reservations changed"] = self.reservations
        rows["passes"] = self.passes
        rows["events"] = self.events
        return rows

    def wait_s(self, share: float) -> float:
        """Return the percentile `share` (0 to 1) of all waits, in seconds: the upper bound of the bucket that contains
        it.
        """
        total, seen = sum(self.waits), 0
        for bucket, number in enumerate(self.waits):
            seen += number
            if total and seen >= share * total:
                return float(f"{_FIRST_S * math.sqrt(2) ** bucket:.3g}")
        return 0.0


class FigureKeeper:
    """Counts the figures of a simulation while it runs. `pending`: how many tasks are pending now, by whether they are
    prod.
    """

    def __init__(self, state: CellState, now: float) -> None:
        self.figures = Figures()
        self.pending = {True: 0, False: 0}
        self.running = state.running
        self._used = int(np.count_nonzero(state.machines.tasks))
        self._now = now
        self._since: dict[int, float] = {}
        tasks = state.tasks
        for slot in np.flatnonzero(tasks.state == PENDING).tolist():
            self._since[int(tasks.id[slot])] = now
            self.pending[bool(tasks.job_by_limit[tasks.job[slot]])] += 1

    def forget(self) -> None:
        """Set all figures to zero."""
        self.figures = Figures()

    def pass_time(self, now: float) -> None:
        """Add the time from the last call until `now` to the figures that are sums of time, such as task-seconds of
        waiting.
        """
        passed, figures = now - self._now, self.figures
        figures.seconds += passed
        figures.pending_s[True] += passed * self.pending[True]
        figures.pending_s[False] += passed * self.pending[False]
        figures.running_s += passed * self.running
        figures.machines_s += passed * self._used
        self._now = now

    def count_machines(self, state: CellState) -> None:
        """Update the number of machines that have tasks."""
        self._used = int(np.count_nonzero(state.machines.tasks))
        self.figures.most_used = max(self.figures.most_used, self._used)

    def submitted(self, event: events.JobSubmitted, prod: bool) -> None:
        self.figures.submitted += 1
        for group in event.groups:
            self.pending[prod] += group.size
            for first, last in group.ranges:
                for index in range(first, last + 1):
                    self._since[task_id(event.job_id, index)] = self._now

    def placed(self, event: events.TaskPlaced, prod: bool) -> None:
        self.figures.placed += 1
        self.pending[prod] -= 1
        self.running += 1
        waited = self._now - self._since.pop(task_id(event.job_id, event.index), self._now)
        bucket = 0 if waited <= _FIRST_S else math.ceil(2 * math.log2(waited / _FIRST_S))
        self.figures.waits[min(bucket, BUCKETS - 1)] += 1

    def evicted(self, event: events.TaskEvicted, prod: bool) -> None:
        self.figures.evictions[event.cause, prod] += 1
        self.pending[prod] += 1
        self.running -= 1
        self._since[task_id(event.job_id, event.index)] = self._now

    def ended(self, event: events.TaskEnded, prod: bool) -> None:
        self.figures.ended[event.how] += 1
        if event.machine_id:
            self.running -= 1
        else:
            self.pending[prod] -= 1
            self._since.pop(task_id(event.job_id, event.index), None)
