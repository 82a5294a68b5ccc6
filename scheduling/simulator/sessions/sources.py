"""The sources from which a simulation can begin: a checkpoint, a public trace, or a random cell.

Code that has another `CellState` can begin a simulation with `Simulation(state, workload)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from scheduling.core.cell.state import CellState
from scheduling.core.garbage import collection_paused
from scheduling.core.vocabulary import events
from scheduling.simulator.simulation import Settings, Simulation
from scheduling.simulator.traces import cell_2011, checkpoint, drawn, google2011, openb, week_2011
from scheduling.simulator.workload import Workload

CHECKPOINT, DRAWN = "checkpoint", "drawn"
TRACES = {
    DRAWN: "machines, services and batch jobs that are drawn from the seed; it needs no files",
    "google2011": "machines and jobs of Google's cell over 29 days in May 2011; the cell is empty at first",
    "google2011-cell": "Google's cell of May 2011 at one moment, with all its tasks (12,260 machines)",
    "google2011-fifth": "a fifth of Google's cell of May 2011 at one moment, with all its tasks (2,452 machines)",
    "google2011-week": "the same fifth, and every fifth job that arrived in the first week of the trace",
    "openb": "machines and pods of Alibaba's GPU cell of 2023",
}
"""The names of sources that begin with an empty cell or with pending tasks, and what they contain."""

SOURCES = {CHECKPOINT: "a file with the state of a cell, perhaps with what happened afterwards", **TRACES}
"""The names of all sources, and what they contain."""


def load_trace(name: str, data: Path | None, *, seed: int = 2011) -> tuple[list[events.Event], Workload]:
    """Return the machines and jobs with which a trace begins, and the workload that follows. `data`: the folder with
    the files of the trace. Raises `ValueError` for an unknown name or if the folder is not given, and
    `FileNotFoundError` if a file is missing.
    """
    if name not in TRACES:
        raise ValueError(f"source {name!r} is unknown; the sources are {', '.join(TRACES)}")
    if name == DRAWN:
        return drawn.drawn(seed=seed)
    if data is None:
        raise ValueError(
            f"source {name!r} needs a folder with the files of the trace; give the folder, as in `borgctl faux open"
            f" {name} FOLDER` or `manage.py record CELL --source {name} --data FOLDER`"
        )
    if name == "google2011":
        machines, workload = google2011.month(data, seed=seed)
        return list(machines), workload
    if name == "google2011-week":
        return week_2011.week(data, seed=seed)
    if name == "openb":
        beginning, workload = openb.trace(data, seed=seed)
        return list(beginning), workload
    return cell_2011.moment(data, clones=5 if name == "google2011-cell" else 1, seed=seed)


def open_source(name: str, data: Path | None, *, settings: Settings | None = None, seed: int = 2011) -> Simulation:
    """Return a new simulation of a checkpoint or a trace. `data`: the file of the checkpoint, or the folder with the
    files of the trace. Raises the errors of `load_trace`, and `CheckpointError` for a file that is not a checkpoint.
    """
    settings = settings or Settings()
    if name == CHECKPOINT:
        if data is None:
            raise ValueError("source 'checkpoint' needs a file; write checkpoint:FILE")
        found = checkpoint.load(data, seed=seed)
        return Simulation(found.state, found.workload, replace(settings, cell=found.cell), seed=seed)
    beginning, workload = load_trace(name, data, seed=seed)
    return Simulation(_state(beginning), workload, settings, seed=seed)


def _state(beginning: Iterable[events.Event]) -> CellState:
    with collection_paused():
        state = CellState()
        state.apply_all((event, number, 0.0) for number, event in enumerate(beginning, start=1))
    return state
