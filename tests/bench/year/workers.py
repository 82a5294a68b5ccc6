"""A second process that does what Celery workers do in production, beside the load of the following steps.

    load: step, step, step, step, …          (the process of the bench)
           └─► note, sample ─► keep house ─► note, sample, …   (this process, in order)

Each call has the time of the year at which the load asked for it. So a call that runs for some seconds, while the load
is hours of the year ahead, sees a clock like that of the moment at which it began.
"""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from scheduling.models import Cell
    from tests.bench.year.witness import Witness

_shift = dt.timedelta()
_cell: Cell
_witness: Witness


class Workers:
    """The process. Its calls run one after the other, and `wait` raises the first error of a call."""

    def __init__(self, cell_id: int, digests: Path, *, partition: int) -> None:
        """`partition`: the number of revisions of a partition of the journal."""
        spawn = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(1, spawn, _begin, (cell_id, digests, partition))
        self._open: deque[Future[None]] = deque()
        self._process = psutil.Process(self._pool.submit(os.getpid).result())

    def after_step(self, now: dt.datetime) -> None:
        self._submit(_after_step, now)

    def keep_house(self, now: dt.datetime) -> None:
        """Do the upkeep of a day after all earlier calls. Wait first until that of the day before is complete."""
        self.wait()
        self._submit(_keep_house, now)

    def wait(self) -> None:
        """Wait until all calls are complete."""
        while self._open:
            self._open.popleft().result()

    def cpu_s(self) -> float:
        """Return the CPU seconds of the process so far."""
        times = self._process.cpu_times()
        return times.user + times.system

    def stop(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _submit(self, call: Callable[[dt.datetime], None], now: dt.datetime) -> None:
        self._open.append(self._pool.submit(_at, call, now))


# --- in the process


def _begin(cell_id: int, digests: Path, partition: int) -> None:
    global _cell, _witness
    from django.utils import timezone

    timezone.now = lambda: dt.datetime.now(dt.UTC) + _shift
    import django

    django.setup()
    from scheduling.journal import journal
    from scheduling.models import Cell
    from tests.bench.year.witness import Witness

    journal.PARTITION = partition
    _cell, _witness = Cell.objects.get(pk=cell_id), Witness(cell_id, digests)


def _at(call: Callable[[dt.datetime], None], now: dt.datetime) -> None:
    global _shift
    _shift = now - dt.datetime.now(dt.UTC)
    call(now)


def _after_step(now: dt.datetime) -> None:
    """Note the new revisions, store a sample of the capacity, and count the new events."""
    from scheduling.cells import capacity_samples
    from scheduling.history.statistics import reader

    _witness.note()
    capacity_samples.capacity_sample(_cell, now=now)
    reader.statistics_read(_cell, now=now)


def _keep_house(now: dt.datetime) -> None:
    from tests.bench.year import upkeep

    upkeep.people_work(now=now)
    upkeep.keep_house(_cell, now=now)
