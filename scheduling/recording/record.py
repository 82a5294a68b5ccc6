"""Simulates a source so that its last event happens about now, and stores the history as a study cell.

The simulation locks nothing and writes no rows. One transaction writes the whole cell afterwards, so an interrupted
recording leaves no cell behind.
"""

from __future__ import annotations

import datetime as dt
import math
import tempfile
import time
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from quota.models import Tenant
from quota.tenancy.tenants import tenant_create
from quota.vocabulary.permissions import Principal
from scheduling.history.archive.store import store
from scheduling.history.checkpoints.folder import key_of
from scheduling.history.statistics.reader import statistics_read
from scheduling.models import Cell
from scheduling.recording.play import Play, new_ids
from scheduling.recording.requests import Wish, check
from scheduling.simulator.sessions.sources import DRAWN, load_trace
from scheduling.simulator.traces import drawn
from scheduling.usage import usage_windows


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The figures of a recording. `simulated_s`, `seconds`: the duration of the simulation and of the whole recording,
    in seconds.
    """

    cell: str
    revision: int
    events: int
    machines: int
    jobs: int
    tasks: int
    windows: int
    checkpoints: int
    simulated_s: float
    seconds: float


def record(*, principal: Principal, wish: Wish, now: dt.datetime) -> Recorded:
    """Create a study cell whose history is a simulation of the last `wish.days` days, until the last full hour before
    `now`. Raises the errors of `check` and of `load_trace`.
    """
    check(principal=principal, wish=wish)
    started = time.monotonic()
    end = now.replace(minute=0, second=0, microsecond=0)
    began = (end - dt.timedelta(hours=math.ceil(24 * wish.days))).timestamp()
    if wish.source == DRAWN:
        beginning, source = drawn.drawn(machines=wish.machines, days=wish.days, seed=wish.seed)
    else:
        beginning, source = load_trace(wish.source, wish.data, seed=wish.seed)
    tenants = _tenants(principal)
    origin = {
        "cell": wish.source,
        "revision": 0,
        "history": "",
        "redacted": False,
        "tenants": [tenant.name for tenant in tenants],
    }
    cell = Cell(
        id=int(new_ids(Cell, 1)[0]),
        name=wish.name,
        study_of={**origin, "recorded": {"seed": wish.seed, "days": wish.days}},
        history_id=uuid.uuid4(),
        created_at=dt.datetime.fromtimestamp(began, dt.UTC),
    )
    files = store()
    with (
        tempfile.TemporaryDirectory(prefix="borg-record-", dir=files.spool()) as folder,
        Path(folder, "events").open("w+", encoding="utf-8", newline="\n") as lines,
    ):
        play = Play(cell, beginning, source, tenants, began, wish.seed, Path(folder), lines)
        play.run(end.timestamp())
        simulated_s = time.monotonic() - started
        check(principal=principal, wish=wish)  # another cell may have the name by now, and its own checkpoints
        for revision, path in play.checkpoints.items():
            files.put(key_of(cell.name, revision), path)  # files without a cell do no harm
        play.write(partial(check, principal=principal, wish=wish))
    windows = 0
    for many in play.usage.windows():
        usage_windows.store(many)
        windows += len(many)
    statistics_read(cell, now=end, seconds=float("inf"))
    return Recorded(
        cell=cell.name,
        revision=play.journal.revision,
        events=play.journal.count,
        machines=len(play.state.machines),
        jobs=len(play.jobs.rows),
        tasks=sum(map(len, play.tasks.by_job.values())),
        windows=windows,
        checkpoints=len(play.checkpoints),
        simulated_s=round(simulated_s, 1),
        seconds=round(time.monotonic() - started, 1),
    )


def _tenants(principal: Principal) -> list[Tenant]:
    """Return the tenants to which the jobs of recorded cells belong. Create those that are missing. They are deleted
    together with the last recorded cell, because `study_delete` deletes the tenants of a cell that have no other jobs.
    """
    names = [f"study-{name}" for name in drawn.TENANTS]
    known = {tenant.name: tenant for tenant in Tenant.objects.filter(name__in=names)}
    for name in names:
        if name not in known:
            known[name] = tenant_create(principal=principal, name=name, title="Jobs of recorded cells")
    return [known[name] for name in names]
