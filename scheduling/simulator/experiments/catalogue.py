"""All experiments, in the order of the paper's figures, and all cases. A case is a function that computes the figures
of one trial, for example on a compacted cell.
"""

from __future__ import annotations

from scheduling.simulator.experiments.experiment import Case, Experiment
from scheduling.simulator.experiments.procedures import (
    buckets,
    compaction,
    estimation,
    reclamation,
    segregation,
    shapes,
    split_cells,
    split_users,
)

EXPERIMENTS: dict[str, Experiment] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (compaction, segregation, split_users, split_cells, shapes, buckets, reclamation, estimation)
}

CASES: dict[str, Case] = {
    name: case
    for module in (compaction, segregation, split_users, split_cells, shapes, buckets, reclamation, estimation)
    for name, case in module.CASES.items()
}
