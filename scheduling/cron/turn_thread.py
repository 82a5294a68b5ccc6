"""A thread in a process of a master that takes turns at the work of a cell, with a connection of its own.

Each turn is a function that returns how long to wait for the next one. It makes sure itself that only one process has
its turn at once. The thread goes on after every error.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from django.db import DatabaseError, InterfaceError, close_old_connections, connection

from scheduling.models import Cell

_CELL_EVERY_S = 5.0  # how often the id of the cell is looked up
_AWAY_S, _FAILED_S = 1.0, 5.0


@contextmanager
def turn_thread(
    cell: str,
    name: str,
    take_turn: Callable[[int], float],
    *,
    look_every_s: float,
    away: Callable[[Exception], None],
    failed: Callable[[], None],
) -> Iterator[None]:
    """Take turns for the cell named `cell` in a thread named `name`, while the `with` block runs. The cell may be
    created later.

    `take_turn`: called with the id of the cell; returns how many seconds to wait. `look_every_s`: how long to wait
    while there is no such cell. `away`, `failed`: log an error of the database, and any other error.
    """
    stopping = threading.Event()
    arguments = (cell, take_turn, look_every_s, away, failed, stopping)
    thread = threading.Thread(target=_run, args=arguments, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def _run(
    cell: str,
    take_turn: Callable[[int], float],
    look_every_s: float,
    away: Callable[[Exception], None],
    failed: Callable[[], None],
    stopping: threading.Event,
) -> None:
    cell_id: int | None = None
    looked = 0.0
    while not stopping.is_set():
        wait_s = look_every_s
        try:
            if cell_id is None or time.monotonic() - looked > _CELL_EVERY_S:
                cell_id = Cell.operated.filter(name=cell).values_list("pk", flat=True).first()
                looked = time.monotonic()
            if cell_id is not None:
                wait_s = take_turn(cell_id)
            close_old_connections()
        except (DatabaseError, InterfaceError) as error:  # InterfaceError: PostgreSQL has closed the connection
            away(error)
            _disconnect()
            wait_s = _AWAY_S
        except Exception:  # noqa: BLE001 - `failed` logs every error
            failed()
            _disconnect()
            wait_s = _FAILED_S
        stopping.wait(wait_s)
    _disconnect()


def _disconnect() -> None:
    """Close the connection, also if it is already broken. The next query makes a new one."""
    with suppress(Exception):  # an error here would end the thread
        connection.close()
