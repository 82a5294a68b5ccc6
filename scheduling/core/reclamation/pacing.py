"""Decides when a changed estimate of a task's usage becomes a change of its reservation (§5.5). Pure.

    UsageHistory.look ─► Reservations: which changes matter ─► ReservationPace.due ─► which of them are written now

Every written change is an event of the journal. Usage goes up and down all day, so writing each change that matters at
once would fill the journal. These rules combine several changes into one:

* The changes of a cell are written together, at most once per `TOGETHER_S`. The first change after a quiet time does
  not wait, and neither do changes of `MANY` tasks.
* A reservation below the usage is raised with the next changes. A machine that runs short meanwhile is found by its
  usage, not by its reservations.
* A reservation that covers the usage stays the same for at least `REST_S`. It is lowered when the capacity that it
  wasted since its last change reaches `WASTE_S` seconds of the limit: after 30 minutes if it is too large by 5 % of the
  limit, and after 5 minutes if it is too large by 30 %.
"""

from __future__ import annotations

import math

import numpy as np

from scheduling.core.cell.machines import grown
from scheduling.core.cell.tasks import TaskTable
from scheduling.core.reclamation.usage_history import KINDS, Reservations, Samples
from scheduling.core.vocabulary.kernel_arrays import Bools, Floats

TOGETHER_S = 15.0
MANY = 1_000
REST_S = 300.0
WASTE_S = 90.0


class ReservationPace:
    """Stores for how long the reservation of each task has stayed the same."""

    def __init__(self, slots: int = 256) -> None:
        kinds = len(KINDS)
        self._id = np.zeros(slots, dtype=np.int64)
        self._incarnation = np.zeros(slots, dtype=np.int32)
        self._reservation = np.zeros((slots, kinds), dtype=np.int64)
        self._rested_s = np.zeros(slots)
        self._waited_s = math.inf  # since changes were last written together

    def due(self, tasks: TaskTable, samples: Samples, found: Reservations, *, passed_s: float) -> Bools:
        """Return which of the N reservations in `found` should be written now, as booleans [N].

        `samples`: the newest usage samples. `found`: the reservations that `UsageHistory.look` computed from them.
        `passed_s`: seconds since the last call. Raises `ValueError` if `passed_s` is negative.
        """
        if passed_s < 0:
            raise ValueError(f"passed_s is {passed_s:g}; give a number of seconds that is not negative")
        rested_s = self.rest(tasks, found, passed_s)
        self._waited_s += passed_s
        slots, wanted = found.slots, found.wanted
        reservation = tasks.reservation[slots][:, : len(KINDS)]
        measured = (found.sample >= 0)[:, None]
        demand = np.where(measured, samples.demand[found.sample], 0) if len(samples.demand) else np.zeros_like(wanted)
        exceeded = ((demand > reservation) & (wanted > reservation)).any(axis=1)
        limit = tasks.shapes.limit[tasks.shape[slots]][:, : len(KINDS)]
        rested = rested_s >= REST_S
        # A reservation returns to the limit when reclamation is switched off.
        soon: Bools = found.raised & (exceeded | (wanted == limit).all(axis=1) | rested)
        soon |= found.lowered & rested & (found.gap * rested_s >= WASTE_S)
        number = int(soon.sum())
        if number >= MANY or (number and self._waited_s >= TOGETHER_S):
            self._waited_s = 0.0
            return soon
        return np.zeros_like(soon)

    def rest(self, tasks: TaskTable, found: Reservations, passed_s: float) -> Floats:
        """Return for how many seconds the reservation of each task in `found` has stayed the same."""
        if len(tasks.id) > len(self._id):
            for name in ("_id", "_incarnation", "_reservation", "_rested_s"):
                setattr(self, name, grown(getattr(self, name), len(tasks.id), 0))
        slots = found.slots
        reservation = tasks.reservation[slots][:, : len(KINDS)]
        new = (self._id[slots] != tasks.id[slots]) | (self._incarnation[slots] != tasks.incarnation[slots])
        changed = (self._reservation[slots] != reservation).any(axis=1)
        rested_s = np.where(changed, 0.0, self._rested_s[slots]) + passed_s
        # The estimate of a new incarnation begins at the limit, so its first decrease need not wait.
        rested_s[new] = REST_S
        self._id[slots], self._incarnation[slots] = tasks.id[slots], tasks.incarnation[slots]
        self._reservation[slots], self._rested_s[slots] = reservation, rested_s
        return rested_s
