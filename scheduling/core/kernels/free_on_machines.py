"""Computes the free capacity of machines at each level. A level is a pair: the priority below which tasks may be
preempted, and whether tasks are placed by limit or by reservation (§5.5).
"""

from __future__ import annotations

from quota.vocabulary.resources import PORTS
from scheduling.core.kernels.compiled import compiled, inlined, kernel
from scheduling.core.vocabulary.kernel_arrays import SKIPPED, Bools, Ints, Levels, MachineArrays, Running


@inlined
def _free(machines: MachineArrays, running: Running, levels: Levels, m: int, asked: Bools, sums: Ints) -> None:
    """Write into `sums[:, 0]` [L, R] the free capacity of machine `m` at each level, for the resources for which
    `asked` [R] is true. The free capacity is negative if tasks hold more than the machine has. `sums[:, 1]`: memory for
    intermediate sums.
    """
    axis = machines.capacity.shape[1]
    number = levels.ceiling.shape[0]
    highest = 0
    for k in range(number):
        highest = max(highest, levels.ceiling[k])
        for r in range(axis):
            sums[k, 0, r] = sums[k, 1, r] = 0
    t = machines.head[m] if highest > 0 else -1
    while t >= 0:
        job = running.job[t]
        priority = running.job_priority[job]
        if priority < highest and not running.gone[t]:
            # The task counts at the first level whose ceiling is above it. The levels above are added up below.
            k = 0
            while priority >= levels.ceiling[levels.ascending[k]]:
                k += 1
            k = levels.ascending[k]
            for r in range(axis):
                if asked[r]:
                    sums[k, 0, r] += running.reservation[t, r]
                    if running.job_by_limit[job]:
                        sums[k, 1, r] += running.shape_limit[running.shape[t], r]
        t = running.next[t]
    for r in range(axis):
        if not asked[r]:
            continue
        capacity, reserved, prod_limit = machines.capacity[m, r], machines.reserved[m, r], machines.prod_limit[m, r]
        for k in levels.ascending:
            reserved -= sums[k, 0, r]
            prod_limit -= sums[k, 1, r]
            left = capacity - (max(reserved, prod_limit) if levels.by_limit[k] else reserved)
            sums[k, 0, r] = min(left, machines.ports_free[m]) if r == PORTS else left


@compiled
def room(machines: MachineArrays, running: Running, levels: Levels, m: int, asked: Bools, sums: Ints) -> None:
    """Write into `levels.left` the free capacity of machine `m` at each level, for the resources for which `asked` [R]
    is true. If this is more than `levels.most` of the machine's block, increase `levels.most` too.

    `sums` [L, 2, R]: memory for intermediate sums.
    """
    _free(machines, running, levels, m, asked, sums)
    block = m // SKIPPED
    for level in range(levels.left.shape[0]):
        for r in range(levels.left.shape[1]):
            if asked[r]:
                left = sums[level, 0, r]
                levels.left[level, r, m] = left
                levels.most[level, r, block] = max(levels.most[level, r, block], left)


@kernel
def count_room(
    machines: MachineArrays, running: Running, levels: Levels, positions: Ints, asked: Bools, sums: Ints
) -> None:
    """Write into `levels.left` the free capacity of the machines at `positions` [N], for the resources for which
    `asked` [R] is true. `sums` [N, L, 2, R]: memory for intermediate sums.
    """
    for i in range(positions.shape[0]):
        _free(machines, running, levels, positions[i], asked, sums[i])
    # One row after the other, because the rows of `left` are far apart in memory.
    for level in range(levels.left.shape[0]):
        for r in range(levels.left.shape[1]):
            if asked[r]:
                left = levels.left[level, r]
                for i in range(positions.shape[0]):
                    left[positions[i]] = sums[i, level, 0, r]


@kernel
def find_most(levels: Levels, blocks: Ints, asked: Bools) -> None:
    """Compute `levels.most`, the largest free capacity in a block of machines, from `levels.left`, for the blocks with
    the numbers `blocks` [N]. Only resources for which `asked` [R] is true are computed.
    """
    total = levels.left.shape[2]
    for level in range(levels.left.shape[0]):
        for r in range(levels.left.shape[1]):
            if asked[r]:
                for block in blocks:
                    left = levels.left[level, r, block * SKIPPED : min(total, (block + 1) * SKIPPED)]
                    most = left[0]
                    for i in range(left.shape[0]):
                        most = max(most, left[i])
                    levels.most[level, r, block] = most


@kernel
def sum_capacity(
    up: Bools, capacity: Ints, prod_limit: Ints, reserved: Ints, slots: Ints, parts: Ints, sums: Ints
) -> None:
    """Update three totals over all machines that are up, after the machines in `slots` [N] have changed. `sums` [3, R]
    has the totals: the capacity, the capacity minus `prod_limit`, and the capacity minus `reserved` (§5.5). If a
    difference is negative for a machine, it counts as 0. `parts` [M, 3, R]: the part of each machine in the totals.
    """
    for m in slots:
        for r in range(capacity.shape[1]):
            full = capacity[m, r] if up[m] else 0
            new = full, max(full - prod_limit[m, r], 0) if up[m] else 0, max(full - reserved[m, r], 0) if up[m] else 0
            for kind in range(3):
                sums[kind, r] += new[kind] - parts[m, kind, r]
                parts[m, kind, r] = new[kind]
