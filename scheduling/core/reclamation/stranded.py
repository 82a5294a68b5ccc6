"""Stranded capacity: the rest of each machine after as many typical tasks as fit. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def stranded(free: NDArray[np.int64], typical: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sum over machines of what no task of size `typical` could take, int64[R].

    `free`: int64[M, R], what machines have left; below zero counts as nothing. `typical`: int64[R]; resources that it
    asks nothing of are never short, and none of them is called stranded. A typical task that asks for nothing strands
    nothing.
    """
    asked = typical > 0
    result = np.zeros(len(typical), dtype=np.int64)
    if not asked.any() or not len(free):
        return result
    left = np.maximum(free[:, asked], 0)
    fit = (left // typical[asked]).min(axis=1)
    result[asked] = (left - fit[:, None] * typical[asked]).sum(axis=0)
    return result
