"""The obstacles of a group on each machine, for groups that fit nowhere (§2.6)."""

from __future__ import annotations

from quota.vocabulary.resources import ACCELERATORS, PORTS
from scheduling.core.kernels.compiled import compiled
from scheduling.core.kernels.counts import count_of
from scheduling.core.kernels.devices import WHOLE, share_of
from scheduling.core.kernels.filters import has_crashed
from scheduling.core.vocabulary.layout import Groups, Ints, Ints32, Judged, MachineArrays, Running, TaskCounts

# Bits of `Judged.flags`.
ABLE = 1  # could hold one if it were empty
OPEN = 2  # up, and the task has not crashed there lately
EVICTABLE = 4  # lower priorities hold some of what it lacks
BY_RESERVATION = 8  # it has room by reservations, as non-prod sees it


@compiled
def device_room(machines: MachineArrays, running: Running, want: int, ceiling: int, room: Ints) -> None:
    """Bound `room` [P], sums of accelerators, by the most that one request like `want` may ask for on devices: the
    emptiest one for a share, the whole ones for more. Tasks below the `ceiling` count as leaving.
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
    left: Ints,
    direct: Ints,
    groups: Groups,
    g: int,
    counts: TaskCounts,
    failed: Ints32,
    failures: Ints32,
    judged: Judged,
) -> None:
    """Write the obstacle of group `g` on each machine, by position.

    `left`, `direct` [R, P]: free capacity with and without preemption. `failed`: the machine's first hard
    constraint that fails, -1; `failures`: how many do. Obstacles are numbered as `Judged` says.
    """
    limit = groups.limit[g]
    axis = limit.shape[0]
    job = groups.job[g]
    state = judged.constraints
    for m in range(machines.slot.shape[0]):
        lacks = -1
        lacked = 0
        short = 0.0
        able = failures[m] == 0
        evictable = False
        by_reservation = True
        for r in range(axis):
            want = limit[r]
            if want == 0:
                continue
            has = left[r, m]
            if has < want:
                lacked += 1
                if lacks < 0:
                    lacks = r
                short += (want - max(has, 0)) / want
                if has > direct[r, m]:
                    evictable = True
            if machines.capacity[m, r] < want:
                able = False
            if (
                machines.capacity[m, r] - machines.reserved[m, r] < want
                or (r == PORTS and machines.ports_free[m] < want)
                or (r == ACCELERATORS and direct[r, m] < want)
            ):
                by_reservation = False
        few = judged.few[m]
        if few:
            by_reservation = False
            want = max(1, groups.cores[g])
            short += (want - min(want - 1, judged.cores[m])) / want
        if groups.cores[g] > machines.cores[m]:
            able = False
        bounds = 0
        bound = 0
        for kind in range(3):
            judged.there[m, kind] = 0
            most = groups.max_machine[g]
            domain = m
            if kind == 1:
                most, domain = groups.max_rack[g], machines.rack[m]
            elif kind == 2:
                most, domain = groups.max_power[g], machines.power[m]
            if job >= 0 and most > 0:
                there = count_of(counts, job, kind, domain)
                judged.there[m, kind] = there
                if there >= most:
                    bounds += 1
                    if bound == 0:
                        bound = kind + 1
        crashed = has_crashed(groups, g, m)
        first = -1
        if failures[m] > 0:
            first = failed[m]
        elif not machines.up[m]:
            first = state
        elif lacked > 0:
            first = state + 1 + lacks
        elif bounds > 0:
            first = state + axis + bound
        elif crashed:
            first = state + axis + 4
        elif few:
            first = state + axis + 5
        judged.first[m] = first
        obstacles = failures[m] + lacked + bounds + (1 if few else 0)
        only = -1
        if obstacles == 1 and machines.up[m] and not crashed:
            only = first
        judged.only[m] = only
        judged.lacking[m] = lacks
        # Constraints and bounds weigh more than any shortage: each is another decision of the user's.
        judged.distance[m] = axis * (failures[m] + bounds) + short
        flags = 0
        if able:
            flags |= ABLE
        if machines.up[m] and not crashed:
            flags |= OPEN
        if evictable:
            flags |= EVICTABLE
        if by_reservation:
            flags |= BY_RESERVATION
        judged.flags[m] = flags
