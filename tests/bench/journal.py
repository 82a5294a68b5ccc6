"""`journal`: rows and bytes that a cell in a steady state writes to its journal, per task and day, by kind of event.

The bench runs a cell of 1,000 tasks on 40 machines with a real PostgreSQL and Redis. The code of the link shards
compares the machines' reports with the rows, and writes the changes. The reclamation cycle of the master reads the
usage and changes reservations. Time is virtual, in steps of 5 s. The first hour is not counted.

Cases `services`, `batch` and `google2011`: the kinds of load in `tests.bench.journal_load`. The value is the number of
rows per task and day. `bytes`: their size per task and day. `kinds`: both by kind of event. `reserved`: mean
reservation as a share of the limit, for CPU, RAM and disk. `short`: the share of time in which a task uses more than
its reservation. A change of the code must not raise `reserved` or `short`.

    BENCH_HOURS=6         virtual hours that are counted
    BENCH_TASKS=1000      number of tasks
    BENCH_CASES=batch     run only this case
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.bench.databases import databases
from tests.bench.journal_load import (
    BATCH,
    DAY_S,
    GOOGLE2011,
    SERVICES,
    BatchUsage,
    Behaviour,
    Google2011Usage,
    ServiceUsage,
    UnstableTask,
)
from tests.bench.wanted import wanted

STEP_S = 5.0
WARM_UP_S = 3600.0
MACHINES = 40
PACKAGES = 12
LIMIT = (1000, 2**30, 2**30, 0, 0, 1)
LOADS: dict[str, tuple[type[ServiceUsage] | type[BatchUsage] | type[Google2011Usage], Behaviour]] = {
    "services": (ServiceUsage, SERVICES),
    "batch": (BatchUsage, BATCH),
    "google2011": (Google2011Usage, GOOGLE2011),
}


def measure() -> Iterator[dict[str, Any]]:
    hours, tasks = float(os.environ.get("BENCH_HOURS", "6")), int(os.environ.get("BENCH_TASKS", "1000"))
    cases = wanted(list(LOADS))
    if not cases:
        return
    with databases():
        import django
        from django.core.management import call_command

        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # no other code runs in the event loop of the bench
        django.setup()
        call_command("migrate", verbosity=0)
        for name in cases:
            cell = _Cell(name, tasks)
            with asyncio.Runner(loop_factory=VirtualLoop) as runner:
                yield runner.run(cell.measure(hours))


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a virtual clock: `time()` returns `now`, which the bench changes."""

    now = 0.0

    def time(self) -> float:
        return self.now


class _Wire:
    """A fake connection to a machine, which sends nothing."""

    congested = False

    def send(self, content: bytes) -> None: ...

    def close(self, code: int, reason: str) -> None: ...


