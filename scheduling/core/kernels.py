"""Compiled inner loops of the pass. Private, positional, on plain arrays; the public side is `core.pass_`.

`python -m scheduling.core.kernels` compiles and caches all of them: done at installation, so no start waits.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

HYBRID, BEST_FIT, E_PVM = 0, 1, 2
SCORERS = {"hybrid": HYBRID, "best-fit": BEST_FIT, "e-pvm": E_PVM}

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@njit(cache=True)
def packing(left: Ints, need: Ints, capacity: Ints, scorer: int) -> float:  # pragma: no cover - compiled
    """How well `need` packs into one machine, higher is better, between about -1 and 0 (§3.2).

    left, need, capacity: int64[R]. Only resources that the machine has count.
    """
    low, high, total, count = 2.0, -1.0, 0.0, 0
    cost = 0.0
    for r in range(capacity.shape[0]):
        if capacity[r] <= 0 or r >= 3:
            continue
        after = (left[r] - need[r]) / capacity[r]
        low, high = min(low, after), max(high, after)
        total += after
        count += 1
        before = left[r] / capacity[r]
        cost += 2.0 ** (10.0 * (1.0 - after)) - 2.0 ** (10.0 * (1.0 - before))
    if count == 0:
        return 0.0
    if scorer == BEST_FIT:
        return -total / count
    if scorer == E_PVM:
        return -cost / (1024.0 * count)
    # What stays when one resource is used up is stranded: keep what is left in balance, and then pack tightly.
    return -(high - low) - 0.25 * total / count


@njit(cache=True)
def choose(
    allowed: Bools, left: Ints, need: Ints, capacity: Ints, bonus: Floats,
    in_job: Ints, in_rack: Ints, in_domain: Ints, rack: Ints, domain: Ints,
    max_machine: int, max_rack: int, max_domain: int, spread_weight: float,
    start: int, enough: int, scorer: int, stay: int, stay_bonus: float,
) -> tuple[int, float]:  # fmt: skip  # pragma: no cover - compiled
    """The best of the first `enough` machines that can take `need`, looking from `start` onwards, round.

    allowed: bool[M] static feasibility. left, capacity: int64[M, R]. need: int64[R]. bonus: float64[M].
    in_job: int64[M], in_rack: int64[racks], in_domain: int64[domains]: tasks of the same job there.
    Returns (machine slot or -1, score). The machine `stay` is always looked at. Ties: the smaller slot.
    """
    machines = allowed.shape[0]
    best, best_score, found = -1, -1e300, 0
    for step in range(-1, machines):
        m = stay if step < 0 else (start + step) % machines
        if m < 0 or (step >= 0 and m == stay) or not allowed[m]:
            continue
        fits = True
        for r in range(need.shape[0]):
            if need[r] > left[m, r]:
                fits = False
                break
        if not fits:
            continue
        if max_machine > 0 and in_job[m] >= max_machine:
            continue
        if max_rack > 0 and in_rack[rack[m]] >= max_rack:
            continue
        if max_domain > 0 and in_domain[domain[m]] >= max_domain:
            continue
        score = packing(left[m], need, capacity[m], scorer) + bonus[m]
        score -= spread_weight * (in_job[m] + 0.2 * in_rack[rack[m]] + 0.05 * in_domain[domain[m]])
        if m == stay:
            score += stay_bonus
        if score > best_score or (score == best_score and m < best):
            best, best_score = m, score
        found += 1
        if enough > 0 and found >= enough:
            break
    return best, best_score


def compile_all() -> None:
    """Compile with the very types that the pass uses."""
    left = np.zeros((1, 6), np.int64)
    flat, ones, floats = np.zeros(1, np.int64), np.ones(1, np.bool_), np.zeros(1, np.float64)
    choose(
        ones, left, left[0], left, floats, flat, flat, flat, flat, flat,
        0, 0, 0, 0.5, 0, 1, HYBRID, -1, 0.5,
    )  # fmt: skip


if __name__ == "__main__":
    compile_all()
