"""Figure 7: several smaller cells instead of one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from scheduling.simulator.experiments.experiment import (
    Case,
    Experiment,
    ExperimentInput,
    Figures,
    Results,
    Row,
    additional,
)
from scheduling.simulator.experiments.packing.cell_work import CellWork
from scheduling.simulator.experiments.packing.compaction import compact
from scheduling.simulator.experiments.procedures.compaction import WHOLE

CELLS = (2, 5, 10)


def partitions(work: CellWork, number: int, seed: int) -> list[CellWork]:
    """Return the work in `number` parts. The jobs are permuted by `seed`, and each part gets every `number`-th job.
    Each part has all machines of the original cell (§5.1). Parts without jobs are left out.
    """
    order = np.random.default_rng(seed).permutation(len(work.jobs))
    parts = [tuple(work.jobs[at] for at in sorted(order[first::number].tolist())) for first in range(number)]
    return [replace(work, jobs=jobs) for jobs in parts if jobs]


def _split(number: int) -> Case:
    def split(given: ExperimentInput, seed: int) -> Figures:
        parts = partitions(given.work, number, seed)
        return {"machines": sum(compact(part, given.packing(), seed=seed).machines for part in parts)}

    return split


CASES: dict[str, Case] = {f"split-cells-{number}": _split(number) for number in CELLS}


def _rows(results: Results) -> list[Row]:
    return [
        additional(f"{number} cells", results[case], results[WHOLE]) for case, number in zip(CASES, CELLS, strict=True)
    ]


EXPERIMENT = Experiment(
    name="split-cells",
    figure=7,
    title="Several smaller cells instead of one",
    paper="A curve of 15 cells. The text says only that smaller cells need significantly more machines.",
    differs="One cell, a fifth of a usual one. A job with one task per machine needs hundreds of machines in its part"
    " of the cell, and more if a randomly generated constraint excludes machines. Such jobs decide the sizes of the"
    " parts.",
    cases=(WHOLE, *CASES),
    rows=_rows,
)