class _Cell:
    """A cell with running tasks, the code of a shard and a master that writes to the journal, and the simulated
    load."""

    def __init__(self, name: str, tasks: int) -> None:
        from scheduling.link.shard.installed_packages import InstalledIntake
        from scheduling.link.shard.report_intake import ReportIntake
        from scheduling.link.shard.roster import Roster
        from scheduling.master.reclamation import Reclaimer
        from scheduling.master.snapshot import load_state
        from tests.integration import rows

        self.name, self.rng = name, np.random.default_rng(2011)
        usage, self.behaviour = LOADS[name]
        self.cell = rows.a_cell(name)
        self.machines = [rows.a_machine(self.cell, f"m{number}") for number in range(MACHINES)]
        tenant = rows.a_tenant()
        self.digests = [f"sha256:{number:064x}" for number in range(PACKAGES)]
        for digest in self.digests:
            rows.a_package(self.cell, tenant, name=f"p{digest[-3:]}", digest=digest)
        for number in range(tasks // 100):
            rows.a_job(self.cell, tenant, f"j{number}", tasks=100, limit=LIMIT)
        self._place()
        self.state = load_state(self.cell.id)
        self.reclaimer = Reclaimer(self.cell.id, self.cell.name)
        self.roster = Roster(random.Random(1))
        self.intake, self.installed = ReportIntake(self.roster), InstalledIntake()
        self.usage = usage(tasks, self.rng, STEP_S)
        self.unstable: dict[int, UnstableTask] = {}  # by task id
        self.reserved, self.short, self.steps = np.zeros(3), np.zeros(3), 0

    def _place(self) -> None:
        """Place all tasks, with the events that a scheduling pass and the first reports write. All tasks run then."""
        from quota.vocabulary.permissions import system
        from scheduling.core.vocabulary.plan import Assignment
        from scheduling.core.vocabulary.states import Observation
        from scheduling.journal import journal
        from scheduling.models import Task
        from scheduling.tasks import reported_states, transitions

        tasks = list(Task.objects.filter(cell=self.cell).order_by("id"))
        with journal.write(self.cell.id, system("bench")) as entry:
            placed = [
                Assignment(task.job_id, task.index, self.machines[n % MACHINES].id, ports=(20_000 + n // MACHINES,))
                for n, task in enumerate(tasks)
            ]
            transitions.tasks_place(entry, placed)
            reported_states.tasks_observe(entry, [Observation(task.id, 1, "up", "unknown", True) for task in tasks])

    async def measure(self, hours: float) -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self._connect()
        first = None
        while loop.now < WARM_UP_S + hours * 3600:
            loop.now += STEP_S
            self._report(loop.now)
            self._write(loop.now)
            if first is None and loop.now >= WARM_UP_S:
                first = self.state.revision
                self.reserved, self.short, self.steps = np.zeros(3), np.zeros(3), 0
        return self._result(first or 0, hours)

    def _connect(self) -> None:
        """Connect all machines to the shard. Each machine runs its tasks, and some of these are unstable."""
        from borglet.messages import TaskKey
        from scheduling.link.shard.connection import Connection
        from scheduling.link.views.report_changes import ExpectedTask, View

        tasks = self.state.tasks
        self.slots = np.flatnonzero(tasks.machine >= 0)
        drawn = self.rng.random(len(self.slots))
        behaviour = self.behaviour
        for n, slot in enumerate(self.slots.tolist()):
            if drawn[n] < behaviour.flapping + behaviour.restarting:
                flapping = bool(drawn[n] < behaviour.flapping)
                self.unstable[int(tasks.id[slot])] = UnstableTask(behaviour, self.rng, flapping=flapping)
        history = self.cell.history_id.hex
        self.here: dict[int, list[tuple[TaskKey, int]]] = defaultdict(list)
        for slot in self.slots.tolist():
            identity, job = int(tasks.id[slot]), int(tasks.job[slot])
            key = TaskKey(f"{job:032x}", identity & 0xFFFFF, 1)
            self.here[int(self.state.machines.id[tasks.machine[slot]])].append((key, identity))
        for machine in self.machines:
            view = View(history, "g")
            for key, identity in self.here[machine.id]:
                checked = identity in self.unstable and self.unstable[identity].checked
                health = "healthy" if checked else "unknown"
                view.run[key] = ExpectedTask(identity, checked=checked, phase="up", health=health, up=True)
            held = Connection(machine.id, self.cell.id, machine.hostname, 0, _Wire(), 0.0)
            held.view = view
            self.roster.connections[machine.id] = held
        self.packages = {machine.id: self.digests[: PACKAGES // 2] for machine in self.machines}
        self.figures: dict[int, tuple[Any, ...]] = {}

    def _report(self, now: float) -> None:
        """Send a report of each machine whose tasks or packages have changed. `now`: virtual time in seconds."""
        from borglet.messages import EndCause, Exit, Phase, Report, TaskReport, decode_to_shard, encode
        from scheduling.link.views.last_report import merge_report

        for machine, held in self.roster.connections.items():
            if self.rng.random() < self.behaviour.moves * STEP_S / DAY_S:
                free = [digest for digest in self.digests if digest not in self.packages[machine]]
                self.packages[machine] = [*self.packages[machine][1:], free[self.rng.integers(len(free))]]
            reports = []
            for key, identity in self.here[machine]:
                if (one := self.unstable.get(identity)) is None:
                    reports.append(TaskReport(key, "", Phase.UP))
                    continue
                seen = one.at(now)
                exit_ = Exit(EndCause.EXITED, seen.exited_at, status=1) if seen.exited_at else None
                reports.append(TaskReport(key, "", seen.phase, seen.health, seen.restarts, exit=exit_))
            figures = (self.packages[machine], reports)
            if self.figures.get(machine) != figures:
                self.figures[machine] = figures
                whole = Report(0, 1, self.cell.history_id.hex, "g", 0, reports, packages=self.packages[machine])
                held.last_report = merge_report(held.last_report, decode_to_shard(encode(whole)))  # type: ignore[arg-type]
                self.intake.compare(held)

    def _write(self, now: float) -> None:
        """Write the changes to the journal: first those of the shard, then those of the reclaimer."""
        from quota.vocabulary.bands import DEFAULT_BANDS
        from scheduling.journal import journal
        from scheduling.link.shard import writer
        from scheduling.link.shard.inbox import Inbox
        from scheduling.link.shard.installed_packages import readable
        from scheduling.packages.installed import packages_held
        from scheduling.policy.cell_settings import CellSettings

        if (release := getattr(self.intake, "release", None)) is not None:
            release()
        inbox, self.roster.inbox = self.roster.inbox, Inbox()
        if inbox.news:
            writer.apply(self.cell.id, list(inbox.news.values()))
        for cell_id, reports in self.installed.due(self.roster.connections, now).items():
            packages_held(cell_id, readable(reports), principal=writer.ME)
            self.installed.written(reports)
        self._use()
        for turn in range(5):
            if not self.reclaimer.turn(self.state, DEFAULT_BANDS, CellSettings(), now=now + turn):
                break
        while records := journal.tail(self.cell.id, after=self.state.revision):
            self.state.apply_all((r.event, r.revision, r.time.timestamp()) for r in records)

    def _use(self) -> None:
        """Store the usage of all tasks in Redis in the shards' format, and add to the sums of `reserved` and
        `short`."""
        from scheduling.journal import wakeups
        from scheduling.usage import live_usage

        tasks = self.state.tasks
        limit = np.array(LIMIT[:3])
        used = (self.usage.step() * limit).astype(np.int64)
        sample = np.zeros(len(self.slots), dtype=live_usage.SAMPLE)
        sample["task_id"], sample["incarnation"] = tasks.id[self.slots], 1
        sample["cpu_milli"], sample["ram_bytes"], sample["disk_bytes"] = used.T
        sample["processes"] = 1
        client = wakeups.client()
        seconds, micros = client.time()  # type: ignore[misc]
        sample["at"] = seconds + micros / 1e6
        client.hset(f"borg:usage:{self.cell.id}", str(self.machines[0].id), sample.tobytes())
        reservation = tasks.reservation[self.slots][:, :3]
        self.reserved += (reservation / limit).mean(axis=0)
        self.short += (np.minimum(used, limit) > reservation).mean(axis=0)
        self.steps += 1

    def _result(self, first: int, hours: float) -> dict[str, Any]:
        from scheduling.journal.sql import query
        from scheduling.master.invariants import validate

        problems = [problem for problem in validate(self.cell.id) if "is charged" not in problem]
        per = len(self.slots) * hours / 24
        found = query(
            "SELECT kind, count(*), sum(pg_column_size(data)), sum(pg_column_size(e.*)) FROM scheduling_event AS e"
            " WHERE cell_id = %s AND revision > %s GROUP BY kind ORDER BY 2 DESC",
            [self.cell.id, first],
        )
        kinds = {
            kind: {"rows": round(rows / per, 3), "bytes": round(float(size + rows * _ROW_BYTES) / per, 1)}
            for kind, rows, size, _ in found
        }
        return {
            "case": self.name,
            "value": round(sum(kind["rows"] for kind in kinds.values()), 2),
            "unit": "rows/task/day",
            "better": "lower",
            "bytes": round(sum(kind["bytes"] for kind in kinds.values())),
            "kinds": kinds,
            "reserved": (self.reserved / self.steps).round(4).tolist(),
            "short": (self.short / self.steps).round(5).tolist(),
            "tasks": len(self.slots),
            "hours": hours,
            "revisions": self.state.revision - first,
            **({"failed": problems[:5]} if problems else {}),
        }


# Bytes of a row besides `data`: its header, its other columns, and its index entries.
_ROW_BYTES = 200
