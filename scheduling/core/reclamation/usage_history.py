"""Reclamation: an estimate of the resources that running tasks will use, from their present usage (§5.5).

    usage, every few seconds ─► UsageHistory.look ─► Reservations: what each task's reservation should be
                                    (peaks, estimates)                and which changes matter

A task's reservation begins at its limit. After the task has been observed for 300 s, the reservation decreases slowly
to the peak of recent usage plus a safety margin. If the usage exceeds the reservation, the reservation is raised at
once. The reservation is never above the limit, even if a task uses more CPU than its limit, and never below a minimum.
Only CPU, RAM and disk are estimated: the use of ports and accelerators does not vary, and the other resources are not
measured.

How the feedback stays stable:

* CPU that a task could not use because it was throttled counts as demand. Otherwise a throttled task would seem to need
  little CPU, its reservation would be lowered, and it would be throttled even more.
* A missing sample changes nothing, because a task without a report may be busy.
* Every new incarnation has a new history, and so has an incarnation that this process sees for the first time. Its
  peaks are unknown, so it is observed for 300 s before its reservation is lowered.
* The target is the usage plus a margin. Changes of usage inside the margin have no effect, so noise does not change the
  reservation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quota.vocabulary.resources import CPU, DISK, RAM
from scheduling.core.cell.machines import grown
from scheduling.core.cell.tasks import RUNNING, TaskTable
from scheduling.core.kernels import reservations
from scheduling.core.vocabulary.kernel_arrays import (
    Bools,
    Estimates,
    Estimating,
    Floats,
    History,
    Ints,
    Ints32,
    Reserved,
)
from scheduling.core.vocabulary.reclamation_presets import OFF, Preset

# The reclaimable resources are the first of the axis.
KINDS = (CPU, RAM, DISK)
assert tuple(range(len(KINDS))) == KINDS
MIB = 2**20

SETTLE_S = 300.0
"""Usage during start-up does not predict later usage (§5.5)."""

STEP = 0.05
"""A change below this share of the limit is not written to the journal, unless the usage makes it necessary."""

LONGEST_S = 30.0
"""Longest time between two samples that is counted, in seconds: the usage in a longer gap is unknown."""

_WINDOW_S = (300.0, 1800.0, 1800.0)  # a peak is remembered for one to two of these
_FLOOR = (10.0, 16.0 * MIB, 16.0 * MIB)  # or the limit, if that is smaller
_UNIT = (1, MIB, MIB)


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Usage samples of S incarnations, at most one sample per incarnation. `demand` [S, K]: one row per incarnation,
    and one column for each of the K estimated resources: CPU, RAM and disk. CPU is in milli-cores and includes the CPU
    time that throttling denied. RAM and disk are in bytes.
    """

    task_id: Ints
    incarnation: Ints32
    demand: Ints

    @classmethod
    def none(cls) -> Samples:
        empty = np.zeros(0, dtype=np.int64)
        return cls(empty, empty.astype(np.int32), np.zeros((0, len(KINDS)), dtype=np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class Reservations:
    """The reservations that `UsageHistory.look` computes for N running tasks. They are valid until its next call.
    `slots` [N]: the slots of the tasks in the state.

    `wanted` [N, K]: the new reservations of the K estimated resources. `raised`, `lowered` [N]: whether a reservation
    should now be increased or decreased. `gap` [N]: (reservation − `wanted`) / limit, for the resource where this value
    is largest. `sample` [N]: the index of the task's sample, or -1 if it has none.
    """

    slots: Ints
    wanted: Ints
    raised: Bools
    lowered: Bools
    gap: Floats
    sample: Ints


class UsageHistory:
    """The usage history of a cell's tasks. Each array has one element or row per task slot of the `CellState`."""

    def __init__(self, slots: int = 256) -> None:
        kinds = len(KINDS)
        self._arrays = History(
            id=np.zeros(slots, dtype=np.int64),
            incarnation=np.zeros(slots, dtype=np.int32),
            shape=np.zeros(slots, dtype=np.int32),
            observed_s=np.zeros(slots),
            peak=np.zeros((slots, kinds)),
            before=np.zeros((slots, kinds)),
            estimate=np.zeros((slots, kinds)),
        )
        # Reused by every look, because allocating memory takes longer than writing to it.
        self._out = Estimates(
            wanted=np.zeros((slots, kinds), dtype=np.int64), verdict=np.zeros(slots, dtype=np.int8), gap=np.zeros(slots)
        )

    def follow(self, tasks: TaskTable) -> None:
        """Move the estimates of each task to its new slot, after the cell state was loaded again from the database.
        Estimates of tasks that no longer exist are deleted.
        """
        known = np.flatnonzero(self._arrays.incarnation > 0)
        slots = np.flatnonzero(tasks.state == RUNNING)
        found = np.empty(len(known), dtype=np.int64)
        ids, incarnations = self._arrays.id[known], self._arrays.incarnation[known]
        reservations.find(tasks.id, tasks.incarnation, slots, ids, incarnations, found)
        source, target = known[found >= 0], slots[found[found >= 0]]
        moved = UsageHistory(len(tasks.id))
        for name, old in self._arrays._asdict().items():
            getattr(moved._arrays, name)[target] = old[source]
        moved._arrays.shape[target] = tasks.shape[target]
        self._arrays, self._out = moved._arrays, moved._out

    def look(
        self,
        tasks: TaskTable,
        samples: Samples,
        preset: Preset,
        *,
        passed_s: float,
        times: int = 1,
        fixed_jobs: Bools | None = None,
    ) -> Reservations:
        """Process the samples that were measured since the last call, which was `passed_s` seconds ago. Return the
        new reservations.

        `tasks` is not changed. `times`: process the samples this many times, each time `passed_s` seconds later.
        `fixed_jobs` [J]: whether reclamation is switched off for the job in each slot. Raises `ValueError` if the
        arrays in `samples` differ in length, or if `passed_s` is negative.
        """
        number = len(samples.task_id)
        if len(samples.incarnation) != number or samples.demand.shape != (number, len(KINDS)):
            raise ValueError(
                f"the arrays for {number} samples have wrong shapes: the array `incarnation` must have the shape "
                f"[{number}], and the array `demand` the shape [{number}, {len(KINDS)}]"
            )
        if passed_s < 0:
            raise ValueError(f"passed_s is {passed_s:g}; give a number of seconds that is not negative")
        self._grow(len(tasks.id))
        slots = np.flatnonzero(tasks.state == RUNNING)
        found = np.empty(number, dtype=np.int64)
        reservations.find(tasks.id, tasks.incarnation, slots, samples.task_id, samples.incarnation, found)
        sample = np.full(len(slots), -1, dtype=np.int64)
        sample[found[found >= 0]] = np.flatnonzero(found >= 0)
        wanted, verdict, gap = self._out
        out = Estimates(wanted[: len(slots)], verdict[: len(slots)], gap[: len(slots)])
        reserved = Reserved(
            slots=slots,
            id=tasks.id,
            incarnation=tasks.incarnation,
            job=tasks.job,
            shape=tasks.shape,
            reservation=tasks.reservation,
            shape_limit=tasks.shapes.limit,
            job_fixed=fixed_jobs if fixed_jobs is not None else np.zeros(len(tasks.job_at), dtype=np.bool_),
        )
        how = _how(preset, min(passed_s, LONGEST_S))
        for _ in range(times):
            reservations.estimate(reserved, self._arrays, samples.demand, sample, how, out)
        return Reservations(
            slots=slots,
            wanted=out.wanted,
            raised=out.verdict == reservations.RAISED,
            lowered=out.verdict == reservations.LOWERED,
            gap=out.gap,
            sample=sample,
        )

    def _grow(self, slots: int) -> None:
        if slots > len(self._arrays.id):
            longer: dict[str, Any] = {n: grown(old, slots, 0) for n, old in self._arrays._asdict().items()}
            self._arrays, self._out = History(**longer), UsageHistory(slots)._out


def _how(preset: Preset, passed_s: float) -> Estimating:
    return Estimating(
        off=preset is OFF,
        passed_s=passed_s,
        settle_s=SETTLE_S,
        keep=0.5 ** (passed_s / preset.half_life_s),
        step=STEP,
        margin=np.array(preset.margin),
        floor=np.array(_FLOOR),
        turns_per_s=1 / np.array(_WINDOW_S),
        unit=np.array(_UNIT, dtype=np.int64),
        units=1 / np.array(_UNIT),
    )


def most_urgent(found: Reservations, *, at_most: int) -> NDArray[np.intp]:
    """Return the indexes of the tasks in `found` whose reservations change now: first the increases, then the largest
    decreases. The result has at most `at_most` indexes.

    The other changes are not lost: the next call of `look` computes them again. If two changes are equally large, the
    lower index comes first.
    """
    raised = np.flatnonzero(found.raised)[:at_most]
    lowered = np.flatnonzero(found.lowered)
    room = at_most - len(raised)
    if 0 < room < len(lowered):  # sort only the candidates
        least = np.partition(found.gap[lowered], len(lowered) - room)[len(lowered) - room]
        lowered = lowered[found.gap[lowered] >= least]
    lowered = lowered[np.argsort(-found.gap[lowered], kind="stable")[:room]]
    return np.concatenate([raised, lowered])
