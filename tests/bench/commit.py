"""`commit`: the time from the submission of a job until its tasks are placed, through the whole system (§3.2, §3.4).

A complete installation runs with durable commits. The bench adds 10,000 machines as rows, without Borglets. Jobs are
submitted over REST. A task counts as placed when another database session sees the committed row.

Cases:

    one-job-10000            seconds from the request until all 10,000 tasks of one job are placed
    bulk-1000x100            placements per second of 1,000 jobs of 100 tasks
    bulk-5000x1              placements per second of 5,000 jobs of one task with different requests
    single-p50, -p99         ms from the answer "accepted" until a job of one task is placed
    request-p50, -p99        the same from the start of the request
    single-p99-during-bulk   as `single-p99`, while a job of 100,000 tasks is placed

Each result has `fsync_ms`, the median time to write 8 KiB durably to the disk of the database, and `load`, the load
average before. `cpu_s` is the CPU time of the whole installation per run. Compare it if other users share the machine.

    BENCH_RUNS=1                   number of runs instead of five (three for 100,000 tasks)
    BENCH_CASES=single,one-job     run only cases whose name begins with one of these
"""

from __future__ import annotations

import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from portal.cli.client import Client
from tests.bench.installation import Installation, installation

MACHINES = 10_000
RACK, RACKS_PER_DOMAIN = 40, 10
CAPACITY = (16_000, 64 * 2**30, 2**40, 0, 0, 0)
TENANT = "bench"
SINGLES = 100
WAIT_S = 120.0
# Fewer runs are enough for 100,000 tasks, because each run has many commits.
LARGE_RUNS = 3
# Seconds between two queries of this process, which also cost CPU: for one small job, and for a sum over all jobs.
_POLL_S, _POLL_MANY_S = 0.002, 0.02


def measure() -> Iterator[dict[str, Any]]:
    with installation() as where:
        bench = Bench(where)
        for case, run in (
            ("single", bench.singles),
            ("one-job-10000", bench.one_job),
            ("bulk-1000x100", bench.bulk_of_hundreds),
            ("bulk-5000x1", bench.bulk_of_ones),
            ("single-p99-during-bulk", bench.singles_during_bulk),
        ):
            if any(case.startswith(wanted) for wanted in os.environ.get("BENCH_CASES", case).split(",")):
                load = round(os.getloadavg()[0], 1)
                for result in run():
                    yield {**result, "machines": MACHINES, "fsync_ms": bench.fsync_ms, "load": load}


