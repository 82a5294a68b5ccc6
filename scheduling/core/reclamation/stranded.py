"""Stranded capacity: capacity that would stay free even if every machine were filled with typical tasks. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def stranded(free: NDArray[np.int64], typical: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return an array [R]: for each resource, the total free capacity that would remain if each machine were filled
    with tasks of the size `typical`.

    `free` [M, R]: the free capacity of each machine; negative values count as 0. `typical` [R]: the request of the
    typical task. A resource that the typical task does not request has the result 0.
    """
    asked = typical > 0
    result = np.zeros(len(typical), dtype=np.int64)
    if not asked.any() or not len(free):
        return result
    left = np.maximum(free[:, asked], 0)
    fit = (left // typical[asked]).min(axis=1)
    result[asked] = (left - fit[:, None] * typical[asked]).sum(axis=0)
    return result
