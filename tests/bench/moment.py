"""`moment`: the time to rebuild the state of a cell at a past moment, with a journal of one million events.

The simulator makes the events: in a cell of 2,000 machines jobs arrive, tasks end, and tasks preempt others
(`tests.bench.moment_journal`). The journal is in a real PostgreSQL, and checkpoints are saved with the default settings
of a cell. A separate process, the process of moments, rebuilds the states.

Cases, in seconds:
* `first`: a new process of moments starts and answers its first request;
* `random`: random moments, most of which begin with another checkpoint;
* `step`: moments one event apart, forwards and backwards, beginning at a few random moments;
* `page`: the whole web page of random moments, for an SRE.

`value` is the median and `most` the maximum. `cpu_s`, `most_cpu_s`: the CPU time of this process and the process of
moments, without PostgreSQL. Compare these if other users share the machine. `replayed_s`: the median time in which the
events were applied.

    BENCH_CASES=random     run only these cases
    BENCH_EVENTS=100000    a shorter journal
"""

from __future__ import annotations

import datetime as dt
import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import psutil

from tests.bench.databases import databases
from tests.bench.wanted import wanted

EVENTS = int(os.environ.get("BENCH_EVENTS", "1000000"))
MACHINES, JOBS_PER_HOUR, TASKS_PER_JOB, HOURS = 2_000, 250, 40, 120
MOMENTS, STEPS, RUNS = 30, 20, 3
TARGET_S = 3.0
SEED = 15
_BEGIN = dt.datetime(2026, 11, 1, tzinfo=dt.UTC)


def measure() -> Iterator[dict[str, Any]]:
    with databases():
        import django

        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        cell, about = _make()
        from django.conf import settings

        settings.BORG_MOMENT_PROCESS = True
        for case, run in (("first", _first), ("random", _random), ("step", _step), ("page", _page)):
            if case in wanted(["first", "random", "step", "page"]):
                figures = _summary(list(run(cell)))
                late = {"failed": [f"a moment took {figures['most']} s"]} if figures["most"] > TARGET_S else {}
                yield {"case": case, **figures, **about, **late, "load": round(os.getloadavg()[0], 1)}


def _make() -> tuple[Any, dict[str, int]]:
    """Simulate a cell until its journal is long enough. Return the cell, and the numbers of events, checkpoints and
    tasks."""
    from scheduling.models import Cell
    from scheduling.policy.cell_settings import CellSettings
    from tests.bench.moment_journal import Jobs, Recorder, machines
    from tests.integration.rows import a_cell

    cell = a_cell()
    Cell.objects.update(created_at=_BEGIN)
    recorder = Recorder(cell, begin=_BEGIN, settings=CellSettings())
    jobs = Jobs(begin=_BEGIN.timestamp(), hours=HOURS, per_hour=JOBS_PER_HOUR, tasks=TASKS_PER_JOB, seed=SEED)
    recorder.run(machines(MACHINES), jobs, until_events=EVENTS, seed=SEED)
    cell.refresh_from_db()
    return cell, {
        "events": recorder.written,
        "revisions": cell.revision,
        "checkpoints": recorder.checkpoints,
        "tasks": recorder.tasks,
    }


_Sample = tuple[float, float, float]  # seconds, CPU seconds of both processes, seconds of the replay


def _first(cell: Any) -> Iterator[_Sample]:
    for revision in _revisions(cell, RUNS):
        with _Moments(cell) as moments:
            yield moments.open(revision)


def _random(cell: Any) -> Iterator[_Sample]:
    with _Moments(cell) as moments:
        moments.open(1)
        for revision in _revisions(cell, MOMENTS):
            yield moments.open(revision)


def _step(cell: Any) -> Iterator[_Sample]:
    with _Moments(cell) as moments:
        for revision in _revisions(cell, RUNS):
            moments.open(revision)
            for step in (*range(1, STEPS), *range(STEPS, -STEPS, -1)):
                yield moments.open(min(max(revision + step, 1), cell.revision))


def _page(cell: Any) -> Iterator[_Sample]:
    from django.contrib.auth import get_user_model
    from django.test import Client

    from scheduling.history.moments import asking
    from scheduling.models import Event

    user = get_user_model().objects.create(username="sre", is_staff=True, is_superuser=True)
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    client.get(f"/cells/{cell.name}/at/")  # compiles the templates
    last = Event.objects.filter(cell_id=cell.id).latest("revision").time
    span_s = (last - _BEGIN).total_seconds()
    chosen = random.Random(SEED)
    try:
        for _ in range(MOMENTS):
            at = _BEGIN + dt.timedelta(seconds=chosen.uniform(0, span_s))

            def show(at: dt.datetime = at) -> None:
                answer = client.get(f"/cells/{cell.name}/at/", {"at": at.isoformat()})
                assert answer.status_code == 200, answer.text

            yield (*_timed(show, asking._process), 0.0)
    finally:
        asking._process.close()


class _Moments:
    """A process of moments, which rebuilds past states of the cell, and a client of this process."""

    def __init__(self, cell: Any) -> None:
        from scheduling.history.moments.process import MomentProcess

        self._cell, self._process = cell, MomentProcess()

    def __enter__(self) -> _Moments:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()

    def open(self, revision: int) -> _Sample:
        from scheduling.history.moments.messages import MomentRequest

        request = MomentRequest(cell_id=self._cell.id, revision=revision, tenants=None)
        replayed: list[float] = []

        def ask() -> None:
            moment = self._process.moment(request)
            assert moment.picture.revision == revision
            replayed.append(moment.replayed_s)

        return (*_timed(ask, self._process), replayed[0])


def _timed(work: Callable[[], object], process: Any) -> tuple[float, float]:
    """Run `work`. Return the elapsed seconds, and the CPU seconds of this process and of `process`."""
    begin, cpu_s = time.perf_counter(), _cpu_s(process)
    work()
    return time.perf_counter() - begin, _cpu_s(process) - cpu_s


def _cpu_s(process: Any) -> float:
    child = process._process
    times = psutil.Process(child.pid).cpu_times() if child is not None else None
    return time.process_time() + (times.user + times.system if times is not None else 0.0)


def _revisions(cell: Any, number: int) -> Iterable[int]:
    return random.Random(SEED).sample(range(1, cell.revision + 1), number)


def _summary(samples: list[_Sample]) -> dict[str, Any]:
    seconds, cpus, replays = zip(*samples, strict=True)
    return {
        "value": round(statistics.median(seconds), 3),
        "unit": "s",
        "better": "lower",
        "target": TARGET_S,
        "most": round(max(seconds), 3),
        "cpu_s": round(statistics.median(cpus), 3),
        "most_cpu_s": round(max(cpus), 3),
        "replayed_s": round(statistics.median(replays), 3),
        "moments": len(samples),
    }
