"""How long before a maintenance window its machines are drained, so that they can be empty at its start. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

# The time until a task that has left is up on another machine. A typical start takes 25 s (§3.2), and a task has a
# notice before it stops.
MOVE_S = 60.0
# Machines are drained at most so long before a window, whatever the budgets are.
LONGEST_LEAD_S = 86_400.0


@dataclass(frozen=True, slots=True)
class LeavingJob:
    """The tasks of a job that have to leave the machines of windows. `tasks`: how many. `may`: how many tasks of the
    job may be down at once. `most`: how many tasks may be disrupted within `window_s` seconds; 0: any number. `left`:
    how many of these are left now.
    """

    tasks: int
    may: int
    most: int = 0
    window_s: float = 0.0
    left: int = 0


def lead_s(jobs: Iterable[LeavingJob], *, least_s: float, drain_per_s: float) -> float:
    """Return how many seconds before its start a window needs its drains. `least_s`: never less. `drain_per_s`: how
    many tasks leave draining machines per second; 0: one per second.

    The slowest job decides: so many of its tasks leave together as its disruption budget allows, and the next ones
    leave when they are up again. A rate of disruptions lets further tasks leave only in the next of its windows.
    """
    slowest, tasks = 0.0, 0
    for job in jobs:
        tasks += job.tasks
        needed = MOVE_S * math.ceil(job.tasks / max(1, job.may))
        if job.most and job.tasks > job.left:
            needed = max(needed, job.window_s * math.ceil((job.tasks - job.left) / job.most))
        slowest = max(slowest, needed)
    if tasks:
        slowest += tasks / (drain_per_s or 1.0)
    return min(LONGEST_LEAD_S, max(least_s, slowest))
