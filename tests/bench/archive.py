"""`archive`: the speed at which the archiver writes events from PostgreSQL to verified Parquet files (§2.6).

The bench fills one cell with one day of events of tasks: `BENCH_EVENTS` events (default: one million). The archiver
runs in a separate process. It reads the events, writes a file, reads the file back, compares hashes, and records it.

Cases:
* `export`: events per second of the archiver's CPU time. `wall`: events per second of elapsed time. `postgres`: events
  per second of CPU time if that of PostgreSQL's session is added;
* `bytes-per-event`: bytes per event in the file. `postgres`: bytes per event in PostgreSQL with the indexes;
* `drop`: seconds until all archived partitions are dropped while a writer commits. `commit_ms`: its slowest commit;
* `memory`: the largest resident set of the archiver, in MiB;
* `derive`: events per second of CPU time that are converted to the other tables of the archive.

    BENCH_EVENTS=3000000
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from tests.bench.databases import databases

TARGET = 200_000
_EXPORT = """
import django
django.setup()
from django.utils import timezone
from scheduling.history.archive.archiver import Archiver
from scheduling.history.archive.store import store
Archiver(store()).run(now=timezone.now())
"""
_DERIVE = """
import django
django.setup()
from scheduling.history.archive.archiver import Archiver
from scheduling.history.archive.store import store
from scheduling.history.infrastore.derived_tables import derive
derive(store(), Archiver(store()))
"""
EVENTS = """
INSERT INTO scheduling_event (cell_id, revision, seq, time, kind, version, job_id, task_index, machine_id, actor,
    request_id, caused_by_revision, caused_by_seq, data)
SELECT %(cell)s, 1 + n / 10, n %% 10, %(begin)s + n / 10 * (10 * %(seconds)s / %(events)s) * interval '1 second',
    kind, 1, n / 3000, n / 3 %% 1000, n * 7919 %% 10000,
    CASE n / 10 %% 50 WHEN 0 THEN 'user:ann' ELSE 'system:master' END, '',
    CASE WHEN kind = 'task.gone' THEN n / 10 END, CASE WHEN kind = 'task.gone' THEN 0 END,
    CASE kind WHEN 'task.placed' THEN jsonb_build_object('kind', kind, 'job_id', n / 3000, 'index', n / 3 %% 1000,
        'machine_id', n * 7919 %% 10000, 'incarnation', 1, 'ports', jsonb_build_array(20000 + n %% 5000),
        'spec_version', 1, 'score', jsonb_build_object('fit', round(random()::numeric, 4), 'spread', 0.25, 'total',
        round(random()::numeric, 4)), 'runners_up', jsonb_build_array(jsonb_build_array(n %% 9973, 0.5)))
    WHEN 'task.reported' THEN jsonb_build_object('kind', kind, 'job_id', n / 3000, 'index', n / 3 %% 1000, 'machine_id',
        n * 7919 %% 10000, 'incarnation', 1, 'phase', 'up', 'health', 'healthy', 'up', true, 'restarts', 0)
    ELSE jsonb_build_object('kind', kind, 'job_id', n / 3000, 'index', n / 3 %% 1000, 'machine_id', n * 7919 %% 10000,
        'incarnation', 1) END
FROM (SELECT n, (ARRAY['task.placed', 'task.reported', 'task.gone'])[1 + n %% 3] AS kind
    FROM generate_series(0::bigint, %(events)s - 1) AS n) AS made
