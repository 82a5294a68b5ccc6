"""Finds, for each machine, the reasons (obstacles) why a task of a group does not fit there (§2.6)."""

from __future__ import annotations

import numpy as np

from quota.vocabulary.resources import ACCELERATORS, PORTS
from scheduling.core.kernels.compiled import constant, inlined, kernel
from scheduling.core.kernels.counts import MACHINE, POWER, count_of
from scheduling.core.kernels.devices import WHOLE, share_of
from scheduling.core.kernels.filters import has_crashed
from scheduling.core.vocabulary.kernel_arrays import Groups, Ints, Ints32, Judged, MachineArrays, Running, TaskCounts

# Bits of `Judged.flags`.
ABLE = 1  # could hold one if it were empty
OPEN = 2  # up, and the task has not crashed there lately
EVICTABLE = 4  # lower priorities hold some of what it lacks
BY_RESERVATION = 8  # it has room by reservations, as non-prod sees it; only for groups placed by limit

# Indices of `Judged.sums`.
SUM_ABLE = 0
SUM_HELD = 1
SUM_EVICTABLE = 2
SUM_BY_RESERVATION = 3

_NONE = constant(0)
# Machines whose intermediate results stay in the processor's cache.
_BLOCK = 1024


@kernel
def device_room(machines: MachineArrays, running: Running, want: int, ceiling: int, room: Ints) -> None:
    """Reduce `room` [P], the free accelerators of each machine, to the amount that one task can get, in thousandths of
    a device. If `want` < 1,000, the task needs a part of one device: the amount is the largest free part of a device.
    Otherwise it is the sum of the devices that are entirely free. Tasks with a priority below `ceiling` count as
    preempted.
    """
    for m in range(room.shape[0]):
        most = 0
        whole = 0
        for d in range(machines.devices.shape[1]):
            free = machines.devices[m, d]
            t = machines.head[m] if ceiling > 0 else -1
            while t >= 0:
                leaves = running.job_priority[running.job[t]] < ceiling and not running.gone[t]
                if leaves and running.devices[t] >> d & 1:
                    free += share_of(running.shape_limit[running.shape[t], ACCELERATORS])
                t = running.next[t]
            most = max(most, free)
            if free == WHOLE:
                whole += WHOLE
        room[m] = min(room[m], most if want < WHOLE else whole)


@kernel
def judge(
    machines: MachineArrays,
    capacity: Ints,
    spare: Ints,
    left: Ints,
    direct: Ints,
    groups: Groups,
    g: int,
    counts: TaskCounts,
    excluded: Ints32,
    failures: Ints32,
    judged: Judged,
) -> int:
    """Write into `judged` the obstacles for group `g` on each machine, and for each obstacle the number of machines
    that it rules out. Return the position of the machine on which the least is missing, or -1 if there is none. Only
    machines that are up and where the task has not crashed are compared. Among equal machines, return the one with the
    lowest id.

    Four arrays [R, P] contain the capacity of each machine. `capacity`: the whole capacity. `spare`: the part that no
    reservation uses; empty if the group is placed by reservations. `left`: the part that is free after preemption.
    `direct`: the part that is free without preemption. Two arrays [P] are about hard constraints. `excluded`: the code
    of the first constraint that fails; if none fails, the code for a machine that is not up, or -1 if it is up.
    `failures`: how many constraints fail.

    `Judged` lists the codes of obstacles. `judged.fell` must already count the machines by `excluded`; the other sums
    must be 0.
    """
    plain = groups.job[g] < 0 and groups.cores[g] < 0 and groups.avoid_from[g] == groups.avoid_to[g]
    nearest = -1
    best = np.inf
    number = machines.slot.shape[0]
    for begin in range(0, number, _BLOCK):
        end = min(number, begin + _BLOCK)
        _count_shortages(machines, capacity, spare, left, direct, groups.limit[g], failures, judged, begin, end)
        _rule_out(judged, excluded, begin, end)
        if plain:
            distance = judged.distance[begin:end]
            fails = failures[begin:end]
            for i in range(end - begin):
                distance[i] = groups.limit.shape[1] * fails[i] + distance[i]
        else:
            _count_tasks(machines, groups, g, counts, judged, begin, end)
            bounds = (groups.max_machine[g], groups.max_rack[g], groups.max_power[g])
            for m in range(begin, end):
                _judge_further(machines, groups, g, bounds, failures, judged, m)
        _sum_up(left, groups.limit[g], failures, judged, begin, end)
        for m in range(begin, end):
            if judged.distance[m] <= best and judged.flags[m] & OPEN:
                if judged.distance[m] < best or machines.rank[m] < machines.rank[nearest]:
                    nearest = m
                best = judged.distance[m]
    judged.fell[0] = number - judged.fell[1:].sum()
    return nearest


