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

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import structlog
from django.db import DatabaseError, InterfaceError, close_old_connections, connection

from scheduling.cron.due_runs import runs_submit_due
from scheduling.models import Cell

log = structlog.get_logger(__name__)

# New and changed cron jobs are seen after this time at the latest.
_LOOK_EVERY_S = 0.5
# How long the working master waits for another process to submit due runs.
LATER_S = 0.25
_TURN_EVERY_S = 0.05  # while another process has its turn
_CELL_EVERY_S = 5.0  # how often the id of the cell is looked up
_AWAY_S, _FAILED_S = 1.0, 5.0


@contextmanager
def cron_thread(cell: str, *, is_working: Callable[[], bool]) -> Iterator[None]:
    """Submit the due runs of the cell named `cell` in a thread, while the `with` block runs. `is_working`: returns
    whether this process is the working master now. The cell may be created later.
    """
    stopping = threading.Event()
    thread = threading.Thread(target=_run, args=(cell, is_working, stopping), name="cron", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def _run(cell: str, is_working: Callable[[], bool], stopping: threading.Event) -> None:
    cell_id: int | None = None
    looked = 0.0
    while not stopping.is_set():
        wait_s = _LOOK_EVERY_S
        try:
            if cell_id is None or time.monotonic() - looked > _CELL_EVERY_S:
                cell_id = Cell.operated.filter(name=cell).values_list("pk", flat=True).first()
                looked = time.monotonic()
            if cell_id is not None:
                turn = runs_submit_due(cell_id, later_s=LATER_S if is_working() else 0.0)
                if turn.busy:
                    wait_s = _TURN_EVERY_S
                elif turn.wait_s is not None:
                    wait_s = min(_LOOK_EVERY_S, max(0.0, turn.wait_s))
            close_old_connections()
        except (DatabaseError, InterfaceError) as error:  # InterfaceError: PostgreSQL has closed the connection
            log.warning("runs of cron jobs are submitted later", cell=cell, error=str(error).strip())
            _disconnect()
            wait_s = _AWAY_S
        except Exception:
            log.exception("runs of cron jobs are not submitted; the thread tries again", cell=cell)
            _disconnect()
            wait_s = _FAILED_S
        stopping.wait(wait_s)
    _disconnect()


def _disconnect() -> None:
    """Close the connection, also if it is already broken. The next query makes a new one."""
    with suppress(Exception):  # an error here would end the thread
        connection.close()