class Bench:
    """A running installation with additional machines as rows, and a REST client of it."""

    def __init__(self, where: Installation, *, machines: int = MACHINES) -> None:
        self._use_database_of(where)
        self.where = where
        self.client = where.client("admin")
        self.cell = self.client.profile.cell
        self.jobs = f"/api/v1/cells/{self.cell}/jobs/"
        self.fsync_ms = _fsync_ms(where.home)
        self._numbers = count()
        self._make_machines(machines)
        self.client.post("/api/v1/tenants/", {"name": TENANT})
        amounts = {"cpu": 10**9, "ram": 2**50, "disk": 2**50}
        for band in ("production", "batch"):
            grant = {"tenant": TENANT, "cell": self.cell, "band": band, "amounts": amounts, "reason": "bench"}
            self.client.post("/api/v1/quota/grants/", grant | {"beyond_capacity": True})
        self._until_idle()

    def _use_database_of(self, where: Installation) -> None:
        """Connect Django in this process to the installation's database, for preparation and observation."""
        web = next(one for one in where.processes() if "portal.web" in one.cmdline())
        os.environ.update(web.environ() | {"BORG_LOG_LEVEL": "WARNING"})
        import django

        django.setup()

    def _make_machines(self, machines: int) -> None:
        from quota.vocabulary.permissions import system
        from scheduling.core.vocabulary import events
        from scheduling.journal import journal
        from scheduling.machines.machines import machines_drain, publish_capacity
        from scheduling.models import Cell, Machine

        cell = Cell.objects.get(name=self.cell)
        # The added machines have no Borglets, and no task may run on the real one.
        for own in Machine.objects.filter(cell=cell):
            machines_drain(principal=system("bench"), cell=own.cell, machines=[own], reason="a bench")
        with journal.write(cell.id, system("bench")) as entry:
            Cell.objects.filter(pk=cell.id).update(settings={**cell.settings, "down_after_s": 1e9})
            entry.append(events.CellSet(settings={**cell.settings, "down_after_s": 1e9}))
            made = Machine.objects.bulk_create(
                Machine(
                    cell=cell,
                    hostname=f"bench{number}",
                    address="127.0.0.1",
                    capacity=list(CAPACITY),
                    rack=f"r{number // RACK}",
                    power_domain=f"p{number // (RACK * RACKS_PER_DOMAIN)}",
                )
                for number in range(machines)
            )
            entry.extend(
                events.MachineSet(
                    machine_id=machine.id,
                    hostname=machine.hostname,
                    address=machine.address,
                    capacity=CAPACITY,
                    rack=machine.rack,
                    power_domain=machine.power_domain,
                )
                for machine in made
            )
            publish_capacity(entry)
        self.cell_id = cell.id

    def singles(self) -> Iterator[dict[str, Any]]:
        runs = SINGLES * _runs()
        for _ in range(5):
            self.single()
        taken = sorted(self.single() for _ in range(runs))
        accepted = sorted(placed for _, placed in taken)
        both = sorted(submitted + placed for submitted, placed in taken)
        submitted_ms = round(1000 * statistics.median(submitted for submitted, _ in taken), 2)
        for case, seconds in (("single", accepted), ("request", both)):
            for name, share in ((f"{case}-p50", 0.5), (f"{case}-p99", 0.99)):
                yield {
                    "case": name,
                    "value": round(1000 * quantile(seconds, share), 2),
                    "unit": "ms",
                    "better": "lower",
                    "runs": runs,
                    "submitted_ms_p50": submitted_ms,
                }
        self.clear()

    def one_job(self) -> Iterator[dict[str, Any]]:
        spec = self.spec(10_000, priority=200)
        yield from self._repeat("one-job-10000", lambda: self.client.post(self.jobs, spec()), 10_000, "s")

    def bulk_of_hundreds(self) -> Iterator[dict[str, Any]]:
        spec = self.spec(100, priority=100)
        yield from self._bulk("bulk-1000x100", lambda: [spec() for _ in range(1000)], 100_000)

    def bulk_of_ones(self) -> Iterator[dict[str, Any]]:
        spec = self.spec(1, priority=100)
        yield from self._bulk("bulk-5000x1", lambda: [spec(cpu=100 + i) for i in range(5000)], 5_000)

    def singles_during_bulk(self) -> Iterator[dict[str, Any]]:
        taken: list[float] = []
        tasks = 100_000
        for _ in range(min(_runs(), LARGE_RUNS)):
            client = Client(self.client.profile)
            large = self.spec(tasks, priority=100)()
            other = threading.Thread(target=client.post, args=[self.jobs, large])
            began = time.monotonic()
            other.start()
            while other.is_alive() or self._pending():
                taken.append(self.single()[1])
                if time.monotonic() - began > WAIT_S:
                    raise TimeoutError(f"{tasks} tasks were not placed within {WAIT_S} s")
            other.join()
            took = time.monotonic() - began
            self.clear()
        yield {
            "case": "single-p99-during-bulk",
            "value": round(1000 * quantile(sorted(taken), 0.99), 2),
            "unit": "ms",
            "better": "lower",
            "p50_ms": round(1000 * statistics.median(taken), 2),
            "max_ms": round(1000 * max(taken), 2),
            "singles": len(taken),
            "tasks": tasks,
            "placed_s": round(took, 3),
        }

    def _bulk(self, case: str, files: Callable[[], list[Any]], tasks: int) -> Iterator[dict[str, Any]]:
        def submit(given: list[Any]) -> None:
            answer = self.client.post(f"/api/v1/cells/{self.cell}/jobs:bulk", given)
            if answer["submitted"] != len(given):
                raise RuntimeError(f"{answer['refused']} jobs were refused: {answer['results'][0]}")

        yield from self._repeat(case, lambda: submit(files()), tasks, "placements/s")

    def _repeat(self, case: str, submit: Callable[[], Any], tasks: int, unit: str) -> Iterator[dict[str, Any]]:
        """Call `submit` and wait until its `tasks` tasks are placed, several times. Yield one result with the median.

        After each run all tasks are ended.
        """
        runs = min(_runs(), LARGE_RUNS) if tasks >= 100_000 else _runs()
        warm_up = int(runs > 1)
        total, accepted, cpu = [], [], []
        for _ in range(runs + warm_up):
            running = self._running()
            used = self.where.cpu_s()
            began = time.monotonic()
            submit()
            accepted.append(time.monotonic() - began)
            _until(lambda before=running: self._running() - before >= tasks, every_s=_POLL_MANY_S)
            total.append(time.monotonic() - began)
            cpu.append(self.where.cpu_s() - used)
            self.clear()
        counted = total[warm_up:]
        seconds = statistics.median(counted)
        yield {
            "case": case,
            "value": round(seconds, 3) if unit == "s" else round(tasks / seconds),
            "unit": unit,
            "better": "lower" if unit == "s" else "higher",
            "runs": len(counted),
            "tasks": tasks,
            "seconds": [round(one, 3) for one in counted],
            "accepted_s": round(statistics.median(accepted[warm_up:]), 3),
            "cpu_s": round(statistics.median(cpu[warm_up:]), 2),
        }

    def single(self) -> tuple[float, float]:
        """Submit a job of one task. Return the seconds until it is accepted, and the seconds from then until it is
        placed."""
        spec = self.spec(1, priority=200)()
        began = time.monotonic()
        self.client.post(self.jobs, spec)
        accepted = time.monotonic()
        query = (
            "SELECT tasks_running FROM scheduling_job WHERE name = %s AND state <> 'dead' AND cell_id = %s"
            " AND tenant_id = (SELECT id FROM quota_tenant WHERE name = %s)"
        )
        _until(lambda: self._one(query, spec["name"], self.cell_id, TENANT))
        return accepted - began, time.monotonic() - accepted

    def spec(self, tasks: int, *, priority: int) -> Callable[..., dict[str, Any]]:
        def one(cpu: int = 100) -> dict[str, Any]:
            return {
                "name": f"job{next(self._numbers)}",
                "tenant": TENANT,
                "priority": priority,
                "tasks": tasks,
                "task": {
                    "command": ["/bin/server", "--port=$(port.http)"],
                    "limit": {"cpu": f"{cpu}m", "ram": "64Mi", "disk": "64Mi"},
                    "ports": ["http"],
                },
            }

        return one

    def wait_for_running(self, tasks: int, *, within_s: float) -> None:
        """Wait until at least `tasks` tasks run. Raises `TimeoutError` after `within_s` seconds."""
        _until(lambda: self._running() >= tasks, within_s, every_s=1.0)

    def wait_for_placed(self, *, within_s: float) -> None:
        """Wait until no task is pending. Raises `TimeoutError` after `within_s` seconds."""
        _until(lambda: not self._pending(), within_s, every_s=_POLL_MANY_S)

    def _running(self) -> int:
        return self._sum_of_live("tasks_running")

    def _pending(self) -> int:
        return self._sum_of_live("tasks_pending")

    def _sum_of_live(self, counter: str) -> int:
        """Return the sum of a column over all jobs that are pending or running.

        The query uses an index, because it runs while the cell is measured.
        """
        return self._one(
            f"SELECT coalesce(sum({counter}), 0) FROM scheduling_job"
            " WHERE cell_id = %s AND state = ANY('{pending,running}')",
            self.cell_id,
        )

    def _one(self, query: str, *parameters: Any) -> int:
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute(query, parameters)
            return int(cursor.fetchone()[0])

    def clear(self, **only: Any) -> None:
        """End all tasks, and wait until the master has applied that, so that each run starts from the same cell.

        `only`: filters for `Task`; tasks that do not match continue.
        """
        from quota.vocabulary.permissions import system
        from scheduling.core.vocabulary.task_events import Ending
        from scheduling.journal import journal
        from scheduling.models import Task
        from scheduling.tasks import transitions

        while True:
            live = Task.objects.exclude(state="dead").filter(**only)
            ids = list(live.order_by("id").values_list("id", flat=True)[:5000])
            if not ids:
                break
            with journal.write(self.cell_id, system("bench")) as entry:
                transitions.tasks_end(entry, [Ending(one, "finished", gone=True) for one in ids])
        self._until_idle()

    def _until_idle(self) -> None:
        """Wait until the master has applied all earlier events: submit three small jobs, which are placed after
        these."""
        for _ in range(3):
            self.single()


def _runs() -> int:
    return int(os.environ.get("BENCH_RUNS", "5"))


def quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _until(reached: Callable[[], Any], seconds: float = WAIT_S, every_s: float = _POLL_S) -> None:
    until = time.monotonic() + seconds
    while not reached():
        if time.monotonic() > until:
            raise TimeoutError(f"not reached within {seconds} s")
        time.sleep(every_s)


def _fsync_ms(folder: Path) -> float:
    taken = []
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        for _ in range(100):
            file.write(b"\0" * 8192)
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return round(1000 * statistics.median(taken), 3)
