"""The pass over the queue. For each task, the pass searches for machines that can hold the task, and chooses the best
of them. Tasks of one group share their search.

    queue ─► group of the task ─► candidates (cached) ─► examine more machines until the sample is full ─► best
                     none fits ─► the same again, with preemption within disruption budgets
                 none fits then ─► the same again, with preemption that breaks budgets
               none fits at all ─► the group is full for the rest of the pass

For each group, the pass examines the machines one after the other. This is the group's *walk*, and each group starts at
another machine. The machines that can hold a task of the group become its *candidates*. The sample of a group is full
when the group has a fixed number of candidates. A group is full when no machine can hold another of its tasks.

During a pass, the free capacity of a machine usually only decreases. So if a machine was too full, the walk does not
examine it again in the same stage (row of the diagram). There is one exception: a preemption can free more than the new
task needs. Then the machine is offered to every group, which can use it without preemption.

If capacity is scarce for a group, its walk continues when the sample is full. For each task, the pass examines a few
more machines, and a better machine replaces the worst candidate. Such a walk passes over machines that can hold a task,
so it starts again after the last machine. If one task of a gang fits on no machine, no task of the gang is placed. Then
capacity may be booked for it (`booking/`), which tasks after it in the queue leave free.

Tests compare the pass with a slow and simple version in `tests/unit/core/twins.py`.
"""

from __future__ import annotations

import numpy as np

from quota.vocabulary.resources import ACCELERATORS, PORTS
from scheduling.core.kernels.compiled import compiled, constant, inlined, kernel
from scheduling.core.kernels.cores import cores_of, cores_suit, hold_cores
from scheduling.core.kernels.counts import count_in
from scheduling.core.kernels.devices import hold_devices, pick_devices, share_of
from scheduling.core.kernels.filters import (
    BLOCK,
    FREE,
    is_up,
    lacking,
    leaves_booked,
    may_hold,
    satisfies,
    scan,
    spread_excess,
    use_extra,
)
from scheduling.core.kernels.free_on_machines import room
from scheduling.core.kernels.scorers import PACKAGES, PARTS, PREEMPTION, RUNNERS, job_score, own_score
from scheduling.core.kernels.victims import NO_BUDGET, preemption_cost, victims_on
from scheduling.core.vocabulary.kernel_arrays import (
    Cache,
    Floats,
    Ints,
    Ints32,
    MachineArrays,
    Running,
    SearchParams,
    Tables,
)

# How far the search of a group has come.
DIRECT, PREEMPTING, BREAKING, FULL = range(4)
# What `Placed.machine` contains for a task that has no machine: no machine fits, or the pass had placed enough tasks
# before, or as many tasks of the job run as its `max_running` allows.
NONE_FITS, NOT_TRIED, HELD_BACK = -1, -2, -3
# A search for better machines passes at most so many for each that it may compare, and scans them in short steps.
AHEAD, STEP = 16, 32
# A task comes, or what came goes again.
_COMES, _GOES, _NONE = constant(1), constant(-1), constant(0)


@inlined
def _victims(t: Tables, g: int, m: int) -> int:
    """Write into `t.scratch` the tasks that a task of group `g` would preempt on machine `m`, in the present stage of
    the search. Return the number of these tasks, or -1 if the new task does not fit even then.
    """
    return victims_on(
        t.machines,
        t.running,
        m,
        t.groups.limit[g],
        t.groups.by_limit[g],
        t.groups.ceiling[g],
        t.groups.cores[g],
        t.cache.stage[g] == PREEMPTING and t.knobs.budgets,
        t.scratch.victims,
        t.scratch.relief,
    )


@compiled
def _evaluate(t: Tables, g: int, m: int) -> float:
    """Return the part of the score of machine `m` for group `g` that may be cached, or -inf if the machine cannot hold
    a task of the group. Call this function only for machines that passed `scan`.
    """
    if not may_hold(t.machines, t.groups, g, m, t.counts) or not leaves_booked(t.bookings, t.groups, g, m):
        return -np.inf
    parts = t.scratch.parts
    parts[PREEMPTION] = 0.0
    if t.cache.stage[g] != DIRECT:
        number = _victims(t, g, m)
        if number < 0:
            return -np.inf
        parts[PREEMPTION] = t.knobs.weights[PREEMPTION] * preemption_cost(t.running, t.scratch.victims, number)
    elif not cores_suit(t.groups.cores[g], t.machines.cores[m], t.machines.owned[m], t.machines.sharing[m]) or (
        t.groups.limit[g, ACCELERATORS] > 0 and pick_devices(t.machines.devices, m, t.groups.limit[g, ACCELERATORS]) < 0
    ):
        return -np.inf
    return float(own_score(t.machines, t.groups, t.knobs, g, m, parts) + parts[PREEMPTION])


