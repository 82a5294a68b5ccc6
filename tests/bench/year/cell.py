"""The cell of the simulated year: real rows, the production pass and commit, and machines that exist as rows alone.

    step: tasks end ─► machines fail and return ─► jobs arrive ─► pass, commit ─► tasks report that they are up

Every change goes through the functions of production that write to the journal, many tasks per revision, as the group
commits of a busy cell do. Usage is written for a sample of the tasks, because all windows of a year would be 10^9 rows.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from borglet.messages import TaskKey, UsageWindow
from quota.models import PriorityBand, Quota, Tenant
from quota.vocabulary.bands import DEFAULT_BANDS
from quota.vocabulary.permissions import system
from scheduling.cells.cells import cell_create
from scheduling.core.cell.tasks import RUNNING
from scheduling.core.pass_ import schedule_pass
from scheduling.core.placing.pass_cache import PassCache
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.states import EvictionCause, Observation
from scheduling.core.vocabulary.task_events import Ending, Eviction
from scheduling.core.warm import compile_kernels
from scheduling.jobs import updates
from scheduling.jobs.submit_and_kill import job_kill, jobs_submit_bulk, spec_for
from scheduling.journal import journal
from scheduling.journal.row_events import machine_set_event
from scheduling.machines import machines
from scheduling.machines.machines import publish_capacity
from scheduling.master.commit import commit
from scheduling.master.snapshot import load_state
from scheduling.models import Cell, Departure, Job, Machine, Task
from scheduling.tasks import departures, reported_states, transitions
from scheduling.usage import usage_windows
from scheduling.usage.usage_windows import TaskWindow
from tests.bench.year import work
from tests.bench.year.clock import Clock

ME = system("year")
MOST_VECTOR = [10**9, 2**52, 2**54, 0, 0, 10**9]
CAPACITY = [32_000, 2**36, 2**40, 0, 0, 10_000]
# Per day: shares of the machines that fail, of started batch tasks that crash, of services that change or are replaced.
FAILING, CRASHING, CHANGED, REPLACED = 1 / 60, 0.003, 0.03, 0.01
WINDOWS_PER_HOUR = 50


class YearCell:
    """The cell and its load. `starts`, `submitted`: tasks placed and jobs submitted since this object was made."""

    def __init__(self, cell: Cell, clock: Clock, *, steps: int, starts_per_day: int) -> None:
        self.cell, self.clock, self.steps = cell, clock, steps
        self.services = Machine.objects.filter(cell=cell).count() // 8
        self.batch_per_step = max(1, (starts_per_day - self._restarts_per_day()) // steps)
        compile_kernels()
        self.state, self.memory = load_state(cell.id), PassCache()
        self.policy = Policy(bands=tuple(DEFAULT_BANDS))
        self.starts = self.submitted = 0
        self._own: dict[int, list[journal.JournalRecord]] = {}
        self._ends: list[tuple[float, int, int, bool]] = []  # time, task, incarnation, fails
        self._fresh: list[tuple[int, int]] = []  # batch tasks placed in the last step, with incarnations
        self._batch_number = self._release = Job.objects.count()
        self._resume()

    @classmethod
    def create(cls, machines: int) -> Cell:
        """Create the rows of a cell with this many machines, its tenants and their quota."""
        for band in DEFAULT_BANDS:
            PriorityBand.objects.get_or_create(
                name=band.name,
                defaults={
                    "low": band.low,
                    "high": band.high,
                    "prod": band.prod,
                    "preempts_within": band.preempts_within,
                },
            )
        cell = cell_create(principal=ME, name="year")
        with journal.write(cell.id, ME) as entry:
            made = Machine.objects.bulk_create(
                Machine(
                    cell=cell,
                    hostname=f"m{number}",
                    address="127.0.0.1",
                    rack=f"r{number // 40}",
                    power_domain=f"p{number // 400}",
                    capacity=CAPACITY,
                )
                for number in range(machines)
            )
            entry.extend(machine_set_event(machine) for machine in made)
            publish_capacity(entry)
        for number in range(work.TENANTS):
            tenant = Tenant.objects.create(name=work.tenant_of(number))
            for name in ("batch", "production"):
                Quota.objects.create(
                    tenant=tenant,
                    cell=cell.name,
                    band=PriorityBand.objects.get(name=name),
                    amounts=MOST_VECTOR,
                    starts_at=cell.created_at,
                )
        return cell

    def step(self, rng: np.random.Generator) -> None:
        """Do the work of one step of the clock."""
        self._end_tasks()
        self._return_machines()
        self._stop_departed()
        self._evict(rng)
        self._submit(rng)
        self._change_services(rng)
        self._place()
        self._measure(rng)

    # --- the parts of a step

    def _end_tasks(self) -> None:
        now, due = self.clock.now().timestamp(), []
        while self._ends and self._ends[0][0] <= now:
            due.append(heapq.heappop(self._ends))
        for part in _chunks(due):
            with journal.write(self.cell.id, ME) as entry:
                transitions.tasks_end(
                    entry,
                    [
                        Ending(
                            identity,
                            "failed" if fails else "finished",
                            incarnation,
                            gone=True,
                            exit={"cause": "exited", "at": at, "status": int(fails)},
                        )
                        for at, identity, incarnation, fails in part
                    ],
                )

    def _return_machines(self) -> None:
        down = list(Machine.objects.filter(cell=self.cell, state="down").values_list("id", flat=True))
        if down:
            with journal.write(self.cell.id, ME) as entry:
                machines.machines_return(entry, down, "it answers again")

    def _stop_departed(self) -> None:
        left = Departure.objects.filter(machine__cell=self.cell).values_list("task_id", "incarnation")
        stopped = {"cause": "stopped", "at": self.clock.now().timestamp(), "signal": 15, "notice": "full"}
        for part in _chunks([(identity, incarnation, stopped) for identity, incarnation in left]):
            with journal.write(self.cell.id, ME) as entry:
                departures.tasks_gone(entry, part)

    def _evict(self, rng: np.random.Generator) -> None:
        """Let some machines fail, and some tasks crash so often that they have to move."""
        up = np.array(Machine.objects.filter(cell=self.cell, state="up").order_by("id").values_list("id", flat=True))
        failing = rng.choice(up, size=rng.poisson(len(up) * FAILING / self.steps), replace=False).tolist()
        machines.machines_down(principal=ME, cell_id=self.cell.id, machine_ids=failing, reason="silent")
        lost = Task.objects.filter(machine__in=failing).values_list("id", "incarnation")
        cause = EvictionCause.MACHINE_FAILURE.value
        evicted = [Eviction(identity, number, cause, gone=True) for identity, number in lost]
        leaving = {eviction.task_id for eviction in evicted}
        crashed = {"cause": "exited", "at": self.clock.now().timestamp(), "status": 139}
        evicted += [
            Eviction(identity, number, EvictionCause.FAILURE.value, gone=True, avoid=True, exit=crashed)
            for identity, number in self._fresh
            if rng.random() < CRASHING and identity not in leaving
        ]
        for part in _chunks(evicted):
            with journal.write(self.cell.id, ME) as entry:
                transitions.tasks_evict(entry, part)

    def _submit(self, rng: np.random.Generator) -> None:
        files = work.batch_jobs(rng, self._batch_number, self.batch_per_step)
        self._batch_number += len(files)
        named = set(
            Job.objects.filter(cell=self.cell, name__startswith="web")
            .exclude(state="dead")
            .values_list("name", flat=True)
        )
        files += [
            work.service_job(number, self._release) for number in range(self.services) if f"web{number}" not in named
        ]
        done = jobs_submit_bulk(principal=ME, cell=self.cell, files=files)
        refused = [one.problem for one in done if one.problem is not None and one.problem.code != "job-exists"]
        if refused:
            raise RuntimeError(str(refused[0]))
        self.submitted += sum(one.outcome == "submitted" for one in done)

    def _change_services(self, rng: np.random.Generator) -> None:
        """Kill some services, which come again in the next step, and update others."""
        updates.updates_advance(self.cell.id)
        replaced = rng.binomial(self.services, REPLACED / self.steps)
        changed = rng.binomial(self.services, CHANGED / self.steps)
        numbers = rng.choice(self.services, size=min(replaced + changed, self.services), replace=False).tolist()
        names = [f"web{number}" for number in numbers]
        live = Job.objects.filter(cell=self.cell, name__in=names, state="running").select_related("cell", "tenant")
        for job in live.order_by("id"):
            if job.name in names[:replaced]:
                job_kill(principal=ME, job=job)
            else:
                self._release += 1
                file = work.service_job(int(job.name[3:]), self._release)
                spec = spec_for(principal=ME, cell=self.cell, file=file)
                updates.job_update(principal=ME, job=job, job_spec=spec)

    def _place(self) -> None:
        self._fresh = []
        while True:
            self._follow()
            now = self.clock.now().timestamp()
            plan = schedule_pass(
                self.state, self.policy, now=now, rng=np.random.default_rng(self.state.revision), memory=self.memory
            )
            if not plan.assignments:
                return
            self._own = commit(self.cell.id, plan, principal=system("scheduler")).records
            placed = [
                (task_id(record.event.job_id, record.event.index), record.event.incarnation, record.event.job_id)
                for records in self._own.values()
                for record in records
                if isinstance(record.event, events.TaskPlaced)
            ]
            self.starts += len(placed)
            self._report_up(placed)
            services = set(
                Job.objects.filter(pk__in={job for *_, job in placed}, priority=work.SERVICE).values_list(
                    "id", flat=True
                )
            )
            batch = [(identity, incarnation) for identity, incarnation, job in placed if job not in services]
            self._fresh += batch
            self._run(batch, [now] * len(batch))

    def _report_up(self, placed: Sequence[tuple[int, int, int]]) -> None:
        for part in _chunks(placed):
            with journal.write(self.cell.id, system("link")) as entry:
                reported_states.tasks_observe(
                    entry, [Observation(identity, number, "up", "unknown", up=True) for identity, number, _ in part]
                )

    def _measure(self, rng: np.random.Generator) -> None:
        """Write the usage of a sample of the tasks for the hours of this step."""
        self._follow()
        tasks = self.state.tasks
        slots = np.flatnonzero(tasks.state == RUNNING)
        machines = self.state.machines.id[tasks.machine[slots]]
        rows = np.column_stack([tasks.id[slots], tasks.incarnation[slots], machines])
        now, hours = int(self.clock.now().timestamp()), max(1, 24 // self.steps)
        for hour in range(now // 3600 - hours, now // 3600):
            chosen = rng.choice(rows, size=min(WINDOWS_PER_HOUR, len(rows)), replace=False).tolist()
            usage_windows.store([_window(self.cell.id, *row, hour * 3600, rng) for row in chosen])

    # --- the state in memory

    def _follow(self) -> None:
        while records := journal.tail(self.cell.id, after=self.state.revision, known=self._own):
            self.state.apply_all((r.event, r.revision, r.time.timestamp()) for r in records)
        self._own = {}

    def _run(self, tasks: Sequence[tuple[int, int]], since: Sequence[float]) -> None:
        if not tasks:
            return
        ids, incarnations = np.array(tasks, dtype=np.int64).T
        lengths, fails = work.runs(ids, incarnations)
        ends = (np.array(since) + lengths).tolist()
        for end, (identity, incarnation), failing in zip(ends, tasks, fails.tolist(), strict=True):
            heapq.heappush(self._ends, (end, identity, incarnation, failing))

    def _resume(self) -> None:
        """Find the ends of the batch tasks that run already, from an earlier run of the bench."""
        running = Task.objects.filter(cell=self.cell, state="running", job__priority=work.BATCH)
        rows = list(running.values_list("id", "incarnation", "since"))
        self._run([row[:2] for row in rows], [row[2].timestamp() for row in rows])

    def _restarts_per_day(self) -> int:
        """Return about how many tasks of services start per day."""
        return round(self.services * work.TASKS_OF_SERVICE * (CHANGED + REPLACED + FAILING))


def _window(cell_id: int, identity: int, incarnation: int, machine_id: int, start: int, rng: Any) -> TaskWindow:
    cpu = int(rng.integers(20, 300))
    window = UsageWindow(
        TaskKey("0" * 32, identity & 0xFFFFF, incarnation),
        start=start,
        span_s=300,
        samples=60,
        cpu_milli=cpu,
        most_cpu_milli=2 * cpu,
        random_cpu_milli=cpu,
        cpu_distribution=[cpu] * 11,
        cpu_tail=[cpu] * 9,
        ram_bytes=cpu << 20,
        most_ram_bytes=cpu << 20,
        limit_cpu_milli=400,
        limit_ram_bytes=2**29,
    )
    return TaskWindow(cell_id, machine_id, identity, window)


def _chunks(many: Sequence[Any]) -> list[Sequence[Any]]:
    return [many[first : first + journal.CHUNK] for first in range(0, len(many), journal.CHUNK)]
