"""Copies the state of a cell, so that events can be applied to the copy. Pure."""

from __future__ import annotations

import copy
from typing import Any

from scheduling.core.garbage import collection_paused
from scheduling.history.checkpoints.recorded import RecordedState


def copied(state: RecordedState) -> RecordedState:
    """Return an independent copy of a state. Both share the values that never change."""
    tasks, machines = state.tasks, state.machines
    shared: list[Any] = [*machines.facts.values(), *tasks.shapes.requirement, *tasks.shapes.known()]
    shared += [one for details in state.details.values() for one in (details.labels, details.published)]
    with collection_paused():
        return copy.deepcopy(state, {id(one): one for one in shared})