@inlined
def _fits(t: Tables, g: int, m: int) -> bool:
    """Return whether machine `m` passes the checks of `scan` for group `g`: it is up, has enough free capacity and
    satisfies the hard constraints.
    """
    level = t.groups.direct[g] if t.cache.stage[g] == DIRECT else t.groups.level[g]
    return lacking(t.levels, level, m, t.groups, g) < 0 and is_up(t.machines, m) and satisfies(t.groups, g, m)


@compiled
def _drop(cache: Cache, g: int, k: int) -> None:
    end = cache.filled[g] - 1
    cache.machine[g, k] = cache.machine[g, end]
    cache.version[g, k] = cache.version[g, end]
    cache.score[g, k] = cache.score[g, end]
    cache.filled[g] = end


@compiled
def _among(cache: Cache, g: int, m: int) -> bool:
    for k in range(cache.filled[g]):  # noqa: SIM110 - compiled: no generators
        if cache.machine[g, k] == m:
            return True
    return False


@inlined
def _has_room(t: Tables, g: int, m: int) -> bool:
    """Return whether machine `m` has enough free capacity for a task of group `g` without preemption."""
    return lacking(t.levels, t.groups.direct[g], m, t.groups, g) < 0


@compiled
def _keep(t: Tables, g: int, k: int, m: int, score: float) -> None:
    cache = t.cache
    cache.machine[g, k], cache.version[g, k], cache.score[g, k] = m, t.machines.version[m], score
    cache.filled[g] = max(cache.filled[g], k + 1)


@compiled
def _offer(t: Tables, g: int) -> None:
    """Add to the candidates of group `g` the machines on which this pass preempted tasks, if a task of the group now
    fits there without preemption. If the list of candidates is full, such a machine replaces the worst candidate, but
    only if the worst candidate needs preemption.
    """
    cache, width = t.cache, t.cache.machine.shape[1]
    while cache.offered[g] < t.placed.figures[3]:
        m = t.placed.emptied[cache.offered[g]]
        if _has_room(t, g, m) and not _among(cache, g, m):
            k = cache.filled[g]
            if k == width:
                k = np.argmin(cache.score[g])
                if _has_room(t, g, cache.machine[g, k]):
                    return  # so have all the others: the rest can wait
            t.placed.figures[1] += 1
            score = _evaluate(t, g, m) if _fits(t, g, m) else -np.inf
            if score != -np.inf:
                _keep(t, g, k, m, score)
        cache.offered[g] += 1


@compiled
def _nearby(t: Tables, g: int) -> None:
    """Add to the candidates of group `g` some machines that have packages of the group, wherever they are in its walk.
    Stop when half of the sample are machines with such packages.
    """
    cache, groups, width = t.cache, t.groups, t.cache.machine.shape[1]
    row = groups.packages[g]
    held = 0
    for k in range(cache.filled[g]):
        if groups.present[row, cache.machine[g, k]] > 0.0:
            held += 1
    number = groups.near_to[row] - groups.near_from[row]
    while 2 * held < width and cache.filled[g] < width and cache.near[g] < number:
        m = groups.near[groups.near_from[row] + cache.near[g]]
        cache.near[g] += 1
        if not _fits(t, g, m) or _among(cache, g, m):
            continue
        t.placed.figures[1] += 1
        score = _evaluate(t, g, m)
        if score != -np.inf:
            _keep(t, g, cache.filled[g], m, score)
            held += 1


@compiled
def _replace_worst(t: Tables, g: int, m: int, score: float) -> None:
    """Replace the worst candidate of group `g` by machine `m` if `m` has a better score. The worse of the two machines
    can still hold a task. So store in `passed_over` that the walk must examine it again.
    """
    cache = t.cache
    worst = 0
    for k in range(1, cache.filled[g]):
        if cache.score[g, k] < cache.score[g, worst]:
            worst = k
    if score > cache.score[g, worst]:
        _keep(t, g, worst, m, score)
    cache.passed_over[g] = True