"""


def measure() -> Iterator[dict[str, Any]]:
    number = int(os.environ.get("BENCH_EVENTS", "1000000"))
    with databases():
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        yield from _measure(number)


def _measure(number: int) -> Iterator[dict[str, Any]]:
    import datetime as dt

    from django.db.models import Sum
    from django.utils import timezone

    from quota.vocabulary.permissions import system
    from scheduling.cells.cells import cell_create
    from scheduling.journal import journal
    from scheduling.journal.sql import execute, query
    from scheduling.models import ArchiveFile, Cell

    cell = cell_create(principal=system("bench"), name="bench")
    Cell.objects.filter(pk=cell.pk).update(revision=number // 10)
    execute(
        "SELECT scheduling_event_partition_make(%s, n) FROM generate_series(0, %s, 100000) AS n",
        [cell.pk, number // 10],
    )
    execute("ALTER TABLE scheduling_event DISABLE TRIGGER USER")
    execute("DELETE FROM scheduling_event")
    execute("ALTER TABLE scheduling_event ENABLE TRIGGER USER")
    day = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0) - dt.timedelta(days=20)
    execute(EVENTS, {"cell": cell.pk, "events": number, "begin": day, "seconds": 86_000.0})
    execute("VACUUM ANALYZE scheduling_event")
    stored = query("SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree('scheduling_event')")[0][0]

    execute("UPDATE scheduling_cell SET revision = revision / 100000 * 100000 + 100000")
    Cell.objects.update(settings={"journal_keep_days": 30.0})
    journal.ensure_partitions()
    _run()
    idle, _ = _run()  # the cost of a run that archives nothing
    ArchiveFile.objects.all().delete()
    before = _backends()
    began = time.monotonic()
    cpu, memory = _run()
    wall = time.monotonic() - began
    backend = _backends() - before
    file = ArchiveFile.objects.get(table="events")
    assert file.rows == number
    rate = number / (cpu - idle)
    result: dict[str, Any] = {"case": "export", "value": round(rate), "unit": "events/s", "better": "higher"}
    result |= {"wall": round(number / wall), "postgres": round(number / (cpu - idle + backend)), "target": TARGET}
    if rate < TARGET:
        result["failed"] = f"fewer than {TARGET} events per second of CPU"
    yield result
    yield {
        "case": "bytes-per-event",
        "value": round(file.bytes / number, 1),
        "unit": "B",
        "better": "lower",
        "postgres": round(float(stored) / number, 1),
    }
    yield {"case": "memory", "value": round(memory / 1024), "unit": "MiB", "better": "lower"}
    cpu, memory = _run(_DERIVE)
    result = {"case": "derive", "value": round(number / (cpu - idle)), "unit": "events/s", "better": "higher"}
    size = ArchiveFile.objects.exclude(table="events").aggregate(bytes=Sum("bytes"))["bytes"]
    yield result | {"memory_mib": round(memory / 1024), "bytes_per_event": round(size / number, 1)}
    yield _drop()


def _drop() -> dict[str, Any]:
    from quota.vocabulary.permissions import system
    from scheduling.core.vocabulary import events
    from scheduling.journal import journal
    from scheduling.models import Cell

    cell = Cell.objects.get()
    Cell.objects.update(settings={})
    slowest, stop = [0.0], threading.Event()

    def commit() -> None:
        while not stop.is_set():
            began = time.monotonic()
            with journal.write(cell.id, system("bench")) as entry:
                entry.append(events.CellSet(settings={}))
            slowest[0] = max(slowest[0], time.monotonic() - began)

    writer = threading.Thread(target=commit)
    writer.start()
    began = time.monotonic()
    _run()
    took = time.monotonic() - began
    stop.set()
    writer.join()
    cell.refresh_from_db()
    return {
        "case": "drop",
        "value": round(took, 2),
        "unit": "s",
        "better": "lower",
        "floor": cell.journal_floor,
        "commit_ms": round(slowest[0] * 1000, 1),
    }


def _run(code: str = _EXPORT) -> tuple[float, int]:
    """Run code of the archiver in a new process. Return its CPU time in seconds, and its largest resident set in
    KiB."""
    done = subprocess.Popen([sys.executable, "-c", code])
    _, status, used = os.wait4(done.pid, 0)
    done.returncode = status
    assert status == 0
    return used.ru_utime + used.ru_stime, used.ru_maxrss


def _backends() -> float:
    """Return the CPU time, in seconds, of all PostgreSQL sessions that have ended."""
    import psutil

    from scheduling.journal.sql import query

    ((pid,),) = query("SELECT pg_backend_pid()")
    server = psutil.Process(pid).parent()
    assert server is not None
    times = server.cpu_times()
    return float(times.children_user + times.children_system)
