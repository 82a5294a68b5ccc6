"""`growth`: how CPU times grow with the size and the age of a cell, as exponents.

Three cells are measured, with the kind of rows of `tests.bench.full_cell`: 1,000 machines and 50,000 events; the same
cell with 200,000 events; 4,000 machines and 200,000 events. Each machine has 15 tasks. An older cell also has more
ended jobs.

The value of a case is log(figure / figure of the smaller cell) / log(size / smaller size): 0 if the figure does not
grow, 1 if it grows linearly. `small` and `large` are the two figures: CPU milliseconds of the processes that did the
work. `wall_ms` has the elapsed times, which depend more on other users of the machine. `of` has the two sizes
(machines) or ages (events). `wanted` is the largest exponent that is expected. A fixed cost, for example of a request,
makes an exponent smaller, so compare `small` and `large` too.

Cases, each as `…-size-exponent` and as `…-age-exponent`:

    pages, lists, whole       GET of pages, of REST endpoints, and of endpoints that return all tasks. The value is
                              that of the path that grows most, among paths of 5 ms or more. `steepest` lists five
                              paths, and `sum` is the sum over all paths
    commit-single             one small job, from the request until it is placed
    commit-2000               one job of 2,000 tasks, from the request until all are placed
    validate                  `manage.py validate --whole-journal`, without the start of its process
    validate-checkpoint       `manage.py validate` right after a checkpoint, without the start of its process
    load                      loading the master's state from the rows
    restart                   CPU of a new master, from SIGKILL of the old one until the next job is placed
    backup                    `make backup` of the running installation
    pass-loaded, pass-unchanged   the cases of `tests.bench.pass_`, in memory, with 2,500 and 10,000 machines. The age
                              is the number of events since the cell was loaded. There is no `wall_ms`

The ages do not include data outside the journal that grows over months: invoices, metered hours, notices.

    BENCH_CASES=pass,pages      run only cases whose name begins with one of these
"""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from portal.up import backup
from portal.up.home import Home
from tests.bench import api, commit, full_cell, http_load
from tests.bench.commit import TENANT
from tests.bench.installation import Installation, installation
from tests.bench.pass_ import FINISHING, REFILL_EVERY, LoadedCell
from tests.bench.wanted import wanted

# (machines, events, ended jobs). The second is the first cell at a later time.
SMALL, AGED, LARGE = (1_000, 50_000, 1_000), (1_000, 200_000, 4_000), (4_000, 200_000, 4_000)
TASKS_PER_MACHINE, JOBS_PER_MACHINE, TASKS_OF_ENDED = 15, 1, 5
PASS_SMALL, PASS_LARGE = 2_500, 10_000
PASS_AGES = (50_000, 200_000)
SAMPLES, WARM_UP, SINGLES, COMMITTED, REPEATS, PASSES = 12, 2, 30, 2_000, 3, 20
# A figure below this is mostly noise and fixed costs.
LEAST_MS = 5.0
ROOT = Path(__file__).parents[2]
# Endpoints whose answers list every task of the cell or of a tenant. All cells have equally many tenants.
WHOLE = [path for path in api.ENDPOINTS if "/feeds/" in path or path == "/bns/{cell}"]
# The schema does not depend on the cell, and each web process makes it at its first request.
LISTS = [path for path in api.ENDPOINTS if path not in (*WHOLE, "/api/v1/schema/")]
# The largest expected exponents by size and by age. Pages, passes and commits should not grow.
WANTED = {
    "pages": (0.3, 0.3),
    "lists": (0.3, 0.3),
    "whole": (1.1, 0.3),
    "commit-single": (0.3, 0.3),
    "commit-2000": (0.3, 0.3),
    "validate": (1.1, 1.1),
    "validate-checkpoint": (1.1, 0.2),
    "load": (1.1, 0.3),
    "restart": (1.1, 0.3),
    "backup": (1.1, 1.1),
    "pass-loaded": (0.3, 0.3),
    "pass-unchanged": (0.3, 0.3),
}
CASES = [f"{name}-{by}-exponent" for name in WANTED for by in ("size", "age")]


@dataclass(frozen=True)
class Figure:
    cpu_ms: float
    wall_ms: float


# The figures of the smaller and the larger cell.
Pair = tuple[Figure, Figure]


@dataclass(frozen=True)
class Measured:
    """The response times of a cell with a journal of `events` events.

    `figures`: by case of the benchmark. `paths`: by case and URL path, for the cases `pages`, `lists` and `whole`,
    which request many URLs.
    """

    machines: int
    events: int
    figures: dict[str, Figure]
    paths: dict[str, dict[str, Figure]]


