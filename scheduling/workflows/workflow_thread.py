"""The thread that advances the workflows of a cell. Each process of a master has one, as for cron jobs.

The thread of the working master takes a turn only if no other process has taken one in the last seconds, because it
shares the processor's time with the scheduling passes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager

import structlog

from scheduling.cron.turn_thread import turn_thread
from scheduling.workflows.retention import old_remove
from scheduling.workflows.turns import workflows_advance

log = structlog.get_logger(__name__)

# How often to look for new workflows, and for ended jobs while workflows are live.
_IDLE_S, _LIVE_S = 0.5, 0.1
# After how many seconds without a turn of another process the working master takes turns. `turns` stores a turn
# without work once per second.
LATER_S = 2.5
_SWEEP_EVERY_S = 60.0  # how often to look for jobs that ended without an event, and for expired workflows


def workflow_thread(cell: str, *, is_working: Callable[[], bool]) -> AbstractContextManager[None]:
    """Advance the workflows of the cell named `cell` in a thread, while the `with` block runs. `is_working`: returns
    whether this process is the working master now. The cell may be created later.
    """
    swept, removing = float("-inf"), False

    def take_turn(cell_id: int) -> float:
        nonlocal swept, removing
        sweep = time.monotonic() - swept > _SWEEP_EVERY_S
        turn = workflows_advance(cell_id, later_s=LATER_S if is_working() else 0.0, sweep=sweep)
        if sweep and not turn.busy:
            swept = time.monotonic()
            removing = True
        removing = removing and old_remove(cell_id)
        if turn.handled:
            return 0.0
        return _LIVE_S if turn.active or removing else _IDLE_S

    return turn_thread(
        cell,
        "workflows",
        take_turn,
        look_every_s=_IDLE_S,
        away=lambda error: log.warning(
            "a database error delays workflows; the thread tries again", cell=cell, error=str(error).strip()
        ),
        failed=lambda: log.exception("workflows are not advanced; the thread tries again", cell=cell),
    )
