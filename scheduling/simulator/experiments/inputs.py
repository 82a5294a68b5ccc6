"""The sources of experiments: Google's trace of 2011, or a checkpoint of one's own cell."""

from __future__ import annotations

from pathlib import Path

from scheduling.core.vocabulary.reclamation_presets import PRESETS
from scheduling.history.checkpoints.file import read
from scheduling.history.checkpoints.tables import state_of
from scheduling.policy.cell_settings import CellSettings
from scheduling.simulator.experiments.experiment import ExperimentInput
from scheduling.simulator.experiments.packing.cell_work import CellWork
from scheduling.simulator.experiments.packing.checkpointed import ReservedUsage, running_work
from scheduling.simulator.experiments.packing.fifth_of_cell_2011 import running_fifth, soft_where_rare

_TRACE = "Google's published cluster trace ClusterData2011_2 (John Wilkes, Charles Reiss; CC-BY 4.0)"


def trace_input(folder: Path) -> ExperimentInput:
    """Return the sample of one fifth of Google's cell, with the tasks that run when the trace begins. `folder`:
    contains the files of the trace. Raises `FileNotFoundError` with the cure if a file is missing.
    """
    work = running_fifth(folder)
    return ExperimentInput(work, source=_described(work, _TRACE))


def checkpoint_input(path: Path) -> ExperimentInput:
    """Return the cell of a checkpoint: the machines that are up, and the tasks that run. Constraints that few machines
    satisfy are soft, as in the paper (§5.1). Usage is the reservation without its usual safety margin.

    Raises `ValueError` if the file is not a readable checkpoint or if no task runs in the cell, and `OSError` if the
    file cannot be opened.
    """
    with path.open("rb") as file:
        header, tables = read(file)
    state = state_of(tables, extra_resources=header.extra_resources, revision=header.revision)
    work = soft_where_rare(running_work(state))
    if not work.machines or not work.jobs:
        raise ValueError(
            f"{path}: no task runs on a machine that is up; give the checkpoint of a cell with running tasks"
        )
    usage = ReservedUsage.of(state, PRESETS[CellSettings().reclamation])
    source = f"a checkpoint of cell {header.cell} at revision {header.revision} ({header.taken:%Y-%m-%d %H:%M} UTC)"
    return ExperimentInput(work, usage, source=_described(work, source))


def _described(work: CellWork, source: str) -> str:
    return f"The cell: {len(work.machines):,} machines, {len(work.jobs):,} jobs, {work.tasks:,} tasks, from {source}."
