"""Find the effects of other settings: run a simulation with the present and with other settings, and compare both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduling.simulator.sessions.changes import change
from scheduling.simulator.sessions.session import compare
from scheduling.simulator.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Alternative:
    """A comparison of a cell with its present settings and with changed settings, after `hours` hours. `changes`: the
    changed settings and their values. `rows`: (name of a figure, its value with present settings, its value with
    changed settings).
    """

    hours: float
    changes: tuple[tuple[str, str], ...]
    rows: tuple[tuple[str, float, float], ...]


def what_if(simulation: Simulation, changes: Mapping[str, str], *, hours: float) -> Alternative:
    """Run two copies of the simulation for `hours`, and make the `changes` in one of them. Return the figures of both.
    Raises `ValueError` for a change that is wrong. `simulation` itself does not change.
    """
    if not 0 < hours <= 24 * 31:
        raise ValueError(f"hours is {hours:g}; give a number above 0, up to {24 * 31}")
    usual, changed = simulation.copy(), simulation.copy()
    for name, value in changes.items():
        change(changed, name, value)
    for one in (usual, changed):
        one.forget_figures()
        one.run(one.now + 3600 * hours)
    return Alternative(hours, tuple(changes.items()), tuple(compare(usual, changed)))
