"""Figure 5: prod and non-prod work in different cells."""

from __future__ import annotations

from scheduling.simulator.experiments.experiment import (
    Case,
    Experiment,
    ExperimentInput,
    Figures,
    Results,
    Row,
    additional,
)
from scheduling.simulator.experiments.packing.compaction import compact
from scheduling.simulator.experiments.procedures.compaction import WHOLE

SEGREGATED = "segregated"


def segregated(given: ExperimentInput, seed: int) -> Figures:
    """Return the fewest machines that prod work and non-prod work need if each gets a cell of its own. Both compactions
    begin with all machines of the original cell.
    """
    prod = compact(given.work.prod(), given.packing(), seed=seed)
    nonprod = compact(given.work.nonprod(), given.packing(), seed=seed)
    return {"machines": prod.machines + nonprod.machines, "prod": prod.machines, "nonprod": nonprod.machines}


CASES: dict[str, Case] = {SEGREGATED: segregated}


def _rows(results: Results) -> list[Row]:
    return [additional("two cells", results[SEGREGATED], results[WHOLE], paper_low=20, paper_high=30)]


EXPERIMENT = Experiment(
    name="segregation",
    figure=5,
    title="Prod and non-prod work in different cells",
    paper="20–30 % more machines in the median cell.",
    differs="The paper's range is for the median of 15 cells. In this cell, prod limits alone fill most of the"
    " compacted cell. Non-prod work runs mostly in reclaimed resources, so nearly all machines of a separate non-prod"
    " cell are additional.",
    cases=(WHOLE, SEGREGATED),
    rows=_rows,
)
