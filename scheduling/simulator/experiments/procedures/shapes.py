"""Figure 8: the sizes that tasks ask for."""

from __future__ import annotations

import numpy as np

from quota.vocabulary.resources import CPU, RAM
from scheduling.core.vocabulary.kernel_arrays import Floats
from scheduling.simulator.experiments.experiment import (
    Case,
    Experiment,
    ExperimentInput,
    Figures,
    LineChart,
    Results,
    Row,
    result_of,
)
from scheduling.simulator.experiments.packing.cell_work import CellWork

SHAPES = "shapes"
PERCENTS = (1, 5, *range(10, 100, 5), 99, 100)
_UNITS = {"prod CPU": "cores", "prod RAM": "GiB", "non-prod CPU": "cores", "non-prod RAM": "GiB"}


def _requests(work: CellWork, resource: int) -> Floats:
    """Return the amounts [N] that the N tasks ask for, in cores or GiB."""
    unit = 1000 if resource == CPU else 2**30
    groups = [group for job in work.jobs for group in job.groups]
    amounts = [group.requirement.limit[resource] / unit for group in groups]
    return np.repeat(np.array(amounts), [group.size for group in groups])


def shapes(given: ExperimentInput, seed: int) -> Figures:
    """Return percentiles of the requests, and the share of the tasks that ask for the most frequent amounts, in per
    cent. `seed` is not used.
    """
    figures: Figures = {}
    for name, work in (("prod", given.work.prod()), ("non-prod", given.work.nonprod())):
        for label, resource in (("CPU", CPU), ("RAM", RAM)):
            amounts = _requests(work, resource)
            if not len(amounts):
                continue
            for percent in PERCENTS:
                figures[f"{name} {label} p{percent}"] = float(np.percentile(amounts, percent))
    cpu, ram = _requests(given.work, CPU), _requests(given.work, RAM)
    for label, amounts in (("CPU", cpu), ("RAM", ram)):
        figures[f"most frequent {label}"] = 100 * float(np.unique(amounts, return_counts=True)[1].max() / len(amounts))
    whole = (cpu >= 1) & (cpu == np.round(cpu))
    figures["whole cores"] = 100 * float(whole.mean())
    varies = len(np.unique(cpu)) > 1 and len(np.unique(ram)) > 1
    figures["correlation"] = float(np.corrcoef(cpu, ram)[0, 1]) if varies else 0.0
    return figures


def _rows(results: Results) -> list[Row]:
    trials = results[SHAPES]
    rows = [
        result_of(f"{name}, median", unit, [one[f"{name} p50"] for one in trials])
        for name, unit in _UNITS.items()
        if f"{name} p50" in trials[0]
    ]
    for label in ("CPU", "RAM"):
        rows.append(
            result_of(f"most frequent {label} amount", "% of tasks", [one[f"most frequent {label}"] for one in trials])
        )
    rows.append(result_of("whole numbers of cores", "% of tasks", [one["whole cores"] for one in trials]))
    rows.append(result_of("correlation of CPU and RAM", "", [one["correlation"] for one in trials]))
    return rows


def _charts(results: Results) -> list[LineChart]:
    one = results[SHAPES][0]
    lines = {
        f"{name} ({unit})": tuple((max(one[f"{name} p{percent}"], 0.001), float(percent)) for percent in PERCENTS)
        for name, unit in _UNITS.items()
        if f"{name} p50" in one
    }
    return [LineChart("Requests of tasks", "cores or GiB", "% of tasks", lines, logarithmic=True)]


CASES: dict[str, Case] = {SHAPES: shapes}

EXPERIMENT = Experiment(
    name="shapes",
    figure=8,
    title="The sizes that tasks ask for",
    paper="No amount stands out, although a few whole numbers of cores are more popular; there are few correlations.",
    differs="The paper weighs the tasks of many cells. In one cell, the amounts of a few very large jobs stand out. The"
    " trace states amounts in parts of the largest machine, and 64 cores and 256 GiB are our assumption.",
    cases=(SHAPES,),
    rows=_rows,
    charts=_charts,
    once=True,
)
