"""`simulate`: CPU seconds of one core that the simulator needs for 29 days of Google's cell.

All 672,074 jobs of the trace of 2011 arrive in a cell of full size: 12,477 machines, with the failures and returns of
the trace. Each job has one task, with the request of a random task of the same scheduling class (seed 2011). A
scheduling pass runs every 5 virtual seconds, so that half of the tasks wait about 2 s and nine tenths at most about 5
s, as in the trace. Reservations are estimated every five minutes, because the trace has the usage of five minutes.

Cases: `google2011-29days`; `google2011-day-same-journal`: two runs of the first day must have equal digests of their
journals; `google2011-day-tasks-10`, `-100`: the first day with 10 or 100 tasks per job. `BENCH_SMALL=1` shortens all
cases to 0.1 days. `wall_s`: elapsed seconds, which depend on other users of the machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scheduling.core.cell.state import CellState
from scheduling.core.warm import compile_kernels
from scheduling.simulator.simulation import Settings, Simulation
from scheduling.simulator.traces import google2011
from tests.bench.wanted import wanted

DAY_S = 86_400.0
SETTINGS = Settings(pass_every_s=5.0, look_every_s=300.0)
TARGET_S = 600.0
MONTH, SAME, TENS, HUNDREDS = (
    "google2011-29days",
    "google2011-day-same-journal",
    "google2011-day-tasks-10",
    "google2011-day-tasks-100",
)


def measure() -> Iterator[dict[str, Any]]:
    small = os.environ.get("BENCH_SMALL") == "1"
    compile_kernels()
    for case in wanted((MONTH, SAME, TENS, HUNDREDS)):
        days = 0.1 if small else 29.1 if case == MONTH else 1.0
        if case == SAME:
            yield _same(days)
        else:
            tasks = {TENS: 10, HUNDREDS: 100}.get(case, 1)
            yield _result(case, days, tasks)


def _result(case: str, days: float, tasks_per_job: int) -> dict[str, Any]:
    took, wall_s, simulation = _run(days, tasks_per_job)
    figures = simulation.cell.keeper.figures
    problems = simulation.state.validate()
    return {
        "case": case,
        "value": round(took, 1),
        "unit": "s",
        "better": "lower",
        "wall_s": round(wall_s, 1),
        **({"target": TARGET_S} if case == MONTH else {}),
        "days": days,
        "tasks_per_job": tasks_per_job,
        "machines": len(simulation.state.machines),
        "events_per_s": round(figures.events / took),
        "digest": simulation.cell.journal.digest(),
        **figures.as_rows(),
        **({"failed": problems[:3]} if problems else {}),
    }


def _same(days: float) -> dict[str, Any]:
    digests = {_run(days, 1)[2].cell.journal.digest() for _ in range(2)}
    return {
        "case": SAME,
        "value": len(digests),
        "unit": "digests",
        "better": "lower",
        **({"failed": ["equal seeds gave different journals"]} if len(digests) > 1 else {}),
    }


def _run(days: float, tasks_per_job: int) -> tuple[float, float, Simulation]:
    """Simulate `days` days. Return the CPU seconds, the elapsed seconds, and the simulation."""
    folder = Path(os.environ.get("BORG_DATA", "../shared/data")) / "google2011"
    machines, workload = google2011.month(folder, days=days, tasks_per_job=tasks_per_job)
    state = CellState()
    state.load(((machine, 0.0) for machine in machines), revision=len(machines))
    began, began_at = time.process_time(), time.monotonic()
    simulation = Simulation(state, workload, SETTINGS)
    simulation.run(days * DAY_S)
    return time.process_time() - began, time.monotonic() - began_at, simulation
