"""Finds out what other settings would change: two copies of a simulation run, and their figures are compared. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduling.simulator.sessions.changes import change
from scheduling.simulator.sessions.session import compare
from scheduling.simulator.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Alternative:
    """The figures of a cell as it is and with changes, over `hours`. `rows`: (figure, as it is, with the changes)."""

    hours: float
    changes: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, float, float], ...]


def what_if(simulation: Simulation, changes: Mapping[str, str], *, hours: float) -> Alternative:
    """Run two copies of the simulation for `hours`, one of them with the changes. Raises `ValueError` for a change that
    is wrong. The question does not change `simulation`.
    """
    if not 0 < hours <= 24 * 31:
        raise ValueError(f"hours is {hours:g}; give a number from 0 (exclusive) to {24 * 31}")
    usual, changed = simulation.copy(), simulation.copy()
    for name, value in changes.items():
        change(changed, name, value)
    for one in (usual, changed):
        one.forget_figures()
        one.run(one.now + 3600 * hours)
    return Alternative(hours, tuple(changes.items()), tuple(compare(usual, changed)))
