"""When running tasks end at the latest, if this is known.

It is known only of a job with `ends_within_s`: the time limit of its tasks, and the time until the processes have ended
after it. None of these tasks starts again on its machine, so its one run ends by this time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduling.core.cell.state import CellState
from scheduling.core.cell.tasks import RUNNING
from scheduling.core.placing.equivalence_classes import GroupedQueue
from scheduling.core.vocabulary.kernel_arrays import Floats, Ints, Running, Tables

# The seconds from the decision about a placement until the run starts: the commit, the message to the machine and the
# start of the program. A task that uses booked capacity must end by so much before the gang starts.
MARGIN_S = 15.0
# A task that should have ended this many seconds ago counts as one whose end is not known.
OVERRUN_S = 300.0


class Occupants(NamedTuple):
    """The tasks that hold resources of machines after the placements that a pass has made. Tasks inside allocs, and
    tasks that the pass has preempted, are left out.

    `slots`, `on` [N]: the slots of the tasks, and the positions of their machines. `since`, `ends` [N]: since when they
    run, and when they end at the latest (inf: not known), in seconds since the epoch. `running`: the arrays of tasks.
    """

    slots: Ints
    on: Ints
    since: Floats
    ends: Floats
    running: Running


def latest_ends(since: Floats, within_s: Floats, now: float) -> Floats:
    """Return the times [N] at which runs end at the latest, in seconds since the epoch; inf if this is not known.
    `within_s`: this many seconds after its start, each run has ended; 0 if this is not known.

    A run that should have ended counts as ending now. So nothing else is placed on capacity that a gang waits for. If
    it has not ended after `OVERRUN_S`, its end is not known.
    """
    ends = since + within_s
    ends = np.where(ends + OVERRUN_S < now, np.inf, np.maximum(ends, now))
    result: Floats = np.where(within_s > 0.0, ends, np.inf)
    return result


def occupants_of(state: CellState, sorting: GroupedQueue, tables: Tables, until: int, now: float) -> Occupants:
    """Return the running tasks, and those that the pass has placed from the queue before its position `until`."""
    tasks, running = state.tasks, tables.running
    position: Ints = np.full(len(state.machines.id), -1, dtype=np.int64)
    position[tables.machines.slot] = np.arange(len(tables.machines.slot))
    slots = np.flatnonzero((tasks.state == RUNNING) & (tasks.machine >= 0) & (tasks.alloc < 0) & ~running.gone)
    on = position[tasks.machine[slots]]
    since, within_s = tasks.since[slots], tasks.job_ends_within_s[tasks.job[slots]]
    ends = latest_ends(since, within_s, now)
    placed = np.flatnonzero(tables.placed.machine[:until] >= 0)
    if len(placed):
        new = sorting.slots[placed]
        reservation, devices = running.reservation.copy(), running.devices.copy()
        reservation[new] = tasks.shapes.limit[tasks.shape[new]]
        devices[new] = tables.placed.devices[placed]
        running = running._replace(reservation=reservation, devices=devices)
        within_s = tasks.job_ends_within_s[tasks.job[new]]
        slots, on = np.append(slots, new), np.append(on, tables.placed.machine[placed])
        since = np.append(since, np.full(len(new), now))
        ends = np.append(ends, np.where(within_s > 0.0, now + within_s + MARGIN_S, np.inf))
    return Occupants(slots, on, since, ends, running)