def measure() -> Iterator[dict[str, Any]]:
    cases = wanted(CASES)
    if any(case.startswith("pass-") for case in cases):
        small, aged = passes(PASS_SMALL, PASS_AGES)
        (large,) = passes(PASS_LARGE, PASS_AGES[-1:])
        yield from _results(small, aged, large, cases)
    if any(not case.startswith("pass-") for case in cases):
        small, aged = _in_a_process([SMALL, AGED])
        (large,) = _in_a_process([LARGE])
        yield from _results(small, aged, large, cases)


def exponent(small: float, large: float, ratio: float) -> float:
    """Return x such that large / small = ratio ** x. NaN if a figure is zero."""
    return round(math.log(large / small) / math.log(ratio), 2) if small > 0 and large > 0 else math.nan


def _results(small: Measured, aged: Measured, large: Measured, cases: Sequence[str]) -> Iterator[dict[str, Any]]:
    load = round(os.getloadavg()[0], 1)
    for by, before, after in (("size", aged, large), ("age", small, aged)):
        of = (before.machines, after.machines) if by == "size" else (before.events, after.events)
        ratio = of[1] / of[0]
        grown: dict[str, tuple[Pair, dict[str, Any]]] = {
            name: ((before.figures[name], after.figures[name]), {}) for name in before.figures
        }
        for name, paths in before.paths.items():
            grown[name] = steepest({path: (figure, after.paths[name][path]) for path, figure in paths.items()}, ratio)
        for name, ((first, second), more) in grown.items():
            if (case := f"{name}-{by}-exponent") in cases:
                yield {
                    "case": case,
                    "value": exponent(first.cpu_ms, second.cpu_ms, ratio),
                    "unit": "",
                    "better": "lower",
                    "small": round(first.cpu_ms, 2),
                    "large": round(second.cpu_ms, 2),
                    **({"wall_ms": [round(first.wall_ms, 2), round(second.wall_ms, 2)]} if first.wall_ms else {}),
                    "of": list(of),
                    "wanted": WANTED[name][by == "age"],
                    **more,
                    "load": load,
                }


def steepest(paths: dict[str, Pair], ratio: float) -> tuple[Pair, dict[str, Any]]:
    """Return the two figures of the path that grows most, and further fields of the result: sums and the five
    steepest."""
    noticeable = {path: pair for path, pair in paths.items() if pair[1].cpu_ms >= LEAST_MS} or paths
    grown = {path: exponent(a.cpu_ms, b.cpu_ms, ratio) for path, (a, b) in noticeable.items()}
    order = sorted(grown, key=lambda path: -grown[path])
    first, second = (sum(pair[side].cpu_ms for pair in paths.values()) for side in (0, 1))
    more = {
        "path": order[0],
        "sum": [round(first, 1), round(second, 1)],
        "sum_exponent": exponent(first, second, ratio),
        "steepest": {path: [grown[path], *(round(figure.cpu_ms, 1) for figure in paths[path])] for path in order[:5]},
    }
    return paths[order[0]], more


# -- passes


def passes(machines: int, ages: Sequence[int]) -> Iterator[Measured]:
    """Measure scheduling passes over one loaded cell, each time it reaches one of the `ages` (events since loading)."""
    cell = LoadedCell(machines, clock=time.process_time)
    loaded_at, rounds = cell.state.revision, 0
    for age in ages:
        while cell.state.revision - loaded_at < age - PASSES * FINISHING:
            _round(cell, rounds)
            rounds += 1
        taken = []
        for _ in range(PASSES):
            taken.append(_round(cell, rounds))
            rounds += 1
        events = cell.state.revision - loaded_at
        quiet = [cell.plan()[0] for _ in range(PASSES + 1)][1:]
        figures = {
            "pass-loaded": Figure(1000 * statistics.median(taken), 0.0),
            "pass-unchanged": Figure(1000 * statistics.median(quiet), 0.0),
        }
        yield Measured(machines, events, figures, {})


def _round(cell: LoadedCell, number: int) -> float:
    """Run one round of `LoadedCell`, and return the CPU seconds of its scheduling pass."""
    if number % REFILL_EVERY == 0:
        cell.refill()
    return cell.round()[0]


# -- an installation, in a process of its own because Django has one database per process


def _in_a_process(cells: Sequence[tuple[int, int, int]]) -> list[Measured]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.growth", json.dumps(cells)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return [
        Measured(
            one["machines"],
            one["events"],
            {name: Figure(**figure) for name, figure in one["figures"].items()},
            {name: {path: Figure(**figure) for path, figure in paths.items()} for name, paths in one["paths"].items()},
        )
        for one in map(json.loads, done.stdout.splitlines())
    ]


