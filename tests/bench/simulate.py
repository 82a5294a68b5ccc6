"""`simulate`: 29 days of Google's cell in the simulator. CPU seconds of one core.

All 672,074 jobs of the trace arrive in a cell of full size (12,477 machines, with their real failures and returns).
Each has one task, whose request is that of a task of the fifth with the same scheduling class, drawn with seed 2011.
Passes take place every 5 virtual seconds, so that half of the tasks wait about 2 s and nine tenths about 5 s, as in
the original. Reservations are estimated every five minutes, from usage in windows of five minutes as in the trace.

Cases: `google2011-29days`; `google2011-day-same-journal`: whether two runs of the first day have equal digests; and
`google2011-day-tasks-10`, `-100`: the first day with that many tasks per job. `BENCH_SMALL=1` shortens all to 0.1 days.
`wall_s`: seconds of the clock, which other processes of the machine make longer.
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
    """Simulate that many days. Return the CPU time and the wall time in seconds, and the simulation."""
    folder = Path(os.environ.get("BORG_DATA", "../shared/data")) / "google2011"
    machines, workload = google2011.month(folder, days=days, tasks_per_job=tasks_per_job)
    state = CellState()
    state.load(((machine, 0.0) for machine in machines), revision=len(machines))
    began, began_at = time.process_time(), time.monotonic()
    simulation = Simulation(state, workload, SETTINGS)
    simulation.run(days * DAY_S)
    return time.process_time() - began, time.monotonic() - began_at, simulation
