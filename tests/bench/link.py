"""`link`: connections and polls of a cell of 10,000 machines with 15 tasks each, over the real protocol (§3.3).

Real link shards run with a durable PostgreSQL. Fleets of simulated machines join, connect over TLS and WebSocket, and
answer every poll. All processes share this machine.

Cases:
* `attach-first`: seconds from the first connection until the shards have polled every machine;
* `attach-again`: the same after a restart of the shards. The journal must not change, because no task changed;
* `shard-killed`: seconds from SIGKILL of a shard until every machine is polled again: by the other shards if there are
  several (`BENCH_SHARDS`), or by the same one, which starts again at once;
* `poll-interval-p95`: seconds between two polls of a machine, for a minute in which no task changes. The journal must
  not change;
* `shard-rss`: resident memory of all shards in MiB;
* `cut-1000-reconciled`: a tenth of the machines loses its connections for a minute, and the master places their tasks
  on other machines. Seconds from their return until each task runs exactly once, on the machine of its row.

    BENCH_SMALL=1           1,000 machines instead of 10,000
    BENCH_MACHINES=2000     number of machines, a multiple of ten
    BENCH_SHARDS=2          number of shards
    BENCH_CASES=poll,shard  run only cases whose name begins with one of these
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from borglet.fleet import join_fleet
from borglet.machine_specs import uniform_fleet
from tests.bench import link_cell
from tests.bench.databases import databases
from tests.bench.link_cell import FleetProgram, Program, until
from tests.bench.wanted import wanted

TASKS_A_MACHINE, JOBS = 15, 150
INTERVAL_S = float(os.environ.get("BENCH_INTERVAL_S", "5"))
QUIET_S = float(os.environ.get("BENCH_QUIET_S", "60"))
CUT_S = float(os.environ.get("BENCH_CUT_S", "60"))
PORT_LOW = 20_000
WAIT_S = 600.0
RECONCILED_S = 120.0
# After this time a master has loaded its state, and can mark silent machines as down.
MASTERED_S = 30.0
_LIMIT = (500, 2**30, 2**30, 0, 0, 1)
_CAPACITY = {"cpu": 16_000, "ram": 2**36, "disk": 2**40}


def measure() -> Iterator[dict[str, Any]]:
    cases = wanted(
        ["attach-first", "attach-again", "shard-killed", "poll-interval-p95", "shard-rss", "cut-1000-reconciled"]
    )
    machines = int(os.environ.get("BENCH_MACHINES") or (1_000 if os.environ.get("BENCH_SMALL") == "1" else 10_000))
    shards = int(os.environ.get("BENCH_SHARDS", "1"))
    with databases() as home, ExitStack() as stack:
        cell = _Cell(home, machines)
        serving = stack.enter_context(link_cell.Shards(home, shards))
        url = serving.url
        cell.join(url)
        fleets = [stack.enter_context(link_cell.fleet(home, name, url)) for name in cell.fleets]
        bench = _Bench(cell, serving, fleets)
        more = {"machines": machines, "tasks": machines * TASKS_A_MACHINE, "shards": shards}
        first = bench.attach()
        if "attach-first" in cases:
            yield {**first, **more}
        for result in bench.quiet():
            if result["case"] in cases:
                yield {**result, **more}
        if "attach-again" in cases:
            yield {**bench.attach_again(), **more}
        if "shard-killed" in cases:
            yield {**bench.kill_shard(), **more}
        if "cut-1000-reconciled" in cases:
            yield {**bench.cut(), **more}


class _Cell:
    """The rows of a cell: machines that have joined, and tasks that run on them."""

    def __init__(self, home: Path, machines: int) -> None:
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        from scheduling.models import Cell
        from tests.integration import rows

        self.home, self.machines = home, machines
        self.cell = rows.a_cell()
        settings = {"poll_interval_s": INTERVAL_S, "reclamation": "off"}
        Cell.objects.filter(pk=self.cell.id).update(settings=settings)
        tenant = rows.a_tenant()
        for number in range(JOBS):
            tasks = machines * TASKS_A_MACHINE // JOBS
            rows.a_job(self.cell, tenant, f"j{number}", tasks=tasks, limit=_LIMIT)
        self.fleets = {"lasting": machines - machines // 10, "cut": machines // 10}

    def join(self, url: str) -> None:
        from scheduling.machines.joining import join_token_issue
        from tests.integration import rows

        token = join_token_issue(principal=rows.ME, cell=self.cell, uses=self.machines)
        specs = uniform_fleet(self.machines, _CAPACITY)
        for name, number in self.fleets.items():
            part, specs = specs[:number], specs[number:]
            link_cell.write_machines(self.home / name, part)
            join_fleet(self.home / name, url, token, part, ports=(PORT_LOW, 29_999))
        link_cell.place(self.machines, port_low=PORT_LOW)

    def revision(self) -> int:
        from scheduling.models import Cell

        return int(Cell.objects.values_list("revision", flat=True).get(pk=self.cell.id))

    def up(self) -> int:
        """Return the number of tasks whose row says that they run."""
        from scheduling.models import Task

        return Task.objects.filter(state="running", up=True).count()

    def settled(self) -> bool:
        """Return whether every task runs, every machine is up, and no old incarnation of a task must still be
        stopped."""
        from scheduling.models import Departure, Machine

        return (
            not Departure.objects.exists()
            and not Machine.objects.exclude(state="up").exists()
            and self.up() == self.machines * TASKS_A_MACHINE
        )

    def story(self) -> str:
        """Return a text for error messages: how many machines, tasks and pending stops are in each state."""
        from scheduling.models import Departure, Task

        tasks = Counter(Task.objects.values_list("state", "phase", "up"))
        return f"machines {self.states()}, tasks {dict(tasks)}, departures {Departure.objects.count()}"

    def incarnations(self) -> dict[str, str]:
        """Return, from the database, on which machine each running task should be: {"job uid/index/incarnation":
        hostname}.
        """
        from scheduling.models import Task

        rows = Task.objects.filter(state="running").values_list("job__uid", "index", "incarnation", "machine__hostname")
        return {f"{uid.hex}/{index}/{number}": hostname for uid, index, number, hostname in rows}

    def evictions(self, *, after: int) -> list[tuple[float, tuple[int, int]]]:
        """Return (time, (job, index)) of each task that was evicted after a revision because its machine failed.

        Times are seconds since the epoch, in ascending order.
        """
        from scheduling.models import Event

        found = Event.objects.filter(
            cell_id=self.cell.id, revision__gt=after, kind="task.evicted", data__cause="machine-failure"
        )
        rows = found.values_list("time", "job_id", "task_index")
        return sorted((time.timestamp(), (job, index)) for time, job, index in rows)

    def states(self) -> dict[str, int]:
        from scheduling.models import Machine

        return dict(Counter(Machine.objects.values_list("state", flat=True)))


class _Bench:
    def __init__(self, cell: _Cell, serving: link_cell.Shards, fleets: list[FleetProgram]) -> None:
        self.cell, self.serving, self.fleets = cell, serving, fleets
        self.began = time.monotonic()
        self.joined_s = _cpu_s(self.shards)

    @property
    def shards(self) -> list[Program]:
        return self.serving.programs

    def attach(self) -> dict[str, Any]:
        """Wait until all machines were polled once and all tasks are up. Return the result of `attach-first`."""
        cell = self.cell
        until(lambda: self._polled() == cell.machines, what="a poll of each machine", seconds=WAIT_S)
        polled_s, shard_s = time.monotonic() - self.began, _cpu_s(self.shards) - self.joined_s
        until(lambda: cell.up() == cell.machines * TASKS_A_MACHINE, what="all tasks to be up", seconds=WAIT_S)
        return self._attached("attach-first", polled_s, shard_s) | {
            "up_s": round(time.monotonic() - self.began, 1),
            "join_shard_cpu_s": round(self.joined_s, 1),
            "up_shard_us_a_machine": round(1e6 * (_cpu_s(self.shards) - self.joined_s) / cell.machines),
            "fleet_cpu_s": round(_cpu_s(self.fleets), 1),
        }

    def attach_again(self) -> dict[str, Any]:
        """Restart the shards, wait until they have polled all machines, and return the result of `attach-again`."""
        before = self.cell.revision()
        self.serving.stop()
        for one in self.fleets:
            one.ask("unpoll")
        self.serving.start()
        started_s, began = _cpu_s(self.shards), time.monotonic()
        until(lambda: self._polled() == self.cell.machines, what="a poll of each machine", seconds=WAIT_S)
        result = self._attached("attach-again", time.monotonic() - began, _cpu_s(self.shards) - started_s)
        time.sleep(2 * INTERVAL_S)
        if written := self.cell.revision() - before:
            result["failed"] = f"the journal moved by {written} revisions though nothing changed"
        return result | {"settled_shard_cpu_s": round(_cpu_s(self.shards) - started_s, 1)}

    def kill_shard(self) -> dict[str, Any]:
        """Kill a shard, wait until all machines were polled again, and return the result of `shard-killed`."""
        before = self.cell.revision()
        for one in self.fleets:
            one.ask("unpoll")
        began = time.monotonic()
        self.serving.kill_one()
        until(lambda: self._polled() == self.cell.machines, what="a poll of each machine", seconds=WAIT_S)
        result = self._attached("shard-killed", time.monotonic() - began, 0.0)
        del result["shard_us_a_machine"]
        if written := self.cell.revision() - before:
            result["failed"] = f"the journal moved by {written} revisions though nothing changed"
        return result

    def _attached(self, case: str, took_s: float, shard_s: float) -> dict[str, Any]:
        return {
            "case": case,
            "value": round(took_s, 2),
            "unit": "s",
            "better": "lower",
            "shard_us_a_machine": round(1e6 * shard_s / self.cell.machines),
            "load": round(os.getloadavg()[0], 1),
        }

    def _polled(self) -> int:
        return sum(one.ask("polled") for one in self.fleets)

    def _connected(self) -> int:
        return sum(one.ask("connected") for one in self.fleets)

    def quiet(self) -> Iterator[dict[str, Any]]:
        """Measure a minute in which no task changes. Yield the results of `poll-interval-p95` and `shard-rss`."""
        time.sleep(2 * INTERVAL_S)  # the reports of the start are written
        before = self.cell.revision()
        shard_s, fleet_s, began = _cpu_s(self.shards), _cpu_s(self.fleets), time.monotonic()
        for one in self.fleets:
            one.ask("record")
        time.sleep(QUIET_S)
        intervals: Counter[int] = Counter()
        for one in self.fleets:
            intervals.update({int(ms): number for ms, number in one.ask("intervals").items()})
        took = time.monotonic() - began
        shard_s, fleet_s = _cpu_s(self.shards) - shard_s, _cpu_s(self.fleets) - fleet_s
        written = self.cell.revision() - before
        polls = intervals.total()
        result = {
            "case": "poll-interval-p95",
            "value": round(_quantile(intervals, 0.95), 3),
            "unit": "s",
            "better": "lower",
            "p50": round(_quantile(intervals, 0.5), 3),
            "p99": round(_quantile(intervals, 0.99), 3),
            "max": max(intervals) / 1000,
            "polls_a_s": round(polls / took),
            "shard_cores": round(shard_s / took, 3),
            "shard_us_a_poll": round(1e6 * shard_s / polls),
            "fleet_us_a_poll": round(1e6 * fleet_s / polls),
            "load": round(os.getloadavg()[0], 1),
            "revisions": written,
        }
        if written:
            result["failed"] = f"the journal moved by {written} revisions though nothing changed"
        yield result
        mib = 2**20
        yield {
            "case": "shard-rss",
            "value": round(sum(one.rss_bytes() for one in self.shards) / mib),
            "unit": "MiB",
            "better": "lower",
            "pss": round(sum(one.pss_bytes() for one in self.shards) / mib),
            "fleet_rss": round(sum(one.rss_bytes() for one in self.fleets) / mib),
        }

    def cut(self) -> dict[str, Any]:
        """Break the connections of a tenth of the machines for a minute, and return the result of
        `cut-1000-reconciled`."""
        cell, (_, gone) = self.cell, self.fleets
        from scheduling.policy.cell_settings import CellSettings

        with link_cell.master(cell.home, cell.cell.name):
            until(lambda: self._mastered(), what="a master", seconds=WAIT_S)
            time.sleep(MASTERED_S)
            before, ran = cell.revision(), cell.incarnations()
            gone.ask("cut")
            time.sleep(CUT_S)
            down = cell.states().get("down", 0)
            gone.ask("mend")
            began = time.monotonic()
            connected_s = until(
                lambda: self._connected() == cell.machines, what="all machines to return", seconds=WAIT_S
            )
            try:
                until(self._once, what="each task to run once, where it should", seconds=RECONCILED_S)
            except TimeoutError as error:
                raise TimeoutError(f"{error}; {cell.story()}") from None
            took = time.monotonic() - began
            evicted = cell.evictions(after=before)
            moved = cell.incarnations().keys() - ran.keys()
        rate = CellSettings().evictions_per_s
        result = {
            "case": "cut-1000-reconciled",
            "value": round(took, 2),
            "unit": "s",
            "better": "lower",
            "cut": cell.fleets["cut"],
            "down": down,
            "evicted": len(evicted),
            "moved": len(moved),
            "connected_s": round(connected_s, 2),
            "evicted_a_s": round(_most_within([time for time, _ in evicted], 10.0) / 10.0, 1),
            "load": round(os.getloadavg()[0], 1),
        }
        if result["evicted_a_s"] > 1.2 * rate:
            result["failed"] = f"{result['evicted_a_s']} tasks a second were evicted, {rate} are allowed"
        # A task can be evicted twice: the master may place it on another machine without connection.
        tasks = len({task for _, task in evicted})
        if len(moved) != tasks:
            result["failed"] = f"{tasks} tasks were evicted and {len(moved)} have a new incarnation"
        return result

    def _mastered(self) -> bool:
        """Return whether a master holds the lease of the cell."""
        from scheduling.models import Lease

        return Lease.objects.filter(cell=self.cell.cell).exclude(holder="").exists()

    def _once(self) -> bool:
        """Return whether each task has processes of exactly one incarnation, that of its row, on the machine of its
        row."""
        if not self.cell.settled() or len(self.cell.incarnations()) != self.cell.machines * TASKS_A_MACHINE:
            return False
        live: dict[str, str] = {}
        for name, one in zip(self.cell.fleets, self.fleets, strict=True):
            for key, (hostname, _) in one.live(self.cell.home / name / "live").items():
                if key in live:
                    return False
                live[key] = hostname
        return live == self.cell.incarnations()


def _cpu_s(programs: Any) -> float:
    return sum(one.cpu_s() for one in programs)


def _quantile(counted: Counter[int], share: float) -> float:
    """Return a quantile in seconds. `counted`: how often each number of milliseconds occurred."""
    left = share * counted.total()
    for ms in sorted(counted):
        left -= counted[ms]
        if left <= 0:
            return ms / 1000
    raise ValueError("nothing was counted")


def _most_within(times: list[float], seconds: float) -> int:
    """Return the largest number of `times` (ascending) in any span of `seconds` seconds."""
    most = first = 0
    for last, at in enumerate(times):
        while times[first] <= at - seconds:
            first += 1
        most = max(most, last - first + 1)
    return most
