"""The data types of experiments: the input, the experiment with its cases (what is simulated), and the summary, which
compares the results of trials with the paper's numbers.

ExperimentInput ─► case(input, seed) ─► Figures, one trial ─► rows of the summary ─► report
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

from scheduling.core.vocabulary.reclamation_presets import MEDIUM, OFF, Preset
from scheduling.simulator.behaviour import Drawn
from scheduling.simulator.experiments.packing.cell_work import CellWork
from scheduling.simulator.experiments.packing.reservations import settled_reservations
from scheduling.simulator.experiments.packing.shrinking import Packing
from scheduling.simulator.workload import Behaviour

USAGE = Drawn(spread_window=0.25)
"""The modelled usage: the CPU usage of a task varies by a quarter from one window of five minutes to the next."""

PERCENTILE = 90
"""The result of several trials is this percentile (§5.1)."""

Figures = dict[str, float]
"""The figures of one trial, by name."""

Curve = tuple[tuple[float, float], ...]
"""The points (x, y) of a line in a chart."""


@dataclass(eq=False)
class ExperimentInput:
    """A cell at one moment, and the behaviour of its tasks. `behaviour` gives the usage from which reservations are
    estimated. `source`: a sentence about the cell for the report.
    """

    work: CellWork
    behaviour: Behaviour = USAGE
    source: str = ""
    _packings: dict[str, Packing] = field(default_factory=dict)

    def packing(self, preset: Preset = MEDIUM) -> Packing:
        """Return the parameters with which work is packed onto machines, if every task reserves what reclamation with
        the setting `preset` estimates from its usage. The reservations are computed only once per preset.
        """
        if preset.name not in self._packings:
            reservations = None if preset is OFF else settled_reservations(self.work, preset, self.behaviour)
            self._packings[preset.name] = Packing(reservations=reservations)
        return self._packings[preset.name]

    def fingerprint(self) -> str:
        """Return 16 characters that differ between different inputs."""
        encoded = msgspec.json.encode((self.work.machines, self.work.jobs))
        return hashlib.sha256(encoded + repr(self.behaviour).encode()).hexdigest()[:16]


Case = Callable[[ExperimentInput, int], Figures]
"""A function that runs one trial with a seed."""

Results = Mapping[str, Sequence[Figures]]
"""The figures of all trials of each case, in the order of the seeds."""


@dataclass(frozen=True)
class Row:
    """A line of a summary: a number that several trials measured. `value`: the 90th percentile of the trials. `low`,
    `high`: their smallest and their largest value.

    `paper_low`, `paper_high`: the range that the paper's text gives, or None.
    """

    label: str
    unit: str
    value: float
    low: float
    high: float
    paper_low: float | None = None
    paper_high: float | None = None

    def verdict(self) -> str:
        """Return how the value compares with the paper's range, as a part of a sentence."""
        if self.paper_low is None or self.paper_high is None:
            return "the paper gives no number in its text"
        if self.value < self.paper_low:
            return f"below the paper's {_range(self.paper_low, self.paper_high)} {self.unit}"
        if self.value > self.paper_high:
            return f"above the paper's {_range(self.paper_low, self.paper_high)} {self.unit}"
        return f"within the paper's {_range(self.paper_low, self.paper_high)} {self.unit}"


@dataclass(frozen=True)
class LineChart:
    """A chart with lines. `lines`: the points of each line, by its name. `logarithmic`: whether the x axis is
    logarithmic.
    """

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Curve]
    logarithmic: bool = False


@dataclass(frozen=True)
class Experiment:
    """An experiment of the paper. `figure`: the number of its figure in the paper. `paper`: what the paper reports.
    `differs`: why our numbers may differ.

    `cases`: the names of the cases whose trials the experiment needs. `rows`: makes the summary from their results.
    `charts`: makes charts with lines from them. `once`: whether one trial is enough, as for Figures 8 and 12.
    """

    name: str
    figure: int
    title: str
    paper: str
    differs: str
    cases: tuple[str, ...]
    rows: Callable[[Results], list[Row]]
    charts: Callable[[Results], list[LineChart]] = lambda results: []
    once: bool = False


def result_of(
    label: str, unit: str, values: Sequence[float], *, paper_low: float | None = None, paper_high: float | None = None
) -> Row:
    """Return the line of a summary for the `values` of several trials. Raises `ValueError` if there are none."""
    if not len(values):
        raise ValueError(f"{label}: there are no trials; run the experiment first")
    value = float(np.percentile(np.array(values), PERCENTILE, method="higher"))
    return Row(label, unit, value, min(values), max(values), paper_low, paper_high)


def additional(
    label: str,
    trials: Sequence[Figures],
    whole: Sequence[Figures],
    *,
    name: str = "machines",
    paper_low: float | None = None,
    paper_high: float | None = None,
) -> Row:
    """Return the line of a summary that says how many more machines a case needs than the whole cell, in per cent
    (Figure 5). The 90th percentile of the trials in `whole`, which compact the whole cell, is 100 %. `trials`: the
    figures of the trials of the case. `name`: the key of the number of machines in `trials`.
    """
    base = result_of(label, "machines", [one["machines"] for one in whole]).value
    extra = [100 * (one[name] / base - 1) for one in trials]
    return result_of(label, "% more machines", extra, paper_low=paper_low, paper_high=paper_high)


def _range(low: float, high: float) -> str:
    return f"{low:g}–{high:g}"
