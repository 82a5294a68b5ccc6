"""`upgrade`: the longest wait of SQL statements while an old cell is migrated and archived for the first time.

The database has the schema of the release before the archive, with `BENCH_EVENTS` events (default: 3 million) of the
last 30 days in one partition. A writer commits revisions all the time, as a master does. Meanwhile `manage.py migrate`
divides the journal into partitions per cell, and then `manage.py archive` copies the month.

Cases `migrate` and `archive`: the longest wait of one of the writer's statements in ms. The target is 1 s, a pause of
the master that users do not notice. `seconds`: the time of the command. `quiet_ms`: the longest wait in 20 s before,
which shows how busy the machine was.

    BENCH_EVENTS=5000000
"""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from tests.bench.archive import EVENTS
from tests.bench.databases import databases

TARGET_MS = 1_000
_BEFORE = "0031_machines_are_counted_from_an_index"
_PER_REVISION, _DAYS, _QUIET_S = 10, 30, 20.0


def measure() -> Iterator[dict[str, Any]]:
    number = int(os.environ.get("BENCH_EVENTS", "3000000"))
    with databases():
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", "scheduling", _BEFORE, verbosity=0)
        cell = _fill(number)
        writer = _Writer(cell)
        time.sleep(_QUIET_S)
        quiet_ms = round(writer.slowest_s * 1000, 1)
        for case in ("migrate", "archive"):
            began = time.monotonic()
            writer.slowest_s = 0.0
            done = subprocess.run([sys.executable, "-m", "django", case], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            time.sleep(0.5)
            wait_ms = round(writer.slowest_s * 1000, 1)
            result: dict[str, Any] = {"case": case, "value": wait_ms, "unit": "ms", "better": "lower"}
            result |= {"seconds": round(time.monotonic() - began, 1), "quiet_ms": quiet_ms, "events": number}
            result["target"] = TARGET_MS
            if wait_ms > TARGET_MS:
                result["failed"] = f"a statement waited longer than {TARGET_MS} ms"
            yield result
        writer.stop()
        _check(number)


def _fill(number: int) -> int:
    """Create a cell with `number` events of the last 30 days, in ascending order of time, and return its id."""
    from django.db import connection
    from django.db.migrations.executor import MigrationExecutor

    from scheduling.journal.sql import execute

    state = MigrationExecutor(connection).loader.project_state([("scheduling", _BEFORE)])
    last = number // _PER_REVISION
    cell = state.apps.get_model("scheduling", "Cell").objects.create(name="bench", revision=last)
    begin = dt.datetime.now(dt.UTC) - dt.timedelta(days=_DAYS)
    execute(EVENTS, {"cell": cell.pk, "events": number, "begin": begin, "seconds": _DAYS * 86_400.0})
    execute("VACUUM ANALYZE scheduling_event")
    return int(cell.pk)


def _check(number: int) -> None:
    """Assert that the archive contains the events of all closed days."""
    from django.db.models import Sum

    from scheduling.journal.sql import query
    from scheduling.models import ArchiveFile

    today = dt.datetime.now(dt.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    ((newer,),) = query("SELECT count(*) FROM scheduling_event WHERE time >= %s AND actor <> 'writer'", [today])
    assert ArchiveFile.objects.filter(table="events").aggregate(rows=Sum("rows"))["rows"] == number - newer


class _Writer:
    """A thread that commits revisions of a cell, one after the other. `slowest_s`: the longest time of a statement."""

    def __init__(self, cell: int) -> None:
        self._cell, self.slowest_s, self._stopped = cell, 0.0, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        import psycopg

        with psycopg.connect(os.environ["BORG_DATABASE_URL"], autocommit=True) as connection:
            while not self._stopped.wait(0.005):
                with connection.transaction():
                    self._timed(connection, "SELECT revision FROM scheduling_cell WHERE id = %s FOR UPDATE")
                    self._timed(connection, "UPDATE scheduling_cell SET revision = revision + 1 WHERE id = %s")
                    self._timed(
                        connection,
                        "INSERT INTO scheduling_event (cell_id, revision, seq, time, kind, version, actor, request_id,"
                        " data) SELECT id, revision, 0, now(), 'cell.set', 1, 'writer', '', '{}' FROM scheduling_cell"
                        " WHERE id = %s",
                    )

    def _timed(self, connection: Any, statement: str) -> None:
        began = time.monotonic()
        connection.execute(statement, [self._cell])
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)