def measure_cells(cells: Sequence[tuple[int, int, int]]) -> Iterator[Measured]:
    """Measure one installation at several ages. Each of `cells` is (machines, events, ended jobs), with equal
    machines."""
    machines, jobs = cells[0][0], cells[0][0] * JOBS_PER_MACHINE
    with installation() as where:
        rows = commit.Bench(where, machines=machines)
        rows.clear()
        ended = restarts = 0
        client = None
        for _, age, ended_jobs in cells:
            _end_jobs(rows, ended_jobs - ended)
            ended = ended_jobs
            if client is None:
                full_cell.submit_jobs(rows, jobs, machines * TASKS_PER_MACHINE)
            restarts = full_cell.fill_journal(rows, age, restarts=restarts)
            full_cell.vacuum()
            if client is None:
                full_cell.create_users(where)
                client = api.Bench(where, machines=machines, jobs=jobs)
            yield Point(where, rows, client).measured()


def _end_jobs(rows: commit.Bench, number: int) -> None:
    """Submit `number` small jobs, wait until they are placed, and end them."""
    spec = rows.spec(TASKS_OF_ENDED, priority=100)
    for first in range(0, number, full_cell.BULK):
        files = [spec() for _ in range(min(full_cell.BULK, number - first))]
        rows.client.post(f"/api/v1/cells/{rows.cell}/jobs:bulk", files)
    rows.wait_for_placed(within_s=300.0)
    rows.clear(job__tenant__name=TENANT)


