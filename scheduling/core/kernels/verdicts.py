"""The reasons why a group fits on no machine: the obstacles on each machine (§2.6)."""

from __future__ import annotations

from quota.vocabulary.resources import ACCELERATORS, PORTS
from scheduling.core.kernels.compiled import compiled, constant, inlined
from scheduling.core.kernels.counts import count_of
from scheduling.core.kernels.devices import WHOLE, share_of
from scheduling.core.kernels.filters import has_crashed
from scheduling.core.vocabulary.layout import Groups, Ints, Ints32, Judged, MachineArrays, Running, TaskCounts

# Bits of `Judged.flags`.
ABLE = 1  # could hold one if it were empty
OPEN = 2  # up, and the task has not crashed there lately
EVICTABLE = 4  # lower priorities hold some of what it lacks
BY_RESERVATION = 8  # it has room by reservations, as non-prod sees it; only for groups placed by limit

_NONE = constant(0)
# Machines whose intermediate results stay in the processor's cache.
_BLOCK = 1024


@compiled
def device_room(machines: MachineArrays, running: Running, want: int, ceiling: int, room: Ints) -> None:
    """Reduce `room` [P] of each machine, its free accelerators (in thousandths of a device), to the most that one task
    can get. If `want` < 1,000, the task needs a part of one device: the most is the largest free part of a device.
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


@compiled
def judge(
    machines: MachineArrays,
    capacity: Ints,
    spare: Ints,
    left: Ints,
    direct: Ints,
    groups: Groups,
    g: int,
    counts: TaskCounts,
    failed: Ints32,
    failures: Ints32,
    judged: Judged,
) -> None:
    """Write into `judged` the obstacles for group `g` on each machine (by position), and sums of these over all
    machines.

    Four arrays [R, P] contain the capacity of each machine: all of it (`capacity`), the part that no reservation uses
    (`spare`), the part that is free after preemption (`left`), and the part that is free without (`direct`). `spare` is
    empty if the group is placed by reservations. Two arrays [P] are about hard constraints: the index of the first one
    that fails on the machine, or -1 (`failed`), and how many fail (`failures`). `Judged` explains the numbers of
    obstacles.
    """
    judged.fell[:] = 0
    judged.largest[:] = 0
    judged.alone[:] = 0
    judged.alone_largest[:] = 0
    judged.alone_at_largest[:] = 0
    number = machines.slot.shape[0]
    for begin in range(0, number, _BLOCK):
        end = min(number, begin + _BLOCK)
        _count_shortages(capacity, spare, left, direct, groups.limit[g], failures, judged, begin, end)
        for m in range(begin, end):
            _judge_machine(machines, left, direct, groups, g, counts, failed, failures, judged, m)


@inlined
def _count_shortages(
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
    """Compare the free capacity of the machines at the positions `begin` to `end` - 1 with the request `limit` [R], in
    loops that can be vectorised.

    This writes intermediate values: into `judged.only` the number of resources of which the machine has too little, and
    into `judged.distance` the sum of the missing amounts, each divided by the requested amount. `_judge_machine`
    replaces these values.
    """
    n = end - begin
    lacking = judged.lacking[begin:end]
    lacked = judged.only[begin:end]
    short = judged.distance[begin:end]
    flags = judged.flags[begin:end]
    fails = failures[begin:end]
    by_limit = spare.shape[0] > 0
    start = BY_RESERVATION if by_limit else 0
    for i in range(n):
        lacking[i] = -1
        lacked[i] = 0
        short[i] = 0.0
        flags[i] = start | (ABLE if fails[i] == 0 else 0)
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


@inlined
def _judge_machine(
    machines: MachineArrays,
    left: Ints,
    direct: Ints,
    groups: Groups,
    g: int,
    counts: TaskCounts,
    failed: Ints32,
    failures: Ints32,
    judged: Judged,
    m: int,
) -> None:
    """Write into `judged` the obstacles for group `g` on machine `m`, and add them to the sums over machines. The
    arguments are the same as in `judge`. `_count_shortages` must run before, because this function uses its results.
    """
    limit = groups.limit[g]
    axis = limit.shape[0]
    cores = groups.cores[g]
    state = judged.constraints
    lacks = judged.lacking[m]
    lacked = judged.only[m]
    short = judged.distance[m]
    flags = judged.flags[m]
    if (limit[PORTS] > 0 and machines.ports_free[m] < limit[PORTS]) or (
        limit[ACCELERATORS] > 0 and direct[ACCELERATORS, m] < limit[ACCELERATORS]
    ):
        flags &= ~BY_RESERVATION
    few = judged.few[m]
    if few:
        flags &= ~BY_RESERVATION
        want = max(1, cores)
        short += (want - min(want - 1, judged.cores[m])) / want
    if cores > 0 and cores > machines.cores[m]:
        flags &= ~ABLE
    bounds = 0
    bound = 0
    if groups.job[g] >= 0:
        for kind in range(3):
            judged.there[m, kind] = 0
            most = groups.max_machine[g]
            domain = m
            if kind == 1:
                most, domain = groups.max_rack[g], machines.rack[m]
            elif kind == 2:
                most, domain = groups.max_power[g], machines.power[m]
            if most > 0:
                there = count_of(counts, groups.job[g], kind, domain)
                judged.there[m, kind] = there
                if there >= most:
                    bounds += 1
                    if bound == 0:
                        bound = kind + 1
    crashed = has_crashed(groups, g, m)
    first = -1
    value = _NONE
    if failures[m] > 0:
        first = failed[m]
    elif not machines.up[m]:
        first = state
    elif lacked > 0:
        first = state + 1 + lacks
        value = left[lacks, m]
    elif bounds > 0:
        first = state + axis + bound
    elif crashed:
        first = state + axis + 4
    elif few:
        first = state + axis + 5
        value = judged.cores[m]
    judged.fell[first + 1] += 1
    judged.largest[first + 1] = max(judged.largest[first + 1], value)
    only = -1
    is_open = machines.up[m] and not crashed
    if is_open and failures[m] + lacked + bounds + (1 if few else 0) == 1:
        only = first
        judged.alone[only] += 1
        if value > judged.alone_largest[only]:
            judged.alone_largest[only], judged.alone_at_largest[only] = value, 0
        if value == judged.alone_largest[only]:
            judged.alone_at_largest[only] += 1
    judged.only[m] = only
    # Constraints and bounds weigh more than any shortage: each is another decision of the user's.
    judged.distance[m] = axis * (failures[m] + bounds) + short
    judged.flags[m] = flags | (OPEN if is_open else 0)
