"""Figure 4: how small a cell can become by compaction, in per cent of its original size."""

from __future__ import annotations

from scheduling.simulator.experiments.experiment import (
    Case,
    Experiment,
    ExperimentInput,
    Figures,
    Results,
    Row,
    result_of,
)
from scheduling.simulator.experiments.packing.compaction import compact

WHOLE = "whole"


def whole(given: ExperimentInput, seed: int) -> Figures:
    """Return the fewest machines on which all work of the cell fits. Other experiments compare their results with this
    number.
    """
    found = compact(given.work, given.packing(), seed=seed)
    return {"machines": found.machines, "clones": found.clones, "original": len(given.work.machines)}


CASES: dict[str, Case] = {WHOLE: whole}


def _rows(results: Results) -> list[Row]:
    sizes = [100 * one["machines"] / one["original"] for one in results[WHOLE]]
    return [result_of("compacted cell", "% of the original", sizes)]


EXPERIMENT = Experiment(
    name="compaction",
    figure=4,
    title="The effects of compaction",
    paper="A curve of 15 cells. The text says only that production leaves significant headroom for growth, spikes and"
    " failures.",
    differs="One cell instead of 15. The trace of 2011 has no usage at one moment, so usage is generated at random"
    " from the mean shares of the trace of 2019.",
    cases=(WHOLE,),
    rows=_rows,
)
