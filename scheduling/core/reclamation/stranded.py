"""Stranded capacity: the capacity that would remain free on each machine if it were filled with typical tasks. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def stranded(free: NDArray[np.int64], typical: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return int64[R]: for each resource, the sum over machines of the free capacity that no further task of size
    `typical` could use, because another free resource of the machine is too small for one more such task.

    `free`: int64[M, R], free capacity of machines; negative values count as 0. `typical`: int64[R]. Resources that the
    typical task does not request are not counted. If it requests nothing, the result is zero.
    """
    asked = typical > 0
    result = np.zeros(len(typical), dtype=np.int64)
    if not asked.any() or not len(free):
        return result
    left = np.maximum(free[:, asked], 0)
    fit = (left // typical[asked]).min(axis=1)
    result[asked] = (left - fit[:, None] * typical[asked]).sum(axis=0)
    return result
