"""One run: start the cell, inject faults while clients work, measure, and check what is left."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.ha.cell import CELL, TENANT, Cell, remove_control_groups
from tests.ha.checker import Lookup, Violation, check
from tests.ha.databases import check_patroni
from tests.ha.evidence import gather
from tests.ha.faults import FAULTS, inject
from tests.ha.history import History, Outcome
from tests.ha.lookups import ZONE, Lookups
from tests.ha.network import enter, network
from tests.ha.plants import FSYNC_OFF, PLANTS
from tests.ha.services import Services, wait_until
from tests.ha.workload import Caller, Workload
from tests.ha.writing import Loop, cache_loop, database_loop, max_gap_s, web_loop

CONTROL_HOSTS, CLIENTS = 3, 4
_FRONT, _CONTROL, _MACHINES = 5, 11, 101  # the first numbers of their addresses
_WARM_S, _COMPLETE_S, _REST_S, _QUIET_S = 10.0, 300.0, 300.0, 20.0


@dataclass
class Plan:
    """What to run. `faults`: names, in order. If `minutes` is not 0, they run again and again for so long, each time
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
    """A cell under load. `cuts`: when machines may have been unreachable, for the checker."""

    plan: Plan
    cell: Cell
    folder: Path
    rng: random.Random
    history: History
    cuts: list[tuple[float, float]] = field(default_factory=list)
    lookups: list[Lookup] = field(default_factory=list)

    def faults(self) -> Iterator[dict[str, Any]]:
        """Inject the faults of the plan, one after the other. Yield what each of them did."""
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
            time.sleep(_WARM_S)
            for name in self._names():
                yield self._one(name, loops)

    def violations(self) -> list[Violation]:
        """Wait until the cell has come to rest, and return what the checker finds."""
        wait_until(self._rests, _REST_S, "no task is pending")
        time.sleep(_QUIET_S)
        os.environ.update(self.cell.env(self.cell.control[0]))
        import django

        django.setup()
        masters = {host.name: self.folder / host.name / "master.log" for host in self.cell.control}
        evidence = gather(
            CELL, self.history.requests, self.cell.alive, masters=masters, lookups=self.lookups, cuts=self.cuts
        )
        return check(evidence)

    def counts(self) -> dict[str, int]:
        """Return how many requests of the clients had each outcome."""
        return {outcome.value: sum(one.outcome == outcome for one in self.history.requests) for outcome in Outcome}

    def _names(self) -> Iterator[str]:
        if not self.plan.minutes:
            yield from self.plan.faults
            return
        end = time.monotonic() + self.plan.minutes * 60
        while True:
            for name in self.rng.sample(self.plan.faults, len(self.plan.faults)):
                if time.monotonic() >= end:
                    return
                yield name

    def _one(self, name: str, loops: dict[str, Loop]) -> dict[str, Any]:
        began = time.time()
        fault = inject(name, self.cell, self.rng)
        try:
            time.sleep(fault.hold_s)
        finally:
            fault.end()
        self.cuts.append((began, time.time()))
        healed = wait_until(
            lambda: self.cell.complete() and all(loop.writes() for loop in loops.values()),
            _COMPLETE_S,
            f"the cell is complete again after {name}",
        )
        gaps = {what: round(loop.gap_s(fault.began), 1) for what, loop in loops.items()}
        gaps["placing"] = round(self._placing_gap_s(began), 1)
        return {
            "fault": name,
            "host": fault.service.host.name,
            "gap_s": gaps,
            "complete_s": round(healed, 1),
            "load": round(os.getloadavg()[0], 1),
        }

    def _placing_gap_s(self, since: float) -> float:
        """Return the longest pause between two placements, from the last before the time `since` until now."""
        rows = self.cell.query(
            "SELECT EXTRACT(epoch FROM time)::float FROM scheduling_event WHERE kind = 'task.placed' ORDER BY time"
        )
        return max_gap_s([at for (at,) in rows], since, time.time())

    def _rests(self) -> bool:
        rows = self.cell.query(
            "SELECT count(*) FROM scheduling_task WHERE state = 'pending' OR (state = 'running' AND NOT up)"
        )
        return rows == [(0,)]


def run(plan: Plan) -> Iterator[dict[str, Any]]:
    """Run a plan. Yield one object per fault, and at the end one with the violations."""
    if unknown := [name for name in plan.faults if name not in FAULTS]:
        raise ValueError(f"FAULT={unknown[0]}: there is no such fault; choose from {', '.join(FAULTS)}")
    if plan.plant not in ("", FSYNC_OFF, *PLANTS):
        raise ValueError(f"PLANT={plan.plant}: choose from {', '.join([*PLANTS, FSYNC_OFF])}")
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
        machines = [hosts.add(f"m{number + 1}", _MACHINES + number) for number in range(plan.machines)]
        front = hosts.add("front", _FRONT)
        enter(front)
        cell = Cell(control, machines, front, services, folder, plant=plan.plant)
        began = time.monotonic()
        cell.start()
        yield {"started_s": round(time.monotonic() - began, 1), "seed": plan.seed}
        one = Run(plan, cell, folder, random.Random(plan.seed), History(folder / "history.jsonl"))
        yield from one.faults()
        found = one.violations()
        yield {
            "requests": one.counts(),
            "lookups": len(one.lookups),
            "violations": [str(violation) for violation in found],
        }
