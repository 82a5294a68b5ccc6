"""Tests of stranded resources: what is left of machines after as many typical tasks as fit."""

from __future__ import annotations

import numpy as np
import pytest

from scheduling.core.reclamation.stranded import stranded

V = np.array


def of(free, typical) -> list[int]:
    return stranded(V(free, dtype=np.int64).reshape(-1, len(typical)), V(typical, dtype=np.int64)).tolist()


@pytest.mark.parametrize(
    ("free", "typical", "left"),
    [
        ([[10, 10]], [1, 1], [0, 0]),
        ([[10, 3]], [1, 1], [7, 0]),  # no RAM is left: seven cores cannot be used
        ([[10, 3], [0, 5]], [1, 1], [7, 5]),  # machine by machine, never pooled
        ([[3, 3]], [2, 2], [1, 1]),
        ([[-4, 9]], [1, 1], [0, 9]),  # over-committed
        ([[10, 3]], [1, 0], [0, 0]),  # the task asks for no RAM, so none is stranded
        ([[10, 3]], [0, 0], [0, 0]),
        ([], [1, 1], [0, 0]),
        ([[2**53, 2**53]], [2**52, 2**20], [0, 2**53 - 2 * 2**20]),
    ],
    ids=["fits", "ram-gone", "machines", "rest", "over", "unasked", "no-task", "no-machine", "large"],
)
def test_what_no_typical_task_could_take_is_stranded(free, typical, left) -> None:
    assert of(free, typical) == left
