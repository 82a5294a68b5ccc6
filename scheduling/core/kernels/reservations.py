"""The kernels that compute the reservations of running tasks from each new set of usage samples (§5.5). Tests compare
them with simple versions in `tests/unit/core/twins_of_reclaim.py`.
"""

from __future__ import annotations

import numpy as np

from scheduling.core.kernels.compiled import allocating, kernel
from scheduling.core.vocabulary.kernel_arrays import Estimates, Estimating, History, Ints, Ints32, Reserved

_SPREAD = np.int64(0x9E3779B97F4A7C15 - 2**64)  # Fibonacci hashing: task ids of one job differ in their low bits alone
# Values of `Estimates.verdict`.
HELD, LOWERED, RAISED = 0, 1, 2


@allocating
def find(ids: Ints, incarnations: Ints32, slots: Ints, wanted: Ints, wanted_incarnations: Ints32, found: Ints) -> None:
    """For each sample `w`, find the task with the id `wanted[w]` and the incarnation `wanted_incarnations[w]`. Write
    into `found[w]` the position of this task in `slots`, or -1 if `slots` does not contain the task. `ids`,
    `incarnations`: the id and the incarnation of each task, by slot.
    """
    bits = 4
    while (1 << bits) < 2 * slots.shape[0]:
        bits += 1
    mask = (1 << bits) - 1
    table = np.full(1 << bits, -1, dtype=np.int32)
    for k in range(slots.shape[0]):
        at = ((ids[slots[k]] * _SPREAD) >> 20) & mask
        while table[at] >= 0:
            at = (at + 1) & mask
        table[at] = k
    for w in range(wanted.shape[0]):
        found[w] = -1
        at = ((wanted[w] * _SPREAD) >> 20) & mask
        while table[at] >= 0:
            t = slots[table[at]]
            if ids[t] == wanted[w]:
                if incarnations[t] == wanted_incarnations[w]:
                    found[w] = table[at]
                break
            at = (at + 1) & mask


@kernel
def estimate(reserved: Reserved, history: History, demand: Ints, sample: Ints, how: Estimating, out: Estimates) -> None:
    """Add one sample to the usage history of each running task, and write its new reservation into `out`. `sample`: for
    each task, the row of `demand` that has the task's measured demand, or -1 if the task was not measured.
    """
    kinds = history.peak.shape[1]
    for k in range(reserved.slots.shape[0]):
        t = reserved.slots[k]
        fresh = history.id[t] != reserved.id[t] or history.incarnation[t] != reserved.incarnation[t]
        if fresh:
            history.id[t], history.incarnation[t] = reserved.id[t], reserved.incarnation[t]
            history.observed_s[t] = 0.0
        fixed = how.off or reserved.job_fixed[reserved.job[t]]
        s = sample[k]
        shape, old = reserved.shape[t], history.shape[t]
        history.shape[t] = shape
        observed_s = history.observed_s[t]
        settled = s >= 0 and observed_s >= how.settle_s
        verdict, gap = HELD, 0.0
        for r in range(kinds):
            limit = reserved.shape_limit[shape, r]
            reservation = reserved.reservation[t, r]
            now = history.estimate[t, r]
            if fresh:
                history.peak[t, r] = history.before[t, r] = 0.0
            if fresh or (shape != old and reserved.shape_limit[old, r] != limit):
                now = float(reservation)
            used = np.int64(0)
            if fixed or limit == 0:
                now = float(limit)
            elif s >= 0:
                used = demand[s, r]
                peak, before = history.peak[t, r], history.before[t, r]
                turns = how.turns_per_s[r]
                if np.floor(observed_s * turns) != np.floor((observed_s + how.passed_s) * turns):
                    peak, before = 0.0, peak
                    history.before[t, r] = before
                peak = max(peak, float(used))
                history.peak[t, r] = peak
                target = min(float(limit), max(how.floor[r], max(peak, before) * (1.0 + how.margin[r])))
                if used > now:
                    now = target
                elif settled and now > target:
                    now = target + (now - target) * how.keep
            history.estimate[t, r] = now
            wanted = min(limit, np.int64(np.ceil(now * how.units[r])) * how.unit[r])
            out.wanted[k, r] = wanted
            change = wanted - reservation
            if change > 0 and (fixed or used > reservation or change >= how.step * limit):
                verdict = RAISED
            elif change < 0:
                gap = max(gap, -change / limit)
                if -change >= how.step * limit:
                    verdict = max(verdict, LOWERED)
        if s >= 0:
            history.observed_s[t] = observed_s + how.passed_s
        out.verdict[k] = verdict
        out.gap[k] = gap
