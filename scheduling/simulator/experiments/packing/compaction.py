"""Cell compaction (§5.1): the fewest machines on which a workload fits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from scheduling.simulator.experiments.packing.cell_work import CellWork
from scheduling.simulator.experiments.packing.shrinking import Packing, ShrinkingCell

STEPS = 1000
"""The original cell is divided into this number of steps. The result is exact to one step, 0.1 % of the cell."""

MOST_CLONES = 4


@dataclass(frozen=True)
class Compacted:
    """The result of a compaction. `machines`: the smallest number of machines on which the work fits. `clones`: how
    many copies of each machine the cell had before machines were removed.
    """

    machines: int
    clones: int


def compact(work: CellWork, packing: Packing, *, seed: int) -> Compacted:
    """Return the smallest number of machines on which the work fits. Machines are removed in the random order of
    `seed`. If the work does not fit on all machines of the cell, the cell first gets two or four copies of each
    machine.

    Raises `ValueError` if the work does not even fit on four times the machines.
    """
    clones = 1
    while clones <= MOST_CLONES:
        cell = ShrinkingCell(work, packing, seed=seed, clones=clones)
        size = len(work.machines)
        low = min(clones * STEPS, math.floor(STEPS * cell.fewest_by_sums() / size) - 1)

        def fits(step: int, cell: ShrinkingCell = cell, size: int = size) -> bool:
            return cell.fits(math.ceil(step * size / STEPS))

        if low < clones * STEPS and (step := smallest_step(fits, low, clones * STEPS)) is not None:
            return Compacted(math.ceil(step * size / STEPS), clones)
        clones *= 2
    raise ValueError(
        f"the {work.tasks} tasks do not fit, even with {MOST_CLONES} copies of each of the {len(work.machines)}"
        " machines of the cell; leave out the tasks that are too large for any machine"
    )


def smallest_step(fits: Callable[[int], bool], low: int, high: int) -> int | None:
    """Return the smallest integer above `low`, up to `high`, for which `fits` returns True. Return None if there is
    none. The search begins near `low`, with growing strides, because the result is usually near this lower bound.
    """
    stride, below = max(1, (high - low) // 20), low
    while True:
        step = min(high, below + stride)
        if fits(step):
            break
        if step == high:
            return None
        below, stride = step, 2 * stride
    above = step
    while above - below > 1:
        middle = (below + above) // 2
        if fits(middle):
            above = middle
        else:
            below = middle
    return above