@compiled
def _candidates(t: Tables, g: int) -> None:
    """Update the scores of the candidates of group `g`. Then examine further machines until there are enough
    candidates.
    """
    machines, cache, figures = t.machines, t.cache, t.placed.figures
    k = 0
    while k < cache.filled[g]:
        m = cache.machine[g, k]
        if cache.version[g, k] != machines.version[m]:
            figures[1] += 1
            score = _evaluate(t, g, m) if _fits(t, g, m) else -np.inf
            keep = score != -np.inf
            cache.score[g, k] = score
            cache.version[g, k] = machines.version[m]
        else:
            figures[0] += 1
            # A sibling elsewhere in the rack changes no version.
            keep = t.groups.job[g] < 0 or spread_excess(machines, t.groups, g, m, t.counts) == FREE
        if keep:
            k += 1
        else:
            _drop(cache, g, k)
    if cache.stage[g] == DIRECT and cache.cursor[g] == 0:
        cache.offered[g] = figures[3]  # its walk will come to them
    _offer(t, g)
    if t.groups.packages[g] >= 0:  # asked here: a call hands over all tables, for each task
        _nearby(t, g)
    total = machines.slot.shape[0]
    width = cache.machine.shape[1]
    level = t.groups.direct[g] if cache.stage[g] == DIRECT else t.groups.level[g]
    further = t.groups.further[g] if cache.stage[g] == DIRECT else 0
    if further > 0 and cache.cursor[g] == 0 and not cache.passed_over[g] and t.groups.limit[g, ACCELERATORS] > 0:
        further = total  # devices are few and easily broken up: the first candidates are the best of all machines
    known = further > 0 or cache.offered[g] > 0 or cache.near[g] > 0
    looked = 0  # machines compared with a full list of candidates
    seen = 0  # machines that were only compared, and those on the way to them
    while cache.filled[g] < width or (looked < further and seen < AHEAD * further):
        if cache.cursor[g] >= total:
            if not cache.passed_over[g]:
                break
            cache.cursor[g], cache.passed_over[g] = 0, False
        full = cache.filled[g] == width
        first = t.groups.start[g] + cache.cursor[g]
        if first >= total:
            first -= total
        n = min(STEP if full else BLOCK, total - first, total - cache.cursor[g])
        if not scan(machines, t.levels, level, t.groups, g, first, n, t.scratch.mask):
            cache.cursor[g] += n
            seen += n if full else 0
            continue
        done = n
        for i in range(n):
            if not t.scratch.mask[i] or (known and _among(cache, g, first + i)):
                continue
            figures[1] += 1
            score = _evaluate(t, g, first + i)
            if score == -np.inf:
                continue
            if full:
                _replace_worst(t, g, first + i, score)
                looked += 1
            else:
                _keep(t, g, cache.filled[g], first + i, score)
            if looked == further if full else cache.filled[g] == width:
                done = i + 1
                break
        cache.cursor[g] += done
        seen += done if full else 0


@compiled
def _rank_in(top: Ints, scores: Floats, rank: Ints32, m: int, score: float) -> None:
    """Insert machine `m` into `top`, the list of the best machines so far, and `score` into `scores`, if the score is
    high enough. Order: the highest score first; among equal scores, the lowest `rank` (lowest machine id) first.
    """
    k = RUNNERS + 1
    while k > 0 and (
        top[k - 1] < 0 or score > scores[k - 1] or (score == scores[k - 1] and rank[m] < rank[top[k - 1]])
    ):
        if k <= RUNNERS:
            top[k], scores[k] = top[k - 1], scores[k - 1]
        k -= 1
    if k <= RUNNERS:
        top[k], scores[k] = m, score


