"""Counts of a job's tasks per machine, rack and power domain."""

from __future__ import annotations

import numpy as np

from scheduling.core.kernels.compiled import compiled, inlined, kernel
from scheduling.core.vocabulary.kernel_arrays import Ints, MachineArrays, TaskCounts

# Kinds of domain.
MACHINE, RACK, POWER = range(3)


@inlined
def _find(counts: TaskCounts, key: np.int64) -> int:
    mask = counts.keys.shape[0] - 1
    place = int((key * 0x9E3779B97F4A7C1) >> 17 & mask)
    while counts.keys[place] != key and counts.keys[place] != -1:
        place = (place + 1) & mask
    return place


@inlined
def count_of(counts: TaskCounts, job: int, kind: int, domain: int) -> int:
    """Return the number of tasks of `job` on a machine, in a rack or in a power domain. `kind`: which of the three.
    `domain`: the number of the machine, rack or power domain. Return 0 if `domain` is -1 (unknown) or if the job has
    only one task.
    """
    row = counts.row[job]
    if domain < 0 or row < 0:
        return 0
    if kind == RACK:
        return int(counts.rack[row, domain])
    if kind == POWER:
        return int(counts.power[row, domain])
    place = _find(counts, np.int64(row) << 32 | np.int64(domain))
    return int(counts.values[place]) if counts.keys[place] != -1 else 0


@inlined
def count_on(counts: TaskCounts, machines: MachineArrays, job: int, m: int) -> int:
    """Return the number of tasks of `job` on machine `m`. The function first checks whether the rack has any task of
    the job, because this check is faster.
    """
    row = counts.row[job]
    if row < 0 or (machines.rack[m] >= 0 and counts.rack[row, machines.rack[m]] == 0):
        return 0
    return count_of(counts, job, MACHINE, m)


@compiled
def count_in(machines: MachineArrays, counts: TaskCounts, job: int, m: int, by: int) -> None:
    """Add `by` to the numbers of the job's tasks on machine `m`, in the machine's rack and in its power domain."""
    row = counts.row[job]
    if row < 0:
        return
    key = np.int64(row) << 32 | np.int64(m)
    place = _find(counts, key)
    counts.keys[place] = key
    counts.values[place] += by
    if machines.rack[m] >= 0:
        counts.rack[row, machines.rack[m]] += by
    if machines.power[m] >= 0:
        counts.power[row, machines.power[m]] += by


@kernel
def count_all(machines: MachineArrays, counts: TaskCounts, jobs: Ints, positions: Ints) -> None:
    for i in range(jobs.shape[0]):
        count_in(machines, counts, jobs[i], positions[i], 1)


@kernel
def count_on_each(counts: TaskCounts, machines: MachineArrays, job: int, result: Ints) -> None:
    """Write the number of tasks of `job` on each machine into `result` [P]."""
    for m in range(result.shape[0]):
        result[m] = count_on(counts, machines, job, m)
