"""The case `cycle-150k` of the bench `reclaim`: a reclaimer with a durable PostgreSQL, and usage in Redis."""

from __future__ import annotations

import resource
import statistics
import time
from typing import Any

import numpy as np

from tests.bench.databases import databases

MACHINES, JOBS, TASKS_A_JOB = 12_260, 150, 1_000
SETTLE_LOOKS = 130  # of 5 s each. Then each task has run for over 300 s, and its reservation is far too large
RUNS = 5


def cycle() -> dict[str, Any]:
    with databases():
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        return _Cell().measure()


class _Cell:
    """A cell with rows of 150,000 running tasks, and code that reports their usage in place of Borglets."""

    def __init__(self) -> None:
        from quota.models import Tenant
        from scheduling.master.reclamation import Reclaimer
        from scheduling.master.snapshot import load_state
        from tests.integration import rows

        self.cell = rows.a_cell()
        self._machines()
        tenant: Tenant = rows.a_tenant()
        for number in range(JOBS):
            rows.a_job(self.cell, tenant, f"j{number}", tasks=TASKS_A_JOB, limit=(500, 2**30, 2**30, 0, 0, 1))
        self._run()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.perf_counter()
        self.state = load_state(self.cell.id)
        self.load_s = time.perf_counter() - began
        self.state_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        self.reclaimer = Reclaimer(self.cell.id, self.cell.name)
        self.clock = 0.0
        self.rng = np.random.default_rng(2011)
        self._usage()

    def _machines(self) -> None:
        from quota.vocabulary.permissions import system
        from scheduling.journal import journal
        from scheduling.machines.machines import machine_set_event
        from scheduling.models import Machine

        with journal.write(self.cell.id, system("bench")) as entry:
            made = Machine.objects.bulk_create(
                Machine(
                    cell=self.cell,
                    hostname=f"m{number}",
                    address="127.0.0.1",
                    rack=f"r{number // 40}",
                    capacity=[64_000, 2**38, 2**42, 0, 0, 10_000],
                )
                for number in range(MACHINES)
            )
            entry.extend(machine_set_event(machine) for machine in made)
        self.machine_ids = [machine.id for machine in made]

    def _run(self) -> None:
        """Change the rows of all tasks to "running", without events."""
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute(
                "UPDATE scheduling_task SET state = 'running', incarnation = 1, phase = 'up', up = true,"
                " machine_id = %s + (index + job_id * 7919) %% %s",
                [self.machine_ids[0], MACHINES],
            )
            cursor.execute(
                "UPDATE scheduling_job SET state = 'running', tasks_pending = 0, tasks_running = tasks_total,"
                " tasks_up = tasks_total"
            )
        connection.set_autocommit(True)
        with connection.cursor() as cursor:
            cursor.execute("VACUUM ANALYZE scheduling_task")
            cursor.execute("VACUUM ANALYZE scheduling_jobspec")

    def _usage(self) -> None:
        """Choose a random usage for each task, 20 % to 50 % of its limit, in the format that link shards store per
        machine.
        """
        from scheduling.usage import live_usage

        tasks = self.state.tasks
        slots = np.flatnonzero(tasks.machine >= 0)
        slots = slots[np.argsort(tasks.machine[slots], kind="stable")]
        self.sample = np.zeros(len(slots), dtype=live_usage.SAMPLE)
        self.sample["task_id"], self.sample["incarnation"] = tasks.id[slots], tasks.incarnation[slots]
        self.share = self.rng.uniform(0.2, 0.5, len(slots))
        self.sample["processes"] = 1
        machines, self.first = np.unique(tasks.machine[slots], return_index=True)
        self.ids = self.state.machines.id[machines].tolist()

    def report(self) -> None:
        from scheduling.journal import wakeups

        share = self.share * self.rng.uniform(0.8, 1.2, len(self.sample))
        self.sample["cpu_milli"] = 500 * share
        self.sample["ram_bytes"] = self.sample["disk_bytes"] = 2**30 * share
        client = wakeups.client()
        seconds, micros = client.time()
        self.sample["at"] = seconds + micros / 1e6
        whole = self.sample[:1].copy()
        mapping = {}
        for machine, rows in zip(self.ids, np.split(self.sample, self.first[1:]), strict=True):
            whole["task_id"] = -machine
            mapping[str(machine)] = whole.tobytes() + rows.tobytes()
        client.hset(f"borg:usage:{self.cell.id}", mapping=mapping)

    def cycle(self) -> tuple[list[float], int]:
        """Run one cycle. Return the seconds of each of its turns, and how many reservations were written."""
        from quota.vocabulary.bands import DEFAULT_BANDS
        from scheduling.policy.cell_settings import CellSettings

        self.clock += 5.0
        turns, changed = [], 0
        while True:
            began = time.perf_counter()
            written = self.reclaimer.turn(self.state, DEFAULT_BANDS, CellSettings(), now=self.clock)
            turns.append(time.perf_counter() - began)
            if not written:
                return turns, changed
            changed += written

    def absorb(self) -> float:
        from scheduling.journal import journal

        began = time.perf_counter()
        for record in journal.tail(self.cell.id, after=self.state.revision):
            self.state.apply(record.event, revision=record.revision, time=record.time.timestamp())
        return time.perf_counter() - began

    def measure(self) -> dict[str, Any]:
        from tests.bench.reclaim import timed

        quiet = []
        for number in range(SETTLE_LOOKS):
            if number % 4 == 0:
                self.report()
            quiet.append(sum(self.cycle()[0]))
        cycles, changes, absorbed, cpu = [], [], [], []
        for _ in range(RUNS + 1):
            self.report()
            used = time.process_time()
            turns, changed = self.cycle()
            cpu.append(time.process_time() - used)
            cycles.append(turns)
            changes.append(changed)
            absorbed.append(self.absorb())
        median = statistics.median
        return timed(
            "cycle-150k",
            [sum(turns) for turns in cycles],
            tasks=len(self.sample),
            machines=MACHINES,
            changed=median(changes[1:]),
            cpu_ms=round(1000 * median(cpu[1:]), 1),
            look_ms=round(1000 * median(turns[0] for turns in cycles[1:]), 1),
            longest_ms=round(1000 * max(max(turns) for turns in cycles[1:]), 1),
            quiet_ms=round(1000 * median(quiet[1:]), 1),
            absorb_ms=round(1000 * median(absorbed[1:]), 1),
            own_process={"load_s": round(self.load_s, 1), "state_mib": round(self.state_mib)},
        )
