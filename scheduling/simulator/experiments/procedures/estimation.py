"""Figure 12: more and less aggressive estimation of resources, one after the other in one cell."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from quota.vocabulary.resources import CPU, RAM
from scheduling.core.cell.tasks import PENDING, RUNNING
from scheduling.core.vocabulary.kernel_arrays import Ints
from scheduling.core.vocabulary.states import EvictionCause
from scheduling.policy.cell_settings import CellSettings
from scheduling.simulator.experiments.experiment import (
    Case,
    Curve,
    Experiment,
    ExperimentInput,
    Figures,
    LineChart,
    Results,
    Row,
    result_of,
)
from scheduling.simulator.simulation import Settings, Simulation
from scheduling.simulator.workload import Behaviour, Ending, Workload

ESTIMATION = "estimation"
PERIODS = ("baseline", "aggressive", "medium", "baseline")
PERIOD_H = 12
"""Hours of each period. In the paper a period is a week."""

KEPT_MACHINES = 0.7
"""The share of the machines that the cell keeps, so that its non-prod work needs reclaimed resources."""

SETTLING_H = 2
"""The averages of a period leave out this number of hours at its beginning."""

_NAMES = {CPU: "CPU", RAM: "RAM"}
_OOM = EvictionCause.OUT_OF_RESOURCES.value


@dataclass(frozen=True)
class Endless:
    """Behaviour of tasks that never end by themselves. `usage`: another behaviour, from which their usage is taken."""

    usage: Behaviour

    def ending(self, task_id: int, incarnation: int, priority: int) -> Ending | None:
        return None

    def demand(self, task_id: Ints, limit: Ints, priority: Ints, now: float) -> Ints:
        return self.usage.demand(task_id, limit, priority, now)


def estimation(given: ExperimentInput, seed: int) -> Figures:
    """Return the figures of four simulated periods of twelve hours, each with other settings of reclamation, on 70 % of
    the cell's machines. `simulate_periods` describes the figures.
    """
    return simulate_periods(given, seed, kept=KEPT_MACHINES, period_h=PERIOD_H)


def simulate_periods(given: ExperimentInput, seed: int, *, kept: float, period_h: int) -> Figures:
    """Simulate four periods with different settings of reclamation, each of `period_h` hours, on the share `kept` of
    the machines. Return the figures of each hour, with names such as `CPU usage 007`: shares of the cell's capacity in
    per cent, the number of tasks that were evicted for lack of memory since the beginning, and the number of pending
    tasks.
    """
    order = np.random.default_rng(seed).permutation(len(given.work.machines))
    chosen = sorted(order[: math.ceil(kept * len(order))].tolist())
    work = replace(given.work, machines=tuple(given.work.machines[at] for at in chosen))
    behaviour = Endless(given.behaviour)
    settings = Settings(cell=CellSettings(reclamation=PERIODS[0]))
    simulation = Simulation(work.load(), Workload(behaviour), settings, seed=seed)
    figures: Figures = {}
    for period, preset in enumerate(PERIODS):
        simulation.set_settings(replace(settings, cell=msgspec.structs.replace(settings.cell, reclamation=preset)))
        for hour in range(period * period_h, (period + 1) * period_h):
            simulation.run((hour + 1) * 3600.0)
            figures |= {f"{name} {hour:03d}": value for name, value in _sample(simulation, behaviour).items()}
    return figures


def _sample(simulation: Simulation, behaviour: Behaviour) -> Figures:
    state = simulation.state
    tasks = state.tasks
    running = np.flatnonzero((tasks.state == RUNNING) & (tasks.machine >= 0))
    limit = tasks.shapes.limit[tasks.shape[running]]
    priority = tasks.job_priority[tasks.job[running]].astype(np.int64)
    usage = behaviour.demand(tasks.id[running], limit, priority, simulation.now)
    capacity = state.machines.capacity[list(state.machines.slot.values())].sum(axis=0)
    figures: Figures = {
        f"{name} {what}": 100 * float(amounts[:, resource].sum() / capacity[resource])
        for resource, name in _NAMES.items()
        for what, amounts in (("usage", usage), ("reservation", tasks.reservation[running]), ("limit", limit))
    }
    evictions = simulation.cell.keeper.figures.evictions
    figures["out of memory"] = float(evictions[_OOM, True] + evictions[_OOM, False])
    figures["pending"] = float((tasks.state == PENDING).sum())
    return figures


CASES: dict[str, Case] = {ESTIMATION: estimation}


def _rows(results: Results) -> list[Row]:
    trials = results[ESTIMATION]
    rows = []
    for period, preset in enumerate(PERIODS):
        hours = range(period * PERIOD_H + min(SETTLING_H, PERIOD_H - 1), (period + 1) * PERIOD_H)
        label = f"period {period + 1}, {preset}"
        for name in _NAMES.values():
            gaps = [_mean(one, f"{name} reservation", hours) - _mean(one, f"{name} usage", hours) for one in trials]
            rows.append(result_of(f"{label}: {name} reservation above usage", "% of capacity", gaps))
        rows.append(result_of(f"{label}: pending", "tasks", [_mean(one, "pending", hours) for one in trials]))
        kills = [_oom(one, (period + 1) * PERIOD_H) - _oom(one, period * PERIOD_H) for one in trials]
        rows.append(result_of(f"{label}: out of memory", "tasks", kills))
    return rows


def _mean(one: Figures, name: str, hours: range) -> float:
    return sum(one[f"{name} {hour:03d}"] for hour in hours) / len(hours)


def _oom(one: Figures, hours: int) -> float:
    return one[f"out of memory {hours - 1:03d}"] if hours else 0.0


def _charts(results: Results) -> list[LineChart]:
    one = results[ESTIMATION][0]

    def line(name: str) -> Curve:
        return tuple((float(hour), one[f"{name} {hour:03d}"]) for hour in range(len(PERIODS) * PERIOD_H))

    charts = [
        LineChart(
            f"{name}: limit, reservation and usage with seed 0 ({', '.join(PERIODS)})",
            "hours",
            "% of capacity",
            {what: line(f"{name} {what}") for what in ("limit", "reservation", "usage")},
        )
        for name in _NAMES.values()
    ]
    label = "tasks evicted for lack of memory"
    return [
        *charts,
        LineChart(
            "Evictions for lack of memory since the beginning, with seed 0",
            "hours",
            "tasks",
            {label: line("out of memory")},
        ),
    ]


EXPERIMENT = Experiment(
    name="estimation",
    figure=12,
    title="More and less aggressive estimation of resources",
    paper="Reservations are clearly closer to usage in the aggressive week, and somewhat less so in the medium one."
    " Out-of-memory events increase slightly in both.",
    differs="Each period lasts twelve hours instead of a week. The cell has 70 % of its machines, and its tasks never"
    " end. CPU is the scarce resource of this cell, and randomly generated memory usage varies little, so memory"
    " hardly runs out. A reservation is raised only when the usage exceeds it, so reservations that the aggressive"
    " period lowered stay low in the later periods.",
    cases=(ESTIMATION,),
    rows=_rows,
    charts=_charts,
)
