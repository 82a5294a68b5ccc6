"""`year`: a year of a cell in an hour, on real PostgreSQL with a clock that the bench moves.

A cell of 2,000 machines runs day by day: jobs arrive, the production pass places their tasks, tasks end, machines fail,
services are updated. Each day the archiver, the checkpoints and all periodic Celery tasks run once, in a second process
as in production, while the load goes on. Retention is that of production; in a shorter year, the times for events and
ended jobs are shorter in proportion. A partition of the journal holds about a day here, because revisions of the bench
contain many changes.

Cases:
* `month` (one per twelfth of the year): sizes, rows, p50 and p99 of every page and REST endpoint, over HTTP from a web
  process with the clock of the year;
* `flat`: growth of sizes and rows from the fourth month to the last, by the line through the figures of these months
  (`failed`: more than a tenth). `without_400_days_mib` leaves out tables whose rows are kept for 400 days, which stop
  growing only after the first year;
* `pages`: p99 of every page and endpoint on the last day, and in a copy of the cell after the fourth month. Requests to
  both alternate (`failed`: slower by more than a tenth and by more than 10 ms, also with four times as many requests);
* `complete`: archive and PostgreSQL against a full journal kept beside them: a digest per revision;
* `starts`: tasks started. `wall_s`: of the days, without the requests for pages; `cpu_s`: of the two processes of the
  bench and of PostgreSQL in the same time, which other processes change less; `per_cpu_s`: starts per second of this
  CPU time.

    BENCH_MACHINES=2000   BENCH_DAYS=365   BENCH_STARTS=8400 (per day)
    BENCH_STEPS=8         steps of the clock per day
    BENCH_MINUTES=60      after this time, no further day begins
    BENCH_SAMPLES=20      requests per page and month; 0: no pages
    BENCH_PAIRS=200       requests per page and moment for `pages`; 0: no such case
    BENCH_HOME=/folder    keep everything there; a later run continues after the last finished day
"""

from __future__ import annotations

import datetime as dt
import json
import os
import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil

from tests.bench.databases import databases
from tests.bench.year import figures, pages
from tests.bench.year.clock import Clock

BEGIN = dt.datetime(2025, 1, 1, tzinfo=dt.UTC)
MONTHS, YEAR_DAYS = 12, 365
EARLY_MONTH, EARLY = 4, "month4"  # a copy of the cell after this month, in this folder of the home
WANTED_STARTS, WANTED_CYCLES = 3_000_000, 300
# Revisions of the bench per step, at least. A partition of the journal holds those of a day.
REVISIONS_PER_STEP = 8
HOUSEKEEPING_HOUR = 4  # the usage of the day before is complete then


def measure() -> Iterator[dict[str, Any]]:
    kept = os.environ.get("BENCH_HOME")
    with ExitStack() as stack:
        home = Path(kept or stack.enter_context(TemporaryDirectory(prefix="borg-year-")))
        with databases(home):
            clock = Clock(home / "clock")
            clock.follow()
            import django
            from django.core.management import call_command

            django.setup()
            call_command("migrate", verbosity=0)
            year = _Year(home, clock)
            try:
                yield from year.run()
            finally:
                year.workers.stop()
        if pages.PAIRS and year.stored["day"] >= year.days and (home / EARLY).exists():
            yield figures.pages_verdict(pages.compare([home / EARLY, home], seed=EARLY_MONTH))


