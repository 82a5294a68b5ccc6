"""Filters that exclude machines on which a task cannot run, in the order in which they are applied."""

from __future__ import annotations

from scheduling.core.kernels.compiled import inlined
from scheduling.core.kernels.counts import POWER, RACK, count_of, count_on
from scheduling.core.vocabulary.kernel_arrays import (
    SKIPPED,
    UNBOOKED,
    Bookings,
    Bools,
    Groups,
    Levels,
    MachineArrays,
    TaskCounts,
)

# Machines that are scanned at once.
BLOCK = 256

# What `spread_excess` answers.
FREE: int = 0
MACHINE_FULL: int = 1
RACK_FULL: int = 2
POWER_FULL: int = 3


@inlined
def satisfies(groups: Groups, g: int, m: int) -> bool:
    """Return whether machine `m` satisfies the hard constraints of group `g`."""
    return bool(groups.allowed[groups.hard[g], m])


@inlined
def is_up(machines: MachineArrays, m: int) -> bool:
    return bool(machines.up[m])


@inlined
def lacking(levels: Levels, level: int, m: int, groups: Groups, g: int) -> int:
    """Return the first resource of which machine `m` has too little free for a task of group `g`, or -1 if it has
    enough of all. Ports are a resource too. `level`: the row of `levels`, which decides what counts as free (§5.5).
    """
    for r in range(groups.limit.shape[1]):
        if groups.limit[g, r] > 0 and levels.left[level, r, m] < groups.limit[g, r]:
            return r
    return -1


@inlined
def scan(
    machines: MachineArrays, levels: Levels, level: int, groups: Groups, g: int, first: int, n: int, mask: Bools
) -> bool:
    """Write into `mask[:n]` whether each of `n` neighbouring machines passes the three filters `lacking`, `is_up` and
    `satisfies`. `first`: the position of the first machine.

    Return False if none of these machines passes; the values in `mask` are then not valid.
    """
    found = False
    for block in range(first // SKIPPED, (first + n - 1) // SKIPPED + 1):
        enough = True
        for r in range(groups.limit.shape[1]):
            want = groups.limit[g, r]
            enough &= want <= 0 or levels.most[level, r, block] >= want
        found |= enough
    if not found:
        return False
    # Slices, so that no index can be negative: what might count from the end is not vectorised.
    allowed = groups.allowed[groups.hard[g]][first : first + n]
    up = machines.up[first : first + n]
    for i in range(n):
        mask[i] = allowed[i] & up[i]
    for r in range(groups.limit.shape[1]):
        want = groups.limit[g, r]
        if want > 0:
            left = levels.left[level, r][first : first + n]
            found = False
            for i in range(n):
                mask[i] &= left[i] >= want
            for i in range(n):
                found |= mask[i]
            if not found:
                return False
    return True


@inlined
def spread_excess(machines: MachineArrays, groups: Groups, g: int, m: int, counts: TaskCounts) -> int:
    """Return which maximum number of tasks the job of group `g` has already reached: `MACHINE_FULL` on machine `m`,
    `RACK_FULL` in its rack or `POWER_FULL` in its power domain. Return `FREE` if it has reached none.
    """
    job = groups.job[g]
    if job < 0:
        return FREE
    if groups.max_machine[g] > 0 and count_on(counts, machines, job, m) >= groups.max_machine[g]:
        return MACHINE_FULL
    if groups.max_rack[g] > 0 and count_of(counts, job, RACK, machines.rack[m]) >= groups.max_rack[g]:
        return RACK_FULL
    if groups.max_power[g] > 0 and count_of(counts, job, POWER, machines.power[m]) >= groups.max_power[g]:
        return POWER_FULL
    return FREE


@inlined
def has_crashed(groups: Groups, g: int, m: int) -> bool:
    """Return whether the task of group `g` has crashed recently on machine `m` (§4). A task with recent crashes is
    always alone in its group.
    """
    for k in range(groups.avoid_from[g], groups.avoid_to[g]):  # noqa: SIM110 - compiled: no generators
        if groups.avoid[k] == m:
            return True
    return False


@inlined
def may_hold(machines: MachineArrays, groups: Groups, g: int, m: int, counts: TaskCounts) -> bool:
    """Return whether one more task of group `g` may run on machine `m` with regard to recent crashes and the job's
    maximum numbers of tasks. Use `scan` to check capacity, constraints and whether the machine is up.
    """
    return spread_excess(machines, groups, g, m, counts) == FREE and not has_crashed(groups, g, m)


@inlined
def leaves_booked(bookings: Bookings, groups: Groups, g: int, m: int) -> bool:
    """Return whether a task of group `g` on machine `m` leaves all booked capacity free, or need not leave it free."""
    for b in range(bookings.made[0]):
        if bookings.bound[b, g] and bookings.extra[b, m, 0] < UNBOOKED:
            if groups.cores[g] > 0:
                return False  # a booked machine keeps its cores
            for r in range(groups.limit.shape[1]):
                if groups.limit[g, r] > bookings.extra[b, m, r]:
                    return False
    return True


@inlined
def use_extra(bookings: Bookings, groups: Groups, g: int, m: int, by: int) -> None:
    """Subtract a task of group `g` from what the bookings leave of machine `m` (`by` = 1), or add it again (`by` = -1).
    A task that ends before the gang starts changes nothing.
    """
    for b in range(bookings.made[0]):
        if bookings.bound[b, g] and bookings.extra[b, m, 0] < UNBOOKED:
            for r in range(groups.limit.shape[1]):
                bookings.extra[b, m, r] -= by * groups.limit[g, r]
