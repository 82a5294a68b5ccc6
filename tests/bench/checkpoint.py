"""`checkpoint`: how long it takes to save, load, restore and replay the state of a full-size cell.

The cell is that of `tests.bench.full_cell`. Cases:
* `save`: seconds to read the rows of the running cell and write them to a file. `size_mb`: size of the file.
  `longest_wait_ms`: the longest wait for a lock of a concurrent submission, sampled every 5 ms;
* `load`: seconds to read the file and build the state in memory;
* `restore`: seconds to create a study cell, a copy for experiments, with the present state of the cell;
* `validate`: seconds of `validate`, which compares the state of the checkpoint with the rows;
* `replay`: events per second when all events of the journal are read from PostgreSQL and applied. `changing`: the
  same, if only the events that change the state are counted. PostgreSQL filters out the others.

Each result has `cpu_s`, the CPU time of this process. Compare `cpu_s` if other users share the machine.

    BENCH_CASES=save,load     run only these cases
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from tests.bench.full_cell import full_cell, users
from tests.bench.installation import Installation
from tests.bench.wanted import wanted

RUNS = 3
_SAMPLE_S = 0.005


def measure() -> Iterator[dict[str, Any]]:
    with full_cell() as where:
        _use_database_of(where)
        from scheduling.models import Cell

        cell_id = Cell.objects.values_list("id", flat=True).get(name=where.client("admin").profile.cell)
        cases = {"save": _save, "load": _load, "restore": _restore, "validate": _validate, "replay": _replay}
        for case, run in cases.items():
            if case in wanted(list(cases)):
                yield {"case": case, **run(where, cell_id), "load": round(os.getloadavg()[0], 1)}


def _save(where: Installation, cell_id: int) -> dict[str, Any]:
    from scheduling.history.archive.store import store
    from scheduling.history.checkpoints.saving import checkpoint_write

    saved: list[str] = []

    def save() -> None:
        for old in saved:
            store().delete(old)
        saved[:] = [checkpoint_write(cell_id)]

    with _Submitting(where) as waits:
        figures = _timed(save)
    size = (store().size(saved[0]) or 0) / 1e6
    return {**figures, "unit": "s", "size_mb": round(size, 2), "longest_wait_ms": round(1000 * max(waits), 1)}


def _load(where: Installation, cell_id: int) -> dict[str, Any]:
    from scheduling.history.checkpoints.file import read
    from scheduling.history.checkpoints.folder import open_checkpoint
    from scheduling.history.checkpoints.saving import checkpoint_write
    from scheduling.history.checkpoints.tables import state_of

    key = checkpoint_write(cell_id)

    def load() -> None:
        with open_checkpoint(key) as file:
            header, tables = read(file)
        state_of(tables, extra_resources=header.extra_resources, revision=header.revision)

    return {**_timed(load), "unit": "s"}


def _restore(where: Installation, cell_id: int) -> dict[str, Any]:
    from quota.vocabulary.permissions import system
    from scheduling.history.checkpoints.saving import checkpoint_write
    from scheduling.history.studies.deletion import study_delete
    from scheduling.history.studies.studies import Study, study_restore
    from scheduling.models import Cell

    checkpoint_write(cell_id)
    cell, made = Cell.objects.get(pk=cell_id), list[Study]()

    def restore() -> None:
        made.append(study_restore(principal=system("bench"), cell=cell, into=f"study{len(made)}"))

    figures = _timed(restore)
    for study in made:
        study_delete(principal=system("bench"), cell=study.cell)
    return {**figures, "unit": "s", "tasks": made[0].tasks}


def _validate(where: Installation, cell_id: int) -> dict[str, Any]:
    from scheduling.history.checkpoints.rows import load_recorded
    from scheduling.history.checkpoints.saving import checkpoint_write
    from scheduling.history.checkpoints.state_at_moment import replay
    from scheduling.master.invariants import validate
    from scheduling.models import Cell

    checkpoint_write(cell_id)
    after = Cell.objects.get(pk=cell_id).revision
    check = partial(validate, cell_id, load=load_recorded, replay=replay, after=after, parallel=True)
    checked = _timed(lambda: _expect_none(check()))
    return {**checked, "unit": "s"}


def _replay(where: Installation, cell_id: int) -> dict[str, Any]:
    from scheduling.history.checkpoints.event_batches import follow, news_between
    from scheduling.history.checkpoints.recorded import RecordedState
    from scheduling.models import Cell, Event

    cell = Cell.objects.get(pk=cell_id)
    applied = 0

    def run() -> None:
        nonlocal applied
        applied = 0
        state = RecordedState(cell.extra_resources)

        def counted() -> Iterator[list[Any]]:
            nonlocal applied
            kinds = list(state._handlers)
            for batch in news_between(cell, after=0, upto=cell.revision, kinds=kinds):
                applied += len(batch)
                yield batch

        follow(state, counted(), upto=cell.revision)

    figures = _timed(run)
    events = Event.objects.filter(cell_id=cell_id, revision__lte=cell.revision).count()
    seconds, cpu_s = figures["value"], figures["cpu_s"]
    return {
        "value": round(events / seconds),
        "unit": "events/s",
        "events": events,
        "changing": round(applied / seconds),
        "changing_per_cpu_s": round(applied / cpu_s),
        "seconds": seconds,
        "cpu_s": cpu_s,
    }


def _timed(work: Callable[[], object]) -> dict[str, Any]:
    """Run `work` three times. Return the median elapsed time (`value`) and CPU time (`cpu_s`) of this process in
    seconds."""
    walls, cpus = [], []
    for _ in range(RUNS):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return {"value": round(statistics.median(walls), 2), "cpu_s": round(statistics.median(cpus), 2)}


def _expect_none(problems: list[str]) -> None:
    if problems:
        raise RuntimeError(problems[0])


class _Submitting:
    """Submit jobs over REST during a `with` block, and sample how long SQL statements wait for locks.

    The block receives the list of samples in seconds.
    """

    def __init__(self, where: Installation) -> None:
        self._where, self._end, self._waits = where, threading.Event(), [0.0]
        self._threads = [threading.Thread(target=self._submit), threading.Thread(target=self._sample)]

    def __enter__(self) -> list[float]:
        for thread in self._threads:
            thread.start()
        return self._waits

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join(60.0)

    def _submit(self) -> None:
        client = self._where.client("admin")
        tenant, number = users(self._where)[0]["tenant"], 0
        task = {"command": ["/bin/x"], "limit": {"cpu": "10m", "ram": "1Mi", "disk": "1Mi"}}
        while not self._end.is_set():
            number += 1
            file = {"name": f"during{number}", "tenant": tenant, "priority": 100, "tasks": 2, "task": task}
            client.submit(f"/api/v1/cells/{client.profile.cell}/jobs/", file)

    def _sample(self) -> None:
        import psycopg

        statement = "SELECT coalesce(max(extract(epoch FROM clock_timestamp() - waitstart)), 0)::float8 FROM pg_locks"
        with psycopg.connect(os.environ["BORG_DATABASE_URL"], autocommit=True) as connection:
            while not self._end.wait(_SAMPLE_S):
                row = connection.execute(f"{statement} WHERE NOT granted").fetchone()
                self._waits.append(row[0] if row else 0.0)


def _use_database_of(where: Installation) -> None:
    web = next(one for one in where.processes() if "portal.web" in one.cmdline())
    os.environ.update(web.environ() | {"BORG_LOG_LEVEL": "WARNING"})
    import django

    django.setup()
