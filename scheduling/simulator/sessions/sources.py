"""Where a simulation begins: a public trace, by name and folder.

Any other `CellState`, such as that of a checkpoint, becomes a simulation with `Simulation(state, workload)`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from scheduling.core.cell.state import CellState
from scheduling.core.garbage import collection_paused
from scheduling.core.vocabulary import events
from scheduling.simulator.simulation import Settings, Simulation
from scheduling.simulator.traces import cell_2011, google2011, openb

SOURCES = {
    "google2011": "machines and jobs of Google's cell over 29 days in May 2011; the cell is empty at first",
    "google2011-cell": "Google's cell of May 2011 at one moment, with all its tasks (12,260 machines)",
    "google2011-fifth": "a fifth of Google's cell of May 2011 at one moment, with all its tasks (2,452 machines)",
    "openb": "machines and pods of Alibaba's GPU cell of 2023",
}
"""The names of sources, and what they contain."""


def open_source(name: str, folder: Path, *, settings: Settings | None = None, seed: int = 2011) -> Simulation:
    """Return a new simulation of a trace. `folder`: contains the files of the trace. Raises `ValueError` for an unknown
    name, and `FileNotFoundError` if a file is missing.
    """
    if name == "google2011":
        machines, workload = google2011.month(folder, seed=seed)
        beginning: Iterable[events.Event] = machines
    elif name in ("google2011-cell", "google2011-fifth"):
        beginning, workload = cell_2011.moment(folder, clones=5 if name == "google2011-cell" else 1, seed=seed)
    elif name == "openb":
        beginning, workload = openb.trace(folder, seed=seed)
    else:
        raise ValueError(f"source {name!r} is unknown; the sources are {', '.join(SOURCES)}")
    with collection_paused():
        state = CellState()
        state.apply_all((event, number, 0.0) for number, event in enumerate(beginning, start=1))
    return Simulation(state, workload, settings, seed=seed)