@inlined
def _count_shortages(
    machines: MachineArrays,
    capacity: Ints,
    spare: Ints,
    left: Ints,
    direct: Ints,
    limit: Ints,
    failures: Ints32,
    judged: Judged,
    begin: int,
    end: int,
) -> None:
    """Compare the free capacity of the machines at the positions `begin` to `end` - 1 with the request `limit` [R].
    Write the results into `judged.lacking` and `judged.flags`.

    Two other arrays get intermediate values. `judged.only`: the number of resources of which the machine has too
    little. `judged.distance`: the sum of the missing amounts, each divided by the requested amount.
    """
    n = end - begin
    lacking = judged.lacking[begin:end]
    lacked = judged.only[begin:end]
    short = judged.distance[begin:end]
    flags = judged.flags[begin:end]
    fails = failures[begin:end]
    up = machines.up[begin:end]
    by_limit = spare.shape[0] > 0
    start = BY_RESERVATION if by_limit else 0
    for i in range(n):
        lacking[i] = -1
        lacked[i] = 0
        short[i] = 0.0
    for i in range(n):
        flags[i] = start | (ABLE if fails[i] == 0 else 0) | (OPEN if up[i] else 0)
    for r in range(limit.shape[0]):
        want = limit[r]
        if want == 0:
            continue
        has = left[r][begin:end]
        now = direct[r][begin:end]
        whole = capacity[r][begin:end]
        for i in range(n):
            lacks = has[i] < want
            lacked[i] += lacks
            lacking[i] = r if lacks and lacking[i] < 0 else lacking[i]
        for i in range(n):
            short[i] += max(0, want - max(has[i], 0)) / want
        for i in range(n):
            flags[i] |= EVICTABLE if has[i] < want and has[i] > now[i] else 0
            flags[i] &= ~ABLE if whole[i] < want else ~0
        if by_limit:
            unreserved = spare[r][begin:end]
            for i in range(n):
                flags[i] &= ~BY_RESERVATION if unreserved[i] < want else ~0
            if r == PORTS:
                ports = machines.ports_free[begin:end]
                for i in range(n):
                    flags[i] &= ~BY_RESERVATION if ports[i] < want else ~0
            if r == ACCELERATORS:
                for i in range(n):
                    flags[i] &= ~BY_RESERVATION if now[i] < want else ~0


@inlined
def _rule_out(judged: Judged, excluded: Ints32, begin: int, end: int) -> None:
    """Write into `judged.first` the first obstacle of each machine at the positions `begin` to `end` - 1. This is the
    obstacle in `excluded`. If there is none, it is the first resource of which the machine has too little.
    """
    first = judged.first[begin:end]
    lacking = judged.lacking[begin:end]
    out = excluded[begin:end]
    base = judged.constraints + 1
    for i in range(end - begin):
        resource = base + lacking[i] if lacking[i] >= 0 else -1
        first[i] = out[i] if out[i] >= 0 else resource


@inlined
def _count_tasks(
    machines: MachineArrays, groups: Groups, g: int, counts: TaskCounts, judged: Judged, begin: int, end: int
) -> None:
    """For each machine at the positions `begin` to `end` - 1, write into `judged.there` how many tasks the job of group
    `g` has on the machine, in its rack and in its power domain. A number is 0 if the job has no maximum for it.
    """
    job = groups.job[g]
    row = counts.row[job] if job >= 0 else -1
    per_machine = row >= 0 and groups.max_machine[g] > 0
    per_rack = row >= 0 and groups.max_rack[g] > 0
    per_power = row >= 0 and groups.max_power[g] > 0
    there = judged.there
    for m in range(begin, end):
        rack = machines.rack[m]
        in_rack = counts.rack[row, rack] if row >= 0 and rack >= 0 else 0
        # The rack's count is at hand: most racks have no task of the job, and then the machine has none.
        there[m, 0] = count_of(counts, job, MACHINE, m) if per_machine and (rack < 0 or in_rack > 0) else 0
        there[m, 1] = in_rack if per_rack else 0
        there[m, 2] = count_of(counts, job, POWER, machines.power[m]) if per_power else 0


