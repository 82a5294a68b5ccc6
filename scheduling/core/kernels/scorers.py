"""What makes one machine better than another: each answers a number where more is better, about -1 to 1."""

from __future__ import annotations

from scheduling.core.kernels.compiled import inlined
from scheduling.core.kernels.counts import count_of
from scheduling.core.layout import Counts, Floats, Groups, Knobs, Machines

# Parts of a score, by column of `Placed.parts`; each has its weight in `policy.Weights`.
PACKING, SPREAD_MACHINE, SPREAD_RACK, SPREAD_POWER, SOFT, PACKAGES, MIXING, PREEMPTION = range(8)
PART_NAMES = (
    "packing", "spread-machine", "spread-rack", "spread-power-domain", "soft-constraints", "packages",
    "mixing", "preemption",
)  # fmt: skip
PARTS = len(PART_NAMES)
# How `packing` is measured, chosen per cell.
HYBRID, BEST_FIT, E_PVM = range(3)
PACKINGS = {"hybrid": HYBRID, "best-fit": BEST_FIT, "e-pvm": E_PVM}

_EPVM_BASE = 10.0
_LEFT, _STRANDED = 0.25, 0.75
_NEARLY_FULL = 0.05  # of a machine of which less is left, it matters little what is stranded


@inlined
def packing(machines: Machines, knobs: Knobs, m: int, groups: Groups, g: int) -> float:
    """How well the machine's room is used after the task: by limits for prod, by reservations otherwise.

    The hybrid weighs what would be left (1 part), and what share of it would be stranded (3 parts): of no use to
    tasks of the usual mix, because another resource runs out first. What a machine hasn't got counts nothing.
    """
    total = 0.0
    left = 0.0
    least = 1.0
    cost = 0.0
    for r in range(groups.limit.shape[1]):
        weight = knobs.resources[r]
        capacity = machines.capacity[m, r]
        if weight == 0.0 or capacity == 0:
            continue
        used = machines.prod_limit[m, r] if groups.by_limit[g] else machines.reserved[m, r]
        after = max(0.0, (capacity - used - groups.limit[g, r]) / capacity)
        total += weight
        left += weight * after
        least = min(least, after)
        if knobs.packing == E_PVM:
            cost += weight * (_EPVM_BASE ** (1.0 - after) - _EPVM_BASE ** min(1.0, used / capacity))
    if total == 0.0:
        return 0.0
    if knobs.packing == E_PVM:
        return -cost / (total * _EPVM_BASE)  # one cost over all resources: spreads load over machines (§3.2)
    left /= total
    if knobs.packing == BEST_FIT:
        return -left  # the tightest machine
    return -(_LEFT * left + _STRANDED * (left - least) / (left + _NEARLY_FULL))


@inlined
def spread(counts: Counts, job: int, kind: int, domain: int) -> float:
    """The share of the job that would fail with this machine, rack or power domain (§4)."""
    size = counts.size[job]
    if size <= 1:
        return 0.0
    return float(-count_of(counts, job, kind, domain) / size)


@inlined
def liking(groups: Groups, g: int, m: int) -> float:
    """The share of soft constraints that hold."""
    return groups.liking[groups.soft[g], m] if groups.soft[g] >= 0 else 0.0


@inlined
def mixing(machines: Machines, knobs: Knobs, m: int, by_limit: bool) -> float:
    """High and low priority share machines, so that the high may expand in a spike of load (§3.2)."""
    share = 0.0
    for r in range(machines.capacity.shape[1]):
        capacity = machines.capacity[m, r]
        if knobs.resources[r] > 0.0 and capacity > 0:
            prod = machines.prod_limit[m, r]
            mine = prod if by_limit else max(0, machines.reserved[m, r] - prod)
            share += knobs.resources[r] * min(1.0, mine / capacity)
    return -share


@inlined
def own_score(machines: Machines, groups: Groups, knobs: Knobs, g: int, m: int, parts: Floats) -> float:
    """The parts that depend on class and machine alone: they are what is cached."""
    parts[PACKING] = knobs.weights[PACKING] * packing(machines, knobs, m, groups, g)
    parts[SOFT] = knobs.weights[SOFT] * liking(groups, g, m)
    parts[MIXING] = knobs.weights[MIXING] * mixing(machines, knobs, m, groups.by_limit[g])
    return float(parts[PACKING] + parts[SOFT] + parts[MIXING])


@inlined
def job_score(machines: Machines, counts: Counts, knobs: Knobs, job: int, m: int, parts: Floats) -> float:
    """The overlay of the job: never cached."""
    if counts.size[job] <= 1:
        parts[SPREAD_MACHINE] = parts[SPREAD_RACK] = parts[SPREAD_POWER] = 0.0
        return 0.0
    parts[SPREAD_MACHINE] = knobs.weights[SPREAD_MACHINE] * spread(counts, job, 0, m)
    parts[SPREAD_RACK] = knobs.weights[SPREAD_RACK] * spread(counts, job, 1, machines.rack[m])
    parts[SPREAD_POWER] = knobs.weights[SPREAD_POWER] * spread(counts, job, 2, machines.power[m])
    return float(parts[SPREAD_MACHINE] + parts[SPREAD_RACK] + parts[SPREAD_POWER])