class Point:
    """The measurements of one cell at one age."""

    def __init__(self, where: Installation, rows: commit.Bench, client: api.Bench) -> None:
        self.where, self.rows, self.client = where, rows, client

    def measured(self) -> Measured:
        from scheduling.models import Event

        events = Event.objects.count()
        paths = {
            "pages": self._paths(api.PAGES, self.client.by_session),
            "lists": self._paths(LISTS, self.client.by_token),
            "whole": self._paths(WHOLE, self.client.by_token),
        }
        figures = {
            "commit-single": self._singles(),
            "commit-2000": self._large_job(),
            "validate": self._fastest(self._validate),
            "validate-checkpoint": self._after_checkpoint(),
            "load": self._fastest(self._load),
            "restart": self._restart(),
            "backup": self._fastest(self._backup),
        }
        return Measured(self.client.machines, events, figures, paths)

    def _paths(
        self, patterns: Sequence[str], make: Callable[[str, dict[str, str]], http_load.Request]
    ) -> dict[str, Figure]:
        """Return the CPU and elapsed time per request of each path. The paths name jobs of usual size. Raises
        `RuntimeError` if an answer is not 200.
        """
        found = {}
        for pattern in patterns:
            paths = iter([self._path(pattern, number) for number in range(WARM_UP + SAMPLES)])

            def ask(number: int, paths: Iterator[str] = paths) -> list[float]:
                answers, _ = http_load.run(
                    lambda c: http_load.by_clients(c, 1, number, lambda: make(next(paths), self.client.sre)),
                    "127.0.0.1",
                    self.where.port,
                )
                if wrong := [answer for answer in answers if answer.status != 200]:
                    raise RuntimeError(f"{wrong[0].path} was answered with {wrong[0].status}")
                return sorted(answer.seconds for answer in answers)

            ask(WARM_UP)
            before = self._served()
            seconds = ask(SAMPLES)
            cpu_s = _since(before, self._served())
            found[pattern] = Figure(1000 * cpu_s / SAMPLES, 1000 * seconds[SAMPLES // 4])
        return found

    def _path(self, pattern: str, number: int) -> str:
        job, tenant = self._usual_jobs()[number]
        return pattern.format(cell=self.rows.cell, tenant=tenant, job=job, machine=f"bench{number}")

    def _usual_jobs(self) -> list[tuple[str, str]]:
        """Return (name, tenant) of all jobs, those first whose number of tasks is closest to the mean."""
        if not hasattr(self, "_usual"):
            from scheduling.models import Job

            jobs = Job.objects.exclude(state="dead").exclude(tenant__name=TENANT).order_by("id")
            rows = list(jobs.values_list("name", "tenant__name", "tasks_total"))
            mean = TASKS_PER_MACHINE / JOBS_PER_MACHINE
            self._usual = [(n, t) for n, t, _ in sorted(rows, key=lambda row: abs(row[2] - mean))]
        return self._usual

    def _singles(self) -> Figure:
        for _ in range(WARM_UP):
            self.rows.single()
        before = self._all()
        taken = [sum(self.rows.single()) for _ in range(SINGLES)]
        cpu_s = _since(before, self._all())
        self.rows.clear(job__tenant__name=TENANT)
        return Figure(1000 * cpu_s / SINGLES, 1000 * statistics.median(taken))

    def _large_job(self) -> Figure:
        def one() -> Figure:
            spec = self.rows.spec(COMMITTED, priority=200)()
            before, began = self._all(), time.monotonic()
            self.rows.client.post(self.rows.jobs, spec)
            self.rows.wait_for_placed(within_s=120.0)
            figure = Figure(1000 * _since(before, self._all()), 1000 * (time.monotonic() - began))
            self.rows.clear(job__tenant__name=TENANT)
            return figure

        return min((one() for _ in range(REPEATS)), key=lambda figure: figure.cpu_ms)

    def _fastest(self, work: Callable[[], None]) -> Figure:
        """Run `work` three times, and return the run with the least CPU.

        The CPU includes this process, its children and its database sessions.
        """

        def one() -> Figure:
            before, own, began = self._served(own=True), _own_cpu_s(), time.monotonic()
            work()
            cpu_s = _own_cpu_s() - own + _since(before, self._served(own=True))
            return Figure(1000 * cpu_s, 1000 * (time.monotonic() - began))

        return min((one() for _ in range(REPEATS)), key=lambda figure: figure.cpu_ms)

    def _validate(self) -> None:
        from scheduling.master.invariants import validate

        if problems := validate(self.rows.cell_id, parallel=True):
            raise RuntimeError(problems[0])

    def _after_checkpoint(self) -> Figure:
        """Return the time of `validate` right after a checkpoint, which production saves every hour."""
        from scheduling.history.checkpoints.rows import load_recorded
        from scheduling.history.checkpoints.saving import checkpoint_save
        from scheduling.history.checkpoints.state_at_moment import replay
        from scheduling.master.invariants import validate
        from scheduling.models import Cell

        checkpoint_save(Cell.objects.get(pk=self.rows.cell_id))
        revision = Cell.objects.get(pk=self.rows.cell_id).revision

        def work() -> None:
            problems = validate(self.rows.cell_id, load=load_recorded, replay=replay, after=revision, parallel=True)
            if problems:
                raise RuntimeError(problems[0])

        return self._fastest(work)

    def _load(self) -> None:
        from scheduling.master.snapshot import load_state

        load_state(self.rows.cell_id)

    def _backup(self) -> None:
        with tempfile.TemporaryDirectory(prefix="borg-bench-") as folder:
            Path(folder).chmod(0o711)
            backup.save(Home(self.where.home), Path(folder) / "backup.tar")

    def _restart(self) -> Figure:
        old = self._master()
        began = time.monotonic()
        os.kill(old, signal.SIGKILL)
        self.client.placed_within(120.0)
        wall_s = time.monotonic() - began
        return Figure(1000 * _cpu_s(self._master()), 1000 * wall_s)

    def _master(self) -> int:
        """Return the process id of the master that holds the lease."""
        from scheduling.models import Lease

        return int(Lease.objects.get(cell_id=self.rows.cell_id, scheduler="default").holder.split(":")[1])

    def _served(self, *, own: bool = False) -> dict[int, float]:
        """Return the CPU seconds so far of the web processes and of PostgreSQL's sessions, by pid.

        With `own`, return those of PostgreSQL's sessions only, including the session of this process.
        """
        found = {}
        for pid, command in self._commands():
            session = command.startswith("postgres: ") and "[local]" in command
            if session or (not own and "portal.web" in command):
                found[pid] = _cpu_s(pid)
        return found if own else _without(found, self._own_session())

    def _all(self) -> dict[int, float]:
        """Return the CPU seconds so far of all processes of the installation, by pid.

        The database session of this process is left out.
        """
        return _without({pid: _cpu_s(pid) for pid, _ in self._commands()}, self._own_session())

    def _commands(self) -> Iterator[tuple[int, str]]:
        for process in self.where.processes():
            try:
                yield process.pid, " ".join(process.cmdline())
            except psutil.NoSuchProcess:
                continue

    def _own_session(self) -> int:
        from django.db import connection

        connection.ensure_connection()
        return int(connection.connection.info.backend_pid)


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process so far, with nanosecond precision. Zero if the process has ended."""
    try:
        return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3)
    except OSError:
        return 0.0


def _own_cpu_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _since(before: dict[int, float], after: dict[int, float]) -> float:
    return sum(max(0.0, used - before.get(pid, 0.0)) for pid, used in after.items())


def _without(found: dict[int, float], pid: int) -> dict[int, float]:
    return {one: used for one, used in found.items() if one != pid}


if __name__ == "__main__":
    for point in measure_cells(json.loads(sys.argv[1])):
        print(json.dumps(asdict(point)), flush=True)