@inlined
def _judge_further(
    machines: MachineArrays,
    groups: Groups,
    g: int,
    most: tuple[int, int, int],
    failures: Ints32,
    judged: Judged,
    m: int,
) -> None:
    """Add to `judged` three kinds of obstacles for group `g` on machine `m`: the job's maximum numbers of tasks,
    crashes, and whole cores. `most`: the maximum per machine, rack and power domain; 0 means no maximum. `judged.there`
    must already be written.
    """
    axis = groups.limit.shape[1]
    cores = groups.cores[g]
    few = judged.few[m]
    short = judged.distance[m]
    if few:
        judged.flags[m] &= ~BY_RESERVATION
        want = max(1, cores)
        short += (want - min(want - 1, judged.cores[m])) / want
    if cores > 0 and cores > machines.cores[m]:
        judged.flags[m] &= ~ABLE
    bounds = 0
    bound = 0
    for kind in range(3):
        if 0 < most[kind] <= judged.there[m, kind]:
            bounds += 1
            if bound == 0:
                bound = kind + 1
    crashed = has_crashed(groups, g, m)
    if crashed:
        judged.flags[m] &= ~OPEN
    # Constraints and bounds weigh more than any shortage: each is another decision of the user's.
    judged.distance[m] = axis * (failures[m] + bounds) + short
    judged.only[m] += bounds + (1 if few else 0)
    if judged.first[m] >= 0:
        return
    value = _NONE
    first = -1
    if bounds > 0:
        first = judged.constraints + axis + bound
    elif crashed:
        first = judged.constraints + axis + 4
    elif few:
        first = judged.constraints + axis + 5
        value = judged.cores[m]
    else:
        return
    judged.first[m] = first
    judged.fell[first + 1] += 1
    judged.largest[first + 1] = max(judged.largest[first + 1], value)
    if judged.flags[m] & OPEN and judged.only[m] == 1:
        judged.alone[first] += 1
        if value > judged.alone_largest[first]:
            judged.alone_largest[first], judged.alone_at_largest[first] = value, 0
        if value == judged.alone_largest[first]:
            judged.alone_at_largest[first] += 1


@inlined
def _sum_up(left: Ints, limit: Ints, failures: Ints32, judged: Judged, begin: int, end: int) -> None:
    """Complete `judged` for the machines at the positions `begin` to `end` - 1.

    Write into `judged.only` the obstacle that alone prevents a task from running on the machine. Write -1 if there is
    none, if there are several, or if the machine cannot run the task at present (it is not up, or the task crashed
    there). Then update the counts of machines per obstacle, such as `judged.fell` (machines that the obstacle excludes)
    and `judged.alone` (machines on which it is the only obstacle).
    """
    n = end - begin
    first = judged.first[begin:end]
    only = judged.only[begin:end]
    lacking = judged.lacking[begin:end]
    flags = judged.flags[begin:end]
    fails = failures[begin:end]
    for i in range(n):
        only[i] = first[i] if flags[i] & OPEN and fails[i] + only[i] == 1 else -1
    for obstacle in range(judged.constraints):
        alone = 0
        for i in range(n):
            alone += only[i] == obstacle
        judged.alone[obstacle] += alone
        judged.alone_at_largest[obstacle] += alone
    for r in range(limit.shape[0]):
        if limit[r] == 0:
            continue
        obstacle = judged.constraints + 1 + r
        has = left[r][begin:end]
        fell = 0
        alone = 0
        largest = _NONE
        alone_largest = _NONE
        for i in range(n):
            fell += first[i] == obstacle
            largest = max(largest, has[i] if first[i] == obstacle else 0)
        for i in range(n):
            alone += only[i] == obstacle
            alone_largest = max(alone_largest, has[i] if only[i] == obstacle else 0)
        judged.fell[obstacle + 1] += fell
        judged.largest[obstacle + 1] = max(judged.largest[obstacle + 1], largest)
        judged.alone[obstacle] += alone
        if alone_largest > judged.alone_largest[obstacle]:
            judged.alone_largest[obstacle], judged.alone_at_largest[obstacle] = alone_largest, 0
        if alone > 0 and alone_largest == judged.alone_largest[obstacle]:
            at_largest = 0
            for i in range(n):
                at_largest += only[i] == obstacle and has[i] == alone_largest
            judged.alone_at_largest[obstacle] += at_largest
    ports = left[PORTS][begin:end]
    able = 0
    held = 0
    evictable = 0
    by_reservation = 0
    for i in range(n):
        able += (flags[i] & ABLE) != 0
    for i in range(n):
        lacks = lacking[i] >= 0 and flags[i] & OPEN and fails[i] == 0
        held += lacks and (flags[i] & ABLE) != 0
        evictable += lacks and (flags[i] & EVICTABLE) != 0
    for i in range(n):
        wanted = ABLE | OPEN | BY_RESERVATION
        by_reservation += lacking[i] >= 0 and (flags[i] & wanted) == wanted and ports[i] >= limit[PORTS]
    judged.sums[SUM_ABLE] += able
    judged.sums[SUM_HELD] += held
    judged.sums[SUM_EVICTABLE] += evictable
    judged.sums[SUM_BY_RESERVATION] += by_reservation
