"""The machines of a simulation that do not report."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from scheduling.core.cell.state import CellState
from scheduling.core.vocabulary.kernel_arrays import Ints
from scheduling.policy.brake_rules import TOGETHER_S, Extent


@dataclass(slots=True)
class Outages:
    """The machines that have failed and have not returned. A machine is *down* once the master has noticed that it is
    silent.
    """

    _away: dict[int, int] = field(default_factory=dict)  # machine id -> number of its failure
    _down: dict[int, float] = field(default_factory=dict)  # machine id -> since when
    _number: int = 0

    def fails(self, machine_id: int) -> int:
        """Store that a machine has failed. Return the number of this failure, which `mark_down` takes."""
        self._number += 1
        self._away[machine_id] = self._number
        return self._number

    def returns(self, machine_id: int) -> bool | None:
        """Store that a machine has returned. Return whether it was down, or None if it had not failed."""
        if self._away.pop(machine_id, None) is None:
            return None
        return self._down.pop(machine_id, None) is not None

    def mark_down(self, machine_id: int, number: int, now: float) -> bool:
        """Store that the master has noticed the failure `number` of a machine. Return False if the machine has returned
        since then.
        """
        if self._away.get(machine_id) != number:
            return False
        self._down[machine_id] = now
        return True

    def is_away(self, machine_id: int) -> bool:
        return machine_id in self._away

    def any_away(self) -> bool:
        return bool(self._away)

    def away(self) -> Ints:
        """Return the ids of the machines that do not report."""
        return np.fromiter(self._away, dtype=np.int64, count=len(self._away))

    def down(self) -> list[int]:
        """Return the ids of the machines that are down."""
        return list(self._down)

    def extent(self, state: CellState, now: float) -> Extent:
        """Return how many machines, lost machines and running tasks the cell has. A machine that has failed is lost,
        even if the master has not noticed it yet. If the master noticed it long ago, the machine counts as lost only
        while it has tasks.
        """
        used = state.machines.tasks
        lost = sum(now - since < TOGETHER_S or used[state.machines.slot[one]] > 0 for one, since in self._down.items())
        late = len(self._away) - len(self._down)
        return Extent(len(state.machines), lost + late, state.running)
