"""Why a group fits nowhere: what ruled each machine out, and what would help (§2.6)."""

from __future__ import annotations

from scheduling.core.kernels.compiled import compiled
from scheduling.core.kernels.counts import count_of
from scheduling.core.kernels.filters import (
    FREE,
    MACHINE_FULL,
    POWER_FULL,
    RACK_FULL,
    has_crashed,
    spread_excess,
)
from scheduling.core.layout import Counts, Groups, Ints, Ints32, Levels, Machines, Verdicts


@compiled
def rule_out(
    machines: Machines, levels: Levels, groups: Groups, g: int, counts: Counts, failed: Ints32, failures: Ints32,
    verdicts: Verdicts
) -> None:  # fmt: skip
    """Give each machine its verdict. `failed`: its first hard constraint that fails, -1; `failures`: how many do."""
    limit = groups.limit[g]
    left = levels.left[groups.level[g]]
    axis = limit.shape[0]
    hard = verdicts.constraint.shape[0]
    for m in machines.order:
        lacks = -1
        lacked = 0
        hold = failures[m] == 0
        for r in range(axis):
            if limit[r] == 0:
                continue
            if left[m, r] < limit[r]:
                lacked += 1
                if lacks < 0:
                    lacks = r
            if machines.capacity[m, r] < limit[r]:
                hold = False
        excess = spread_excess(machines, groups, g, m, counts)
        crashed = has_crashed(groups, g, m)
        if hold:
            verdicts.fits[1] += 1
        if failures[m] > 0:
            verdicts.constraint[failed[m]] += 1
        elif not machines.up[m]:
            verdicts.state[0] += 1
        elif lacked > 0:
            verdicts.resource[lacks] += 1
            verdicts.largest[lacks] = max(verdicts.largest[lacks], left[m, lacks])
        elif excess != FREE:
            verdicts.spread[excess] += 1
        elif crashed:
            verdicts.crashed[0] += 1
        else:
            verdicts.fits[0] += 1
        if not machines.up[m] or crashed or failures[m] + lacked + (1 if excess != FREE else 0) != 1:
            continue
        if failures[m] == 1:
            verdicts.only[failed[m], 1] += 1
        elif lacked == 1:
            _keep_best(verdicts.only, hard + lacks, left[m, lacks])
        else:
            job = groups.job[g]
            if excess == MACHINE_FULL:
                there = count_of(counts, job, 0, m)
            elif excess == RACK_FULL:
                there = count_of(counts, job, 1, machines.rack[m])
            else:
                there = count_of(counts, job, 2, machines.power[m])
            # The bound that stops it first may hide another one: only promise what is sure.
            if _only_bound(machines, groups, g, m, counts, excess):
                _keep_best(verdicts.only, hard + axis + excess, -(there + 1))


@compiled
def _only_bound(machines: Machines, groups: Groups, g: int, m: int, counts: Counts, excess: int) -> bool:
    job = groups.job[g]
    rack = groups.max_rack[g] > 0 and count_of(counts, job, 1, machines.rack[m]) >= groups.max_rack[g]
    power = groups.max_power[g] > 0 and count_of(counts, job, 2, machines.power[m]) >= groups.max_power[g]
    if excess == MACHINE_FULL:
        return not rack and not power
    return excess == POWER_FULL or not power


@compiled
def _keep_best(only: Ints, row: int, value: int) -> None:
    """The greatest value, and how many machines offer it."""
    if only[row, 1] == 0 or value > only[row, 0]:
        only[row, 0], only[row, 1] = value, 1
    elif value == only[row, 0]:
        only[row, 1] += 1