@compiled
def _best(t: Tables, g: int, job: int, last: int) -> int:
    """Return the candidate of group `g` with the highest score, or -1 if no machine can hold the task. Write the next
    best machines into `t.scratch`.

    `last`: the machine on which the task ran before, or -1 if there is none or if the task names packages. If the task
    fits without preemption, the machine `last` is compared too, even if it is not a candidate.
    """
    cache, parts = t.cache, t.scratch.parts
    for k in range(RUNNERS + 1):
        t.scratch.top[k] = -1
    known = False
    for k in range(cache.filled[g]):
        m = cache.machine[g, k]
        most = cache.score[g, k] + (t.knobs.weights[PACKAGES] if m == last else 0.0)
        if t.scratch.top[RUNNERS] >= 0 and most < t.scratch.top_score[RUNNERS]:
            known = known or m == last
            continue  # spreading only lowers it
        score = cache.score[g, k] + job_score(t.machines, t.counts, t.knobs, job, m, parts)
        if m == last:
            score += t.knobs.weights[PACKAGES]
            known = True
        _rank_in(t.scratch.top, t.scratch.top_score, t.machines.rank, m, score)
    if last >= 0 and not known and cache.stage[g] == DIRECT and _fits(t, g, last):
        score = _evaluate(t, g, last)
        if score != -np.inf:
            score += t.knobs.weights[PACKAGES] + job_score(t.machines, t.counts, t.knobs, job, last, parts)
            _rank_in(t.scratch.top, t.scratch.top_score, t.machines.rank, last, score)
    return int(t.scratch.top[0])


@compiled
def _begin(cache: Cache, g: int, stage: int) -> None:
    cache.stage[g], cache.cursor[g], cache.filled[g], cache.offered[g] = stage, 0, 0, 0
    cache.near[g], cache.passed_over[g] = 0, False


@compiled
def _next_stage(cache: Cache, knobs: SearchParams, g: int) -> None:
    stage = cache.stage[g] + 1
    if stage == PREEMPTING and not knobs.preempting:
        stage = FULL
    if stage == BREAKING and not knobs.budgets:
        stage = FULL
    _begin(cache, g, stage)


@compiled
def _leave(machines: MachineArrays, running: Running, m: int, victim: int, by: int) -> None:
    """Subtract the resources of the preempted task in slot `victim` from the used resources of machine `m` (`by` = 1),
    or add them again (`by` = -1).
    """
    job = running.job[victim]
    running.gone[victim] = by > 0
    for r in range(machines.capacity.shape[1]):
        machines.reserved[m, r] -= by * running.reservation[victim, r]
        if running.job_by_limit[job]:
            machines.prod_limit[m, r] -= by * running.shape_limit[running.shape[victim], r]
    if running.devices[victim] != 0:
        share = share_of(running.shape_limit[running.shape[victim], ACCELERATORS])
        hold_devices(machines, m, running.devices[victim], by * share)
    hold_cores(machines, m, cores_of(running, victim), -by)
    if running.budget[job] != NO_BUDGET:
        running.budget[job] -= by
        for k in range(machines.version.shape[0]):
            machines.version[k] += 1  # classes that counted on the budget on other machines look again


@compiled
def _hold(t: Tables, g: int, job: int, m: int, devices: int, by: int) -> None:
    """Add the limits of one task of group `g` to the used resources of machine `m` (`by` = 1), or subtract them again
    (`by` = -1). `devices`: bit mask of the accelerators that the task gets.
    """
    machines = t.machines
    for r in range(machines.capacity.shape[1]):
        machines.reserved[m, r] += by * t.groups.limit[g, r]
        if t.groups.by_limit[g]:
            machines.prod_limit[m, r] += by * t.groups.limit[g, r]
    machines.ports_free[m] -= by * t.groups.limit[g, PORTS]
    if devices > 0:
        hold_devices(machines, m, devices, -by * share_of(t.groups.limit[g, ACCELERATORS]))
    hold_cores(machines, m, t.groups.cores[g], by)
    machines.version[m] += 1
    room(machines, t.running, t.levels, m, t.knobs.asked, t.scratch.sums)
    count_in(machines, t.counts, job, m, by)


@compiled
def _find(t: Tables, i: int) -> int:
    """Return the best machine for the task at position `i` of the queue, or -1 if none fits."""
    g, last = t.queue.group[i], t.queue.last[i]
    if not t.knobs.caching:
        _begin(t.cache, g, DIRECT)
    while t.cache.stage[g] != FULL:
        _candidates(t, g)
        best = _best(t, g, t.queue.job[i], last)
        if best >= 0:
            return best
        _next_stage(t.cache, t.knobs, g)
    return NONE_FITS