class _Year:
    """The settings of the year, and what is stored between days."""

    def __init__(self, home: Path, clock: Clock) -> None:
        from scheduling.journal import journal
        from scheduling.models import Cell
        from tests.bench.year.cell import YearCell
        from tests.bench.year.workers import Workers

        self.home, self.clock = home, clock
        self.days, self.steps = _number("BENCH_DAYS", YEAR_DAYS), _number("BENCH_STEPS", 8)
        self.file = home / "year.json"
        self.stored: dict[str, Any] = {"day": 0, "starts": 0, "submitted": 0, "cycles": 0, "months": []}
        self.stored |= {"wall_s": 0.0, "cpu_s": 0.0, "partition": REVISIONS_PER_STEP * self.steps}
        if self.file.exists():
            self.stored = json.loads(self.file.read_text())
        else:
            self._prepare()
            self.file.write_text(json.dumps(self.stored))
        journal.PARTITION = self.stored["partition"]
        self.clock.set(self._midnight(self.stored["day"]))
        cell = Cell.objects.get()
        self.digests = home / "journal.digests"
        self.workers = Workers(cell.id, self.digests, partition=self.stored["partition"])
        self.cell = YearCell(cell, clock, steps=self.steps, starts_per_day=_number("BENCH_STARTS", 8_400))

    def _prepare(self) -> None:
        from scheduling.journal.sql import execute
        from scheduling.models import Cell
        from tests.bench.year import upkeep
        from tests.bench.year.cell import YearCell
        from tests.bench.year.clock import install_in_postgres

        install_in_postgres()
        _narrow_partitions(self.stored["partition"])
        # A day passes in about seven seconds. So autovacuum looks at the tables about once per day, and does not pause
        # within a table: its pauses of some seconds would be days, in which tables grow.
        execute("ALTER SYSTEM SET autovacuum_naptime = '5s'")
        execute("ALTER SYSTEM SET autovacuum_vacuum_cost_delay = 0")
        execute("SELECT pg_reload_conf()")
        self.clock.set(BEGIN)
        cell = YearCell.create(_number("BENCH_MACHINES", 2_000))
        Cell.objects.filter(pk=cell.pk).update(settings=_settings(self.days))
        upkeep.people()

    def run(self) -> Iterator[dict[str, Any]]:
        until = time.monotonic() + 60.0 * _number("BENCH_MINUTES", 60)
        month_ends = {round(self.days * month / MONTHS): month for month in range(1, MONTHS + 1)}
        while self.stored["day"] < self.days and time.monotonic() < until:
            began, used_s = time.monotonic(), self._cpu_s()
            self._day()
            month = month_ends.get(self.stored["day"])
            if month:
                self.workers.wait()
            self.stored["wall_s"] += time.monotonic() - began
            self.stored["cpu_s"] += self._cpu_s() - used_s
            if month:
                self.stored["months"].append(self._month(month))
                yield {"case": "month", **self._shown(self.stored["months"][-1])}
            self.file.write_text(json.dumps(self.stored))
        self.workers.wait()
        yield from self._results()

    def _day(self) -> None:
        """Run the next day. A day that was interrupted is run again on top of what it has written."""
        from scheduling.journal import journal

        day, begun = self.stored["day"], self.cell.starts
        submitted = self.cell.submitted
        rng = np.random.default_rng((2015, day))
        for step in range(self.steps):
            hour = step * 24 // self.steps
            self.clock.set(self._midnight(day) + dt.timedelta(hours=hour))
            journal.ensure_partitions()  # production does this every five minutes
            self.cell.step(rng)
            self.workers.after_step(self.clock.now())
            if hour <= HOUSEKEEPING_HOUR < hour + 24 / self.steps:
                self.workers.keep_house(self.clock.now())
                self.stored["cycles"] += 1
        self.stored["day"] += 1
        self.stored["starts"] += self.cell.starts - begun
        self.stored["submitted"] += self.cell.submitted - submitted

    def _month(self, number: int) -> dict[str, Any]:
        began = time.monotonic()
        self.clock.set(self._midnight(self.stored["day"]))
        found = pages.latencies(self.home, now=self.clock.now(), seed=number) if pages.SAMPLES else {}
        if number == EARLY_MONTH and pages.PAIRS:
            pages.copy(self.home, self.home / EARLY)
        archive = sum(file.stat().st_size for file in (self.home / "archive").rglob("*.parquet"))
        checkpoints = sum(file.stat().st_size for file in (self.home / "archive").rglob("*.checkpoint"))
        return {
            "month": number,
            **{name: self.stored[name] for name in ("day", "starts", "submitted", "cycles")},
            "wall_s": round(self.stored["wall_s"]),
            "cpu_s": round(self.stored["cpu_s"]),
            "pages_s": round(time.monotonic() - began),
            **figures.sizes(),
            "archive_mib": round(archive / 2**20, 1),
            "checkpoints_mib": round(checkpoints / 2**20, 1),
            "memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
            "pages": found,
        }

    def _shown(self, month: dict[str, Any]) -> dict[str, Any]:
        """Return a month with its ten slowest pages only."""
        slowest = sorted(month["pages"].items(), key=lambda page: -page[1][1])[:10]
        return month | {"pages": dict(slowest)}

    def _results(self) -> Iterator[dict[str, Any]]:
        from tests.bench.year.witness import Witness

        if len(self.stored["months"]) > 4:
            yield figures.verdict(self.stored["months"])
        found = Witness(self.cell.cell.id, self.digests).compare(self.cell.cell)
        wrong = {name: getattr(found, name)[:10] for name in ("missing", "twice", "differ") if getattr(found, name)}
        yield {
            "case": "complete",
            "value": len(found.missing) + len(found.twice) + len(found.differ),
            "unit": "revisions",
            "better": "lower",
            "revisions": found.revisions,
            "events": found.events,
            **({"failed": wrong} if wrong or not found.revisions else {}),
        }
        starts, cycles, whole = self.stored["starts"], self.stored["cycles"], self.days >= YEAR_DAYS
        short = whole and (starts < WANTED_STARTS or cycles < WANTED_CYCLES)
        yield {
            "case": "starts",
            "value": starts,
            "unit": "tasks",
            "better": "higher",
            "days": self.stored["day"],
            "jobs": self.stored["submitted"],
            "cycles": cycles,
            "wall_s": round(self.stored["wall_s"]),
            "cpu_s": round(self.stored["cpu_s"]),
            "per_cpu_s": round(starts / max(self.stored["cpu_s"], 1.0)),
            **({"failed": f"a year has {WANTED_STARTS} starts and {WANTED_CYCLES} cycles"} if short else {}),
        }

    def _cpu_s(self) -> float:
        return _own_cpu_s() + self.workers.cpu_s()

    def _midnight(self, day: int) -> dt.datetime:
        return BEGIN + dt.timedelta(days=day)


