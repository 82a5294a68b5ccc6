"""One run: start the cell, inject faults while clients work, measure, and check what is left."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.ha.cell import CELL, MASTERS, ROOT, TENANT, Cell, remove_control_groups
from tests.ha.checker import Lookup, Violation, check
from tests.ha.databases import check_patroni
from tests.ha.evidence import gather
from tests.ha.faults import FAULTS, SKEW_S
from tests.ha.history import Action, History, Outcome
from tests.ha.injecting import Injector
from tests.ha.lookups import ZONE, Lookups
from tests.ha.network import enter, network
from tests.ha.planning import kinds, planned
from tests.ha.plants import FSYNC_OFF, PLANTS
from tests.ha.report import summary
from tests.ha.services import Services, wait_until
from tests.ha.workload import Caller, Workload
from tests.ha.writing import Loop, cache_loop, database_loop, web_loop

CONTROL_HOSTS, CLIENTS = 3, 4
_FRONT, _CONTROL, _MACHINES = 5, 11, 101  # the first numbers of their addresses
_WARM_S, _REST_S, _QUIET_S = 10.0, 300.0, 20.0
_PLANT_REST_S = 60.0  # a cell without a protection may never come to rest


@dataclass
class Plan:
    """What to run. `faults`: names, in order. If `minutes` is not 0, they run again and again for this long, each time
    in another order, which `seed` gives. `plant`: the protection that the cell lacks (`tests.ha.plants`).
    """

    faults: Sequence[str]
    minutes: float = 0.0
    seed: int = 1
    machines: int = 6
    clients: int = CLIENTS
    plant: str = ""


@dataclass
class Run:
    """A cell under load. `rows`: one object per fault."""

    plan: Plan
    cell: Cell
    folder: Path
    history: History
    rows: list[dict[str, Any]] = field(default_factory=list)
    cuts: list[tuple[float, float]] = field(default_factory=list)
    lookups: list[Lookup] = field(default_factory=list)

    @contextmanager
    def under_load(self) -> Iterator[dict[str, Loop]]:
        """Let clients work and ask for names during the block. Yield the loops that write through PostgreSQL, Redis and
        web.
        """
        caller = Caller(self.cell.url, self.cell.token)
        loops = {
            "postgres": database_loop(self.cell.databases.url),
            "redis": cache_loop(self.cell.caches.url),
            "web": web_loop(caller, CELL, TENANT),
        }
        workload = Workload(
            self.cell.url,
            self.cell.token,
            self.history,
            self.cell.alive,
            clients=self.plan.clients,
            seed=self.plan.seed,
        )
        lookups = Lookups(
            [host.address for host in self.cell.control],
            self.history,
            domain=f"{TENANT}.{CELL}.{ZONE}",
            rng=random.Random(self.plan.seed),
        )
        self.lookups = lookups.found
        with ExitStack() as stack:
            for loop in loops.values():
                stack.enter_context(loop)
            stack.enter_context(workload)
            stack.enter_context(lookups)
            yield loops

    def faults(self) -> Iterator[dict[str, Any]]:
        """Inject the faults of the plan. Yield what each of them did."""
        with self.under_load() as loops:
            injector = Injector(self.cell, loops, self.plan.seed, cuts=self.cuts)
            time.sleep(_WARM_S)
            for row in injector.run(self.plan.faults, minutes=self.plan.minutes):
                self.rows.append(row)
                yield row

    def violations(self) -> list[Violation]:
        """Wait until the cell has come to rest, and return what the checker finds. Without that, return that it did not
        recover.
        """
        if problems := [row["problem"] for row in self.rows if not row["survived"]]:
            return [Violation("rest", problem) for problem in problems]
        found = []
        try:
            wait_until(self._rests, _PLANT_REST_S if self.plan.plant else _REST_S, "no task is pending", every_s=0.5)
        except TimeoutError as error:
            found = [Violation("rest", str(error))]
        time.sleep(_QUIET_S)
        os.environ.update(self.cell.env(self.cell.control[0]))
        import django

        django.setup()
        masters = {
            host.name: [self.folder / host.name / f"{master}.log" for master in MASTERS] for host in self.cell.control
        }
        wrong_clock = any(row["fault"] == "postgres-leader-skew" for row in self.rows)
        evidence = gather(
            CELL,
            self.history.requests,
            self.cell.alive,
            masters=masters,
            lookups=self.lookups,
            cuts=self.cuts,
            clock_error_s=SKEW_S if wrong_clock else 0.0,
        )
        return [*found, *check(evidence)]

    def counts(self) -> dict[str, dict[str, int]]:
        """Return how many requests of the clients had each outcome, by what they asked for."""
        found = Counter((request.action, request.outcome) for request in self.history.requests)
        return {action: {outcome: found[action, outcome] for outcome in Outcome} for action in Action}

    def _rests(self) -> bool:
        try:
            rows = self.cell.query(
                "SELECT count(*) FROM scheduling_task WHERE state = 'pending' OR (state = 'running' AND NOT up)"
            )
        except psycopg.Error:
            return False
        return rows == [(0,)]


@contextmanager
def started_hosts(machines: int, *, plant: str = "", tree: Path = ROOT) -> Iterator[Cell]:
    """Make three control hosts, `machines` machines and the front, and enter the front. Yield their cell, which is not
    started yet. All processes end with the block, and its folder is removed unless `HA_KEEP` is set. `tree`: the folder
    with the source of the programs that the cell starts.
    """
    check_patroni()
    folder = Path(tempfile.mkdtemp(prefix="borg-ha-"))
    folder.chmod(0o711)
    with ExitStack() as cleanup:
        if "HA_KEEP" not in os.environ:
            cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        cleanup.callback(remove_control_groups, folder)
        print(f"logs: {folder}", file=sys.stderr, flush=True)
        hosts = cleanup.enter_context(network())
        services = cleanup.enter_context(Services())
        control = [hosts.add(f"c{number + 1}", _CONTROL + number) for number in range(CONTROL_HOSTS)]
        plain = [hosts.add(f"m{number + 1}", _MACHINES + number) for number in range(machines)]
        front = hosts.add("front", _FRONT)
        enter(front)
        yield Cell(control, plain, front, services, folder, plant=plant, tree=tree)


def run(plan: Plan) -> Iterator[dict[str, Any]]:
    """Run a plan. Yield one object per fault, and at the end one with all numbers and the violations."""
    if unknown := [name for name in plan.faults if name not in FAULTS]:
        raise ValueError(f"FAULT={unknown[0]}: there is no such fault; choose from {', '.join(FAULTS)}")
    if plan.plant not in ("", FSYNC_OFF, *PLANTS):
        raise ValueError(f"PLANT={plan.plant}: choose from {', '.join([*PLANTS, FSYNC_OFF])}")
    with started_hosts(plan.machines, plant=plan.plant) as cell:
        began = time.monotonic()
        cell.start()
        expected = planned(plan.faults, minutes=plan.minutes, seed=plan.seed)
        yield {
            "started_s": round(time.monotonic() - began, 1),
            "seed": plan.seed,
            "machines": plan.machines,
            "plant": plan.plant,
            "planned": kinds([one.name for one in expected]),
        }
        one = Run(plan, cell, cell.folder, History(cell.folder / "history.jsonl"))
        faults_began = time.monotonic()
        yield from one.faults()
        minutes = round((time.monotonic() - faults_began) / 60, 1)
        yield {
            "minutes": minutes,
            **summary(one.rows),
            "requests": one.counts(),
            "lookups": len(one.lookups),
            "violations": [str(violation) for violation in one.violations()],
            "run_minutes": round((time.monotonic() - began) / 60, 1),
        }