@compiled
def _take(t: Tables, i: int, m: int, preempted: int) -> int:
    """Place the task at position `i` of the queue on machine `m`, and preempt tasks there if the stage allows it.
    `preempted`: the number of tasks that the pass preempted before this call. Return the number including this call.
    """
    g, job, placed, parts = t.queue.group[i], t.queue.job[i], t.placed, t.scratch.parts
    number = _NONE
    for k in range(PARTS):
        parts[k] = 0.0
    if t.cache.stage[g] != DIRECT:
        number = _victims(t, g, m)
        parts[PREEMPTION] = t.knobs.weights[PREEMPTION] * preemption_cost(t.running, t.scratch.victims, number)
    own_score(t.machines, t.groups, t.knobs, g, m, parts)
    job_score(t.machines, t.counts, t.knobs, job, m, parts)
    if m == t.queue.last[i]:
        parts[PACKAGES] += t.knobs.weights[PACKAGES]
    placed.machine[i] = m
    for k in range(PARTS):
        placed.parts[i, k] = parts[k]
    for k in range(RUNNERS):
        placed.runner[i, k] = t.scratch.top[k + 1]
        placed.runner_score[i, k] = t.scratch.top_score[k + 1]
    placed.victims_from[i] = preempted
    for k in range(number):
        placed.victims[preempted] = t.scratch.victims[k]
        preempted += 1
        _leave(t.machines, t.running, m, t.scratch.victims[k], _COMES)
    placed.victims_to[i] = preempted
    if number > 0:
        placed.emptied[placed.figures[3]] = m
        placed.figures[3] += 1
    devices = 0
    if t.groups.limit[g, ACCELERATORS] > 0:
        devices = pick_devices(t.machines.devices, m, t.groups.limit[g, ACCELERATORS])
    placed.devices[i] = devices
    _hold(t, g, job, m, devices, _COMES)
    use_extra(t.bookings, t.groups, g, m, _COMES)
    return preempted


@compiled
def _give_back(t: Tables, first: int, until: int) -> int:
    """Undo the placements of a gang, the last one first. Return how many tasks of the gang had been placed. `first`,
    `until`: the positions of these tasks in the queue; `until` is excluded.
    """
    placed = t.placed
    undone = 0
    for i in range(until - 1, first - 1, -1):
        m, g = placed.machine[i], t.queue.group[i]
        if m >= 0:
            for k in range(placed.victims_from[i], placed.victims_to[i]):
                _leave(t.machines, t.running, m, placed.victims[k], _GOES)
            _hold(t, g, t.queue.job[i], m, placed.devices[i], _GOES)
            use_extra(t.bookings, t.groups, g, m, _GOES)
            placed.victims_to[i] = placed.victims_from[i]
            undone += 1
        placed.machine[i] = NONE_FITS
        _begin(t.cache, g, DIRECT)
    return undone


@kernel
def place(t: Tables, begin: int) -> int:
    """Decide the placements of the tasks in the queue, from position `begin` on. Write the chosen machines and the
    tasks to preempt into `t.placed`, and update the used capacity in `t.machines`. Return -1 at the end of the queue.

    A job with no `t.queue.left` has as many running tasks as it may have, so its further tasks are not tried.

    If a gang with `t.queue.books` does not fit, return the position after its last task, at which to continue after
    capacity was booked for the gang.
    """
    queue, placed = t.queue, t.placed
    number = queue.group.shape[0]
    preempted, done = placed.figures[2], placed.figures[4]
    gang, gang_end = -1, 0  # its first place in the queue, and the place after its last
    before = 0  # how many were preempted before it
    failed, stopped = False, -1
    for i in range(begin, number):
        if i >= gang_end:
            gang, failed = -1, False
            if queue.gang_end[i] > 0:
                gang, gang_end, before = i, queue.gang_end[i], preempted
        # A gang that has begun is ended: one that waited for a pass it fits into might wait for ever.
        if done >= t.knobs.most and gang in (-1, i):
            for k in range(i, number):
                placed.machine[k] = NOT_TRIED
            break
        if failed:
            placed.machine[i] = NONE_FITS
            continue
        if queue.left[queue.job[i]] <= 0:
            placed.machine[i] = HELD_BACK
            continue
        m = _find(t, i)
        if m >= 0:
            preempted = _take(t, i, m, preempted)
            queue.left[queue.job[i]] -= 1
            done += 1
        elif gang >= 0:
            done -= _give_back(t, gang, i + 1)
            preempted, failed = before, True
            if queue.books[gang]:
                for k in range(i + 1, gang_end):
                    placed.machine[k] = NONE_FITS
                stopped = gang_end
                break
    placed.figures[2], placed.figures[4] = preempted, done
    return stopped
