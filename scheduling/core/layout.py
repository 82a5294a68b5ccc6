"""What the kernels work on: plain arrays under names. A changed layout is another type, and is compiled anew."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Ints32 = NDArray[np.int32]


class Machines(NamedTuple):
    """By slot; R is the axis. `order`: occupied slots by machine id; `rank`: its inverse.

    `reserved`, `prod_limit`, `ports_free`, `version` are the pass' own copies.
    """

    order: Ints32
    rank: Ints32
    up: Bools
    capacity: Ints  # [M, R]
    reserved: Ints  # [M, R] reservations of all that stay
    prod_limit: Ints  # [M, R] limits of those placed by limit (§5.5)
    ports_free: Ints
    rack: Ints32
    power: Ints32
    head: Ints32  # first task of the machine's list, -1: none
    version: Ints32


class Running(NamedTuple):
    """Tasks by slot. `gone`: preempted in this pass."""

    id: Ints
    next: Ints32
    job: Ints32
    shape: Ints32
    reservation: Ints  # [T, R]
    gone: Bools
    job_priority: Ints32  # by slot of the job
    job_by_limit: Bools
    shape_limit: Ints  # [S, R]


class Levels(NamedTuple):
    """`left` [L, M, R]: the most of each resource that one more task may ask for on a machine, by whom it may
    preempt (all priorities below `ceiling`) and by how it is placed. Kept up to date as the pass takes room.
    """

    left: Ints
    ceiling: Ints
    by_limit: Bools


class Groups(NamedTuple):
    """Equivalence classes of this pass (§3.4). `ceiling`: may preempt any priority below it."""

    limit: Ints  # [G, R]
    by_limit: Bools
    ceiling: Ints
    direct: Ints32  # its level when it preempts nobody
    level: Ints32  # and when it preempts whom it may
    hard: Ints32  # row of `allowed`
    soft: Ints32  # row of `liking`, -1: none
    max_machine: Ints32
    max_rack: Ints32
    max_power: Ints32
    job: Ints32  # the job it belongs to when it has bounds of its own, -1: shared by jobs
    avoid_from: Ints32  # rows of `avoid`: machines its task crashed on
    avoid_to: Ints32
    avoid: Ints32
    allowed: Bools  # [C, M] hard constraints hold
    liking: Floats  # [S, M] share of soft constraints that hold, by weight
    start: Ints32  # where its walk over the machines begins


class Queue(NamedTuple):
    """Pending tasks in the order they are tried."""

    group: Ints32
    job: Ints32  # local to the pass
    last: Ints32  # slot of the machine where the task was before, -1: none


class Counts(NamedTuple):
    """Open hash (job, kind, domain) -> number of tasks there. `size`: tasks of each job; 1: not counted."""

    keys: Ints
    values: Ints32
    size: Ints


class Cache(NamedTuple):
    """Scored candidates per group, [G, K]; `cursor`: how many machines the group's walk has seen."""

    machine: Ints32
    version: Ints32
    score: Floats
    filled: Ints32  # how many candidates it has
    cursor: Ints32
    stage: Ints32


class Knobs(NamedTuple):
    packing: int
    weights: Floats  # [PARTS]
    resources: Floats  # [R] how much each counts for packing, sum 1
    step: int  # of the walk, coprime to the number of machines
    caching: bool
    most: int  # assignments


class Placed(NamedTuple):
    """By position in the queue. `machine`: slot, -1 none fits, -2 not tried."""

    machine: Ints32
    parts: Floats  # [Q, PARTS]
    victims_from: Ints32
    victims_to: Ints32
    victims: Ints32  # slots of tasks
    figures: Ints  # hits, misses, preempted


class Judged(NamedTuple):
    """What stands in the way of one group, by position in `Machines.order`; N machines.

    Obstacles are numbered: the hard constraints first, C of them, then C the machine's state, C + 1 + r too little
    of resource r, C + R + 1 to C + R + 3 a bound per machine, rack and power domain, C + R + 4 a crash; -1: none.
    """

    constraints: int  # C
    first: Ints32  # the obstacle that rules it out
    only: Ints32  # the one that does so alone, and that a change of the request can remove
    lacking: Ints32  # the first resource it lacks, -1 none
    distance: Floats  # how far it is from fitting: 0 nothing is missing
    there: Ints32  # [N, 3] tasks of the job on the machine, in its rack, in its power domain
    flags: NDArray[np.int8]


class Reserved(NamedTuple):
    """Running tasks for the estimator (§5.5). `slots` [N]: which; the rest by slot, as in `Running`."""

    slots: Ints
    id: Ints
    incarnation: Ints32
    job: Ints32
    shape: Ints32
    reservation: Ints  # [T, R]
    shape_limit: Ints  # [S, R]
    job_fixed: Bools  # by slot of the job: its reservations are its limits


class History(NamedTuple):
    """What is remembered of each task, by slot; K: the reclaimable resources, first on the axis."""

    id: Ints
    incarnation: Ints32
    shape: Ints32
    observed_s: Floats  # the time that samples cover
    peak: Floats  # [T, K]
    before: Floats  # [T, K] peak of the window before
    estimate: Floats  # [T, K]


class Estimating(NamedTuple):
    """How to estimate, for one look that comes `passed_s` after the last."""

    off: bool
    passed_s: float
    settle_s: float
    keep: float  # share of the distance to the target that is left after `passed_s`
    step: float  # share of the limit below which a change does not matter
    margin: Floats  # [K]
    floor: Floats  # [K]
    turns_per_s: Floats  # [K] one over the length of a window
    unit: Ints  # [K] reservations are multiples of it: powers of two
    units: Floats  # [K] one over it, exactly


class Estimates(NamedTuple):
    """By position in `Reserved.slots`. `gap`: the largest share of a limit that the reservation is too high."""

    wanted: Ints  # [N, K]
    verdict: NDArray[np.int8]
    gap: Floats
