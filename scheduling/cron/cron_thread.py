"""The thread that submits the due runs of a cell's cron jobs. Each process of a master has one: the working master, its
standbys, and the process of the second scheduler, also while it is idle.

    process `CELL`        ─ thread ─┐
    process `CELL.batch`  ─ thread ─┼─► one turn per cell at a time ─► runs_submit_due
    standbys, other hosts ─ thread ─┘

So a killed process delays no run, as long as one of these processes is alive. It needs neither the lease, nor Redis,
Celery or beat. The thread of the working master lets the others go first, because it shares the processor's time with
the scheduling passes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import structlog

from scheduling.cron.due_runs import runs_submit_due
from scheduling.cron.turn_thread import turn_thread

log = structlog.get_logger(__name__)

# New and changed cron jobs are seen after this time at the latest.
_LOOK_EVERY_S = 0.5
# How long the working master waits for another process to submit due runs.
LATER_S = 0.25
_TURN_EVERY_S = 0.05  # while another process has its turn


def cron_thread(cell: str, *, is_working: Callable[[], bool]) -> AbstractContextManager[None]:
    """Submit the due runs of the cell named `cell` in a thread, while the `with` block runs. `is_working`: returns
    whether this process is the working master now. The cell may be created later.
    """

    def take_turn(cell_id: int) -> float:
        turn = runs_submit_due(cell_id, later_s=LATER_S if is_working() else 0.0)
        if turn.busy:
            return _TURN_EVERY_S
        return _LOOK_EVERY_S if turn.wait_s is None else min(_LOOK_EVERY_S, max(0.0, turn.wait_s))

    return turn_thread(
        cell,
        "cron",
        take_turn,
        look_every_s=_LOOK_EVERY_S,
        away=lambda error: log.warning(
            "a database error delays runs of cron jobs; the thread tries again", cell=cell, error=str(error).strip()
        ),
        failed=lambda: log.exception("runs of cron jobs are not submitted; the thread tries again", cell=cell),
    )
