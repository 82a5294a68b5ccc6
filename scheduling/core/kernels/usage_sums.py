"""Updates, for many moves at once, the sums of the resources that tasks use on machines. In a move, a task starts on a
machine or leaves it.
"""

from __future__ import annotations

from typing import NamedTuple

from quota.vocabulary.resources import ACCELERATORS
from scheduling.core.kernels.compiled import kernel
from scheduling.core.kernels.devices import share_of
from scheduling.core.vocabulary.kernel_arrays import Ints, Ints32

# Columns of a move: slot of the task, slot of the machine, +1 comes or -1 leaves, shape, placed by limit, devices.
TASK, MACHINE, SIGN, SHAPE, BY_LIMIT, DEVICES = range(6)
COLUMNS = 6


class Accounts(NamedTuple):
    """Arrays of the cell's state, which the kernel changes: the list of the tasks on each machine, and the sums of the
    resources that these tasks use. Each array is indexed by task slot, by machine slot, or by shape: the number of a
    set of tasks with equal requirements.
    """

    next: Ints32
    prev: Ints32
    reservation: Ints  # [T, R]
    shape_limit: Ints  # [S, R]
    head: Ints32
    tasks: Ints32
    limits: Ints  # [M, R]
    reserved: Ints
    prod_limit: Ints
    devices: Ints32  # [M, D]
    changed: Ints


@kernel
def settle(accounts: Accounts, moves: Ints, tick: int) -> None:
    """Apply `moves` [N, COLUMNS] to `accounts`, in order. In each move, a task starts on a machine or leaves it. The
    reservation of a task that starts is its limit (§5.5). `tick`: the value that is written into `accounts.changed` for
    the machine of each move.
    """
    for i in range(moves.shape[0]):
        t, m, sign, shape = moves[i, TASK], moves[i, MACHINE], moves[i, SIGN], moves[i, SHAPE]
        if sign > 0:
            first = accounts.head[m]
            accounts.next[t], accounts.prev[t] = first, -1
            if first >= 0:
                accounts.prev[first] = t
            accounts.head[m] = t
        else:
            before, after = accounts.prev[t], accounts.next[t]
            if before >= 0:
                accounts.next[before] = after
            else:
                accounts.head[m] = after
            if after >= 0:
                accounts.prev[after] = before
            accounts.next[t] = accounts.prev[t] = -1
        accounts.tasks[m] += sign
        for r in range(accounts.limits.shape[1]):
            limit = accounts.shape_limit[shape, r]
            if sign > 0:
                accounts.reservation[t, r] = limit
            accounts.limits[m, r] += sign * limit
            accounts.reserved[m, r] += sign * accounts.reservation[t, r]
            if moves[i, BY_LIMIT] != 0:
                accounts.prod_limit[m, r] += sign * limit
        mask = moves[i, DEVICES]
        if mask != 0:
            share = share_of(accounts.shape_limit[shape, ACCELERATORS])
            for d in range(accounts.devices.shape[1]):
                if mask >> d & 1:
                    accounts.devices[m, d] -= sign * share
        accounts.changed[m] = tick
