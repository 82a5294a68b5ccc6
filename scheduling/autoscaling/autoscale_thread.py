"""The thread of the autoscaler of a cell. Each process of a master has one, as for cron jobs.

The thread of the working master takes a turn only if no other process has taken one lately, because it shares the
processor's time with the scheduling passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import structlog

from scheduling.autoscaling.rows import rows_repair
from scheduling.autoscaling.tasks_turn import EVERY_S
from scheduling.autoscaling.turns import autoscale
from scheduling.cron.turn_thread import turn_thread

log = structlog.get_logger(__name__)

_IDLE_S, _LIVE_S = 5.0, 1.0
# How many seconds longer than the others the working master waits for the turn of another process.
LATER_S = 2.5
# Turns take at most this share of a processor. In a very large cell, they come less often.
MOST_SHARE = 0.05
_REPAIR_EVERY_S = 900.0  # how often rows are compared with the specs of all jobs


def autoscale_thread(cell: str, *, is_working: Callable[[], bool]) -> AbstractContextManager[None]:
    """Scale the jobs of the cell named `cell` in a thread, while the `with` block runs. `is_working`: returns whether
    this process is the working master now. The cell may be created later.
    """
    repaired, every_s = float("-inf"), EVERY_S

    def take_turn(cell_id: int) -> float:
        nonlocal repaired, every_s
        if time.monotonic() - repaired > _REPAIR_EVERY_S:
            rows_repair(cell_id)
            repaired = time.monotonic()
        begun = time.thread_time()
        turn = autoscale(cell_id, every_s=every_s + (LATER_S if is_working() else 0.0))
        if turn.taken:
            every_s = max(EVERY_S, (time.thread_time() - begun) / MOST_SHARE)
        return _LIVE_S if turn.live else _IDLE_S

    return turn_thread(
        cell,
        "autoscaler",
        take_turn,
        look_every_s=_IDLE_S,
        away=lambda error: log.warning(
            "a database error delays the autoscaler; the thread tries again", cell=cell, error=str(error).strip()
        ),
        failed=lambda: log.exception("jobs are not scaled; the thread tries again", cell=cell),
    )