def _own_cpu_s() -> float:
    """Return the CPU seconds of this process and of all processes of PostgreSQL so far."""
    from django.db import connection

    connection.ensure_connection()
    server = psutil.Process(connection.connection.info.backend_pid).parent()
    assert server is not None
    found, ended = time.process_time(), server.cpu_times()
    found += ended.children_user + ended.children_system
    for process in [server, *server.children()]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        found += times.user + times.system
    return found


def _number(name: str, usual: int) -> int:
    return int(os.environ.get(name, usual))


def _settings(days: int) -> dict[str, float]:
    """Return the settings of the cell: retention as in production, or shorter for a shorter year."""
    from scheduling.policy.cell_settings import CellSettings

    usual = CellSettings()
    names = ("journal_keep_days", "ended_jobs_keep_days", "checkpoint_keep_days")
    return (
        {name: max(2.0, round(getattr(usual, name) * days / YEAR_DAYS)) for name in names if hasattr(usual, name)}
        if days < YEAR_DAYS
        else {}
    )


def _narrow_partitions(revisions: int) -> None:
    """Let the database make partitions of the journal that hold this many revisions. The first one is made together
    with the cell.
    """
    from scheduling.journal.sql import execute, query

    ((text,),) = query("SELECT pg_get_functiondef('scheduling_event_partition_make'::regproc)")
    execute(text.replace("100000", str(revisions)))
