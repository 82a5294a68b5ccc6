"""Functions that score a machine for a task. Each returns a number between about -1 and 1. A higher score is better."""

from __future__ import annotations

from quota.vocabulary.resources import ACCELERATORS
from scheduling.core.kernels.compiled import compiled, inlined
from scheduling.core.kernels.counts import POWER, RACK, count_of, count_on
from scheduling.core.kernels.fragments import added_fragments, free_devices
from scheduling.core.vocabulary.kernel_arrays import Floats, Groups, MachineArrays, SearchParams, TaskCounts

# Parts of a score, by column of `Placed.parts`; each has its weight in `policy.Weights`.
PACKING, SPREAD_MACHINE, SPREAD_RACK, SPREAD_POWER, SOFT, PACKAGES, MIXING, PREEMPTION = range(8)
PART_NAMES = (
    "packing",
    "spread-machine",
    "spread-rack",
    "spread-power-domain",
    "soft-constraints",
    "packages",
    "mixing",
    "preemption",
)
PARTS = len(PART_NAMES)
# How many of the machines that were not taken a placement tells of.
RUNNERS = 3
# How `packing` is measured, chosen per cell.
HYBRID, BEST_FIT, E_PVM = range(3)
PACKINGS = {"hybrid": HYBRID, "best-fit": BEST_FIT, "e-pvm": E_PVM}

_EPVM_BASE = 10.0
_LEFT, _STRANDED = 0.25, 0.75
_NEARLY_FULL = 0.05  # of a machine of which less is left, it matters little what is stranded

# What a fragment of a device costs, and for tasks without devices, a free device on their machine.
_FRAGMENT, _FREE_DEVICE = 1.25, 0.25


@inlined
def packing(machines: MachineArrays, knobs: SearchParams, m: int, groups: Groups, g: int) -> float:
    """Return a score for how well machine `m` would be used after a task of group `g` is placed on it. If the group is
    placed by limit, the used capacity is the sum of the limits of tasks that are placed by limit. Otherwise it is the
    sum of all reservations.

    The hybrid scorer prefers machines with little remaining capacity, and especially with little stranded capacity.
    Stranded capacity cannot be used, because another resource runs out first. Resources that a machine lacks do not
    count.
    """
    total = 0.0
    left = 0.0
    least = 1.0
    cost = 0.0
    for r in range(groups.limit.shape[1]):
        weight = knobs.resources[r]
        share = machines.share[m, r]
        if weight == 0.0 or share == 0.0:
            continue
        used = machines.prod_limit[m, r] if groups.by_limit[g] else machines.reserved[m, r]
        after = max(0.0, (machines.capacity[m, r] - used - groups.limit[g, r]) * share)
        total += weight
        left += weight * after
        least = min(least, after)
        if knobs.packing == E_PVM:
            cost += weight * (_EPVM_BASE ** (1.0 - after) - _EPVM_BASE ** min(1.0, used * share))
    if total == 0.0:
        return 0.0
    if knobs.packing == E_PVM:
        return -cost / (total * _EPVM_BASE)  # one cost over all resources: spreads load over machines (§3.2)
    left /= total
    if knobs.packing == BEST_FIT:
        return -left  # the tightest machine
    return -(_LEFT * left + _STRANDED * (left - least) / (left + _NEARLY_FULL))


@compiled
def devices_kept(machines: MachineArrays, groups: Groups, g: int, m: int) -> float:
    """Return a score that is higher if the placement leaves more free devices that other tasks can use. For a task with
    devices, the score is higher if the placement adds fewer fragments (free devices that typical tasks cannot use, see
    `fragments.py`). For a task without devices, the score is higher if the machine has fewer free devices.
    """
    if groups.limit[g, ACCELERATORS] > 0:
        return -_FRAGMENT * added_fragments(machines, groups, g, m)
    return -_FREE_DEVICE * free_devices(machines, m)


@inlined
def spread(counts: TaskCounts, job: int, number: int) -> float:
    """Return a score from -1 to 0: minus the share of the job's tasks that would fail if a machine, rack or power
    domain failed (§4). `number`: how many tasks of the job run there.
    """
    return float(-number / counts.size[job])


@inlined
def liking(groups: Groups, g: int, m: int) -> float:
    """Return the share of the soft constraints of group `g` that machine `m` satisfies, from 0 to 1. Each constraint
    counts by its weight.
    """
    return groups.liking[groups.soft[g], m] if groups.soft[g] >= 0 else 0.0


@inlined
def present(groups: Groups, g: int, m: int) -> float:
    """Return how much of the group's packages machine `m` has installed, as a share of their bytes from 0 to 1. Return
    0 if the group names no packages. Installation takes about 80 % of the time to start a task (§3.2).
    """
    return groups.present[groups.packages[g], m] if groups.packages[g] >= 0 else 0.0


@inlined
def mixing(machines: MachineArrays, knobs: SearchParams, m: int, by_limit: bool) -> float:
    """Return a score that is lower if tasks of the same kind as the new task use more of machine `m`. There are two
    kinds: tasks that are placed by limit (`by_limit`), and the others. So machines get tasks of high and low priority,
    and those of high priority can use more in load spikes (§3.2).
    """
    found = 0.0
    for r in range(machines.capacity.shape[1]):
        if knobs.resources[r] > 0.0:
            prod = machines.prod_limit[m, r]
            mine = prod if by_limit else max(0, machines.reserved[m, r] - prod)
            found += knobs.resources[r] * min(1.0, mine * machines.share[m, r])
    return -found


@inlined
def own_score(machines: MachineArrays, groups: Groups, knobs: SearchParams, g: int, m: int, parts: Floats) -> float:
    """Return the part of the score that depends only on the group and the machine. Only this part is cached. It is a
    sum, and its terms are also written into `parts`.
    """
    fit = packing(machines, knobs, m, groups, g)
    if knobs.packing == HYBRID and groups.popularity.shape[0] > 0:  # some task of the cell asks for devices
        fit += devices_kept(machines, groups, g, m)
    parts[PACKING] = knobs.weights[PACKING] * fit
    parts[SOFT] = knobs.weights[SOFT] * liking(groups, g, m)
    parts[MIXING] = knobs.weights[MIXING] * mixing(machines, knobs, m, groups.by_limit[g])
    parts[PACKAGES] = knobs.weights[PACKAGES] * present(groups, g, m)
    return float(parts[PACKING] + parts[SOFT] + parts[MIXING] + parts[PACKAGES])


@inlined
def job_score(
    machines: MachineArrays, counts: TaskCounts, knobs: SearchParams, job: int, m: int, parts: Floats
) -> float:
    """Return the part of the score of machine `m` that depends on the job. It is at most 0 and never cached. Its terms
    are also written into `parts`.
    """
    parts[SPREAD_MACHINE] = parts[SPREAD_RACK] = parts[SPREAD_POWER] = 0.0
    if counts.row[job] < 0:
        return 0.0
    weights = knobs.weights
    parts[SPREAD_MACHINE] = weights[SPREAD_MACHINE] * spread(counts, job, count_on(counts, machines, job, m))
    parts[SPREAD_RACK] = weights[SPREAD_RACK] * spread(counts, job, count_of(counts, job, RACK, machines.rack[m]))
    parts[SPREAD_POWER] = weights[SPREAD_POWER] * spread(counts, job, count_of(counts, job, POWER, machines.power[m]))
    return float(parts[SPREAD_MACHINE] + parts[SPREAD_RACK] + parts[SPREAD_POWER])
