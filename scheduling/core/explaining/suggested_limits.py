"""Suggests limits for tasks (§2.6). Tasks with these limits fill machines completely, so they are more likely to be
placed.

For example, if each task asks for just over half a machine, nearly half of each machine stays unused.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quota.vocabulary.resources import PORTS
from scheduling.core.vocabulary.kernel_arrays import Ints
from scheduling.core.vocabulary.reasons import Conforming, Shape

# More tasks than this on a machine, and the size of one of them matters little.
MOST_PER_MACHINE = 64


class Platforms(NamedTuple):
    """The kinds of machines. Machines of one kind have equal capacities. `capacity` [P, R]: the capacity of each of the
    P kinds. `of` [N]: the kind of each of the N machines. `number` [P]: how many machines each kind has.
    """

    capacity: Ints  # [P, R]
    of: NDArray[np.intp]  # [N] -> kind
    number: Ints  # [P] machines of each kind


def platforms_of(capacity: Ints) -> Platforms:
    """Return the kinds of machines, sorted by capacity. `capacity` [N, R]: the capacity of each machine."""
    # Sorting rows takes ten times as long as sorting numbers: equal rows have equal sums with odd weights.
    weights = (np.arange(capacity.shape[1], dtype=np.uint64) * 2 + 1) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (capacity.astype(np.uint64) * weights).sum(axis=1, dtype=np.uint64)
    _, first, of = np.unique(mixed, return_index=True, return_inverse=True)
    if not np.array_equal(capacity[first][of], capacity):
        kinds, of = np.unique(capacity, axis=0, return_inverse=True)
        return _counted(kinds, of.reshape(-1))
    order = np.lexsort(capacity[first].T[::-1])
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return _counted(capacity[first][order], rank[of])


def _counted(capacity: Ints, of: NDArray[np.intp]) -> Platforms:
    return Platforms(capacity, of, np.bincount(of, minlength=len(capacity)).astype(np.int64))


def conforming(limit: tuple[int, ...], platforms: Ints, number: Ints, *, now: int = 0, room: int = 0) -> Conforming:
    """Return suggested limits for a task that asks for `limit`. `platforms` [P, R]: the capacity of each kind of
    machine. `number` [P]: the number of machines of each kind that satisfy the constraints of the task.

    `now`: how many machines can hold the task now. `room`: how many such tasks fit into the cell now. The suggested
    limits are for the most common kind of machine that could hold the task. If no kind could hold the task, they are
    for the kind that comes closest. The field `one_more` of the result is then the largest limit with which one task
    fits on an empty machine of this kind.
    """
    wanted = np.array(limit, dtype=np.int64)
    asked = np.flatnonzero(wanted > 0)
    absent = tuple(np.flatnonzero((wanted > 0) & ~(platforms > 0).any(axis=0)).tolist()) if len(platforms) else ()
    there = number > 0
    kinds, number = platforms[there][:, asked], number[there]
    if len(kinds) == 0 or len(asked) == 0:
        return Conforming(limit, 0, now, room, absent=absent)
    want = wanted[asked]
    held = (kinds // want).min(axis=1)
    holds = int(number[held > 0].sum())
    if holds:
        chosen = int(np.lexsort((held, np.where(held > 0, number, 0)))[-1])
    else:
        chosen = int(np.argmin(np.maximum(0, (want - kinds) / want).max(axis=1)))
    platform, fits = kinds[chosen], int(held[chosen])

    def shape(values: Ints) -> Shape:
        whole = wanted.copy()
        whole[asked] = values
        per = (kinds // values).min(axis=1)
        return Shape(
            limit=tuple(whole.tolist()),
            per_machine=int(per[chosen]),
            machines=int(number[chosen]),
            in_all=int((per * number).sum()),
        )

    smaller: Shape | None = None
    if fits < MOST_PER_MACHINE:
        values = np.minimum(want, _rounded(platform // (fits + 1), asked))
        if (values > 0).all():
            smaller = shape(values)
    fuller: Shape | None = None
    if 0 < fits <= MOST_PER_MACHINE:
        values = np.maximum(want, _rounded(platform // fits, asked))
        values[asked == PORTS] = want[asked == PORTS]
        if (values > want).any():
            fuller = shape(values)
    return Conforming(
        wanted=limit,
        machines=holds,
        now=now,
        room=room,
        asked=shape(want) if fits else None,
        one_more=smaller,
        fuller=fuller,
        absent=absent,
    )


def _rounded(values: Ints, asked: Ints) -> Ints:
    """Return `values`, rounded down: CPU to a multiple of 10 millicores, RAM and disk to whole MiB. Small values and
    other resources are not rounded. `asked`: the index of the resource of each value.
    """
    result = values.copy()
    for i, r in enumerate(asked.tolist()):
        step = 10 if r == 0 else 2**20 if r in (1, 2, 3) else 1
        if result[i] > step:
            result[i] -= result[i] % step
    return result
