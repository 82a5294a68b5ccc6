"""How many tasks of a job are on a machine, in a rack, in a power domain: an open hash."""

from __future__ import annotations

import numpy as np

from scheduling.core.kernels.compiled import compiled, inlined
from scheduling.core.layout import Counts, Ints32, Machines


@inlined
def _find(counts: Counts, key: np.int64) -> int:
    mask = counts.keys.shape[0] - 1
    place = int((key * 0x9E3779B97F4A7C1) >> 17 & mask)
    while counts.keys[place] != key and counts.keys[place] != -1:
        place = (place + 1) & mask
    return place


@inlined
def count_of(counts: Counts, job: int, kind: int, domain: int) -> int:
    """Tasks of `job` on a machine (kind 0), in a rack (1), in a power domain (2); none where it is unknown."""
    if domain < 0:
        return 0
    place = _find(counts, (np.int64(job) * 4 + kind) << 32 | np.int64(domain))
    return counts.values[place] if counts.keys[place] != -1 else 0


@compiled
def count_in(machines: Machines, counts: Counts, job: int, m: int) -> None:
    """A task of the job is on the machine."""
    if counts.size[job] <= 1:
        return
    for kind in range(3):
        domain = m if kind == 0 else (machines.rack[m] if kind == 1 else machines.power[m])
        if domain < 0:
            continue
        key = (np.int64(job) * 4 + kind) << 32 | np.int64(domain)
        place = _find(counts, key)
        counts.keys[place] = key
        counts.values[place] += 1


@compiled
def count_all(machines: Machines, counts: Counts, jobs: Ints32, slots: Ints32) -> None:
    for i in range(jobs.shape[0]):
        count_in(machines, counts, jobs[i], slots[i])
