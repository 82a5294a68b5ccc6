"""Figure 10: the machines that resource reclamation saves."""

from __future__ import annotations

from scheduling.core.vocabulary.reclamation_presets import OFF
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

NO_RECLAMATION = "no-reclamation"


def no_reclamation(given: ExperimentInput, seed: int) -> Figures:
    """Return the fewest machines on which the cell's work fits if no resources are reclaimed: each reservation equals
    the limit.
    """
    found = compact(given.work, given.packing(OFF), seed=seed)
    return {"machines": found.machines, "clones": found.clones}


CASES: dict[str, Case] = {NO_RECLAMATION: no_reclamation}


def _rows(results: Results) -> list[Row]:
    return [additional("without reclamation", results[NO_RECLAMATION], results[WHOLE])]


EXPERIMENT = Experiment(
    name="reclamation",
    figure=10,
    title="The machines that reclamation saves",
    paper="A curve of 15 cells. The text says that many more machines would be required, and that about 20 % of the"
    " workload runs in reclaimed resources in a median cell.",
    differs="Requests of this cell are more than its whole CPU, so it depends on reclamation more than a usual cell.",
    cases=(WHOLE, NO_RECLAMATION),
    rows=_rows,
)
