"""Named tuples of the arrays that the kernels (compiled functions) of a pass read and write.

Sizes of the arrays: P machines, R resources, D devices, T slots of tasks, J slots of jobs, S shapes, G groups, L levels
(ways to count free capacity), Q places in the queue, K candidates (the best machines found for a group). The *position*
of a machine is its index in the order in which a pass visits the machines (`pass_cache.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Ints32 = NDArray[np.int32]

# The amount that a booking leaves of a machine on which nothing is booked: more than any machine has.
UNBOOKED = 2**62

# Number of neighbouring machines that a search leaves out together, if none of them can hold the task.
SKIPPED = 64


class MachineArrays(NamedTuple):
    """Facts about the machines, as arrays in the order in which a pass visits the machines. A pass changes some of
    these arrays, for example `reserved`. They are copies, so the cell's state does not change.
    """

    slot: Ints32  # where the state keeps it
    rank: Ints32  # place by machine id: ties go to the lowest
    up: Bools
    capacity: Ints  # [P, R]
    share: Floats  # [P, R] 1 / capacity, 0 where it has none
    reserved: Ints  # [P, R] reservations of all that stay
    prod_limit: Ints  # [P, R] limits of those placed by limit (§5.5)
    ports_free: Ints
    devices: Ints32  # [P, D] milli-units free on each accelerator
    cores: Ints32  # that can be given away whole
    owned: Ints32  # of these, those that tasks have to themselves
    sharing: Ints32  # latency-sensitive tasks without cores of their own
    rack: Ints32
    power: Ints32
    head: Ints32  # first task of the machine's list, -1: none
    version: Ints32  # moves with every change in this pass


class Running(NamedTuple):
    """The running tasks, by slot. `gone`: whether this pass has preempted the task. `budget`: how many more tasks of
    each job this pass may preempt.
    """

    id: Ints
    next: Ints32
    job: Ints32
    shape: Ints32
    reservation: Ints  # [T, R]
    devices: Ints  # bit mask of the accelerators it holds
    gone: Bools
    sheltered: Bools  # allocs whose tasks inside have no disruption left
    job_priority: Ints32  # [J]
    job_by_limit: Bools  # [J]
    job_sensitive: Bools  # [J]
    budget: Ints32  # [J]
    shape_limit: Ints  # [S, R]
    shape_cores: Ints32  # [S] whole ones


class Levels(NamedTuple):
    """Free capacity, counted in several ways (levels). `left` [levels, resources, machines]: the free amount of each
    resource on each machine. The pass updates `left` after each placement.

    `ceiling`: what tasks with a priority below this number use counts as free, because they can be preempted.
    `by_limit`: if false, the used capacity is the sum of all reservations. If true, it is the larger of this sum and
    the sum of the limits of tasks that are placed by limit (§5.5).

    `most` [levels, resources, blocks]: an upper bound of `left` for each block of `SKIPPED` neighbouring machines.
    `ascending`: the levels, sorted by ceiling.
    """

    left: Ints
    ceiling: Ints
    by_limit: Bools
    ascending: Ints32
    most: Ints


class Groups(NamedTuple):
    """The groups of pending tasks in a pass, one per equivalence class (§3.4). The arrays have one element or row per
    group. `ceiling`: the tasks of the group may preempt any task with a lower priority than this.
    """

    limit: Ints  # [G, R]
    by_limit: Bools
    ceiling: Ints
    direct: Ints32  # its level without preemption
    level: Ints32  # and when it preempts whom it may
    hard: Ints32  # row of `allowed`
    soft: Ints32  # row of `liking`, -1: none
    max_machine: Ints32
    max_rack: Ints32
    max_power: Ints32
    job: Ints32  # the job it belongs to when it has bounds of its own, -1: shared by jobs
    avoid_from: Ints32  # rows of `avoid`: positions its task crashed on
    avoid_to: Ints32
    avoid: Ints32
    allowed: Bools  # [C, P] hard constraints hold
    liking: Floats  # [W, P] share of soft constraints that hold, by weight
    start: Ints32  # where its walk over the machines begins
    cores: Ints32  # whole ones; 0: shares them with others, -1: takes none
    packages: Ints32  # row of `present`, -1: it names none
    present: Floats  # [K, P] share of the packages' bytes that a machine has
    near_from: Ints32  # [K] rows of `near`: positions that have most of them, the most first
    near_to: Ints32
    near: Ints
    further: Ints32  # how many more machines each of its tasks compares, beyond the candidates
    typical: Ints  # [D, R] what typical tasks with devices ask for
    popularity: Floats  # [D] their share of all tasks with devices


class QueueArrays(NamedTuple):
    """The pending tasks in the order in which the pass tries them, one element per task. `group`, `job`: the task's
    group and job. `last`: the position of the machine on which it ran before, or -1. `gang_end`: for the first task of
    a gang, the position after its last task; 0 for all other tasks. `books`: whether the task is the first one of a
    gang that books capacity if it does not fit. `left`: by job, how many further tasks may be placed.
    """

    group: Ints
    job: Ints  # local to the pass
    last: Ints  # position of the machine where the task was before, -1: none
    gang_end: Ints  # for the first of a gang, the place after its last; 0 for all others
    books: Bools
    left: Ints  # [jobs of the pass]


class Bookings(NamedTuple):
    """The capacity that is booked for gangs which do not fit now. B is the largest number of bookings. A pass without
    a pending gang has none, so B is 0.

    `extra`: how much of each machine's capacity the gang leaves to tasks that may still run when it starts. It is at
    least `UNBOOKED` for the first resource if nothing of the machine is booked. `bound`: whether the tasks of a group
    must leave the booked capacity free. It is false for tasks before the gang in the queue, and for tasks that end
    before the gang starts.
    """

    made: Ints  # [1] how many bookings this pass has made
    extra: Ints  # [B, P, R]
    bound: Bools  # [B, G]


class TaskCounts(NamedTuple):
    """The number of tasks of each job per machine, rack and power domain. `keys`, `values`: a hash table. It maps a job
    and the position of a machine to the number of tasks there.

    `row`: the row of each job in `rack` and `power`, or -1 for a job with only one task, whose tasks are not counted.
    `size`: the number of tasks of each job.
    """

    keys: Ints
    values: Ints32
    rack: Ints32  # [rows, racks]
    power: Ints32  # [rows, power domains]
    row: Ints32
    size: Ints


class Cache(NamedTuple):
    """The candidates of each group: machines on which a task of the group fits, and their scores. `cursor`: how many
    machines the pass has examined for the group.
    """

    machine: Ints
    version: Ints32
    score: Floats
    filled: Ints  # how many candidates it has
    cursor: Ints
    stage: Ints
    offered: Ints  # how many of `Placed.emptied` it has looked at
    near: Ints  # and of `Groups.near`
    passed_over: Bools  # the walk left out machines that can hold the task, so it goes round again


class SearchParams(NamedTuple):
    packing: int
    weights: Floats  # [PARTS]
    resources: Floats  # [R] how much each counts for packing, sum 1
    asked: Bools  # [R] some group asks for it
    preempting: bool  # there are tasks that a group may preempt
    budgets: bool  # there is a job with a disruption budget
    caching: bool
    most: int  # assignments


class Placed(NamedTuple):
    """The results of a pass, by the task's position in the queue. `machine`: the position of the chosen machine in
    `MachineArrays`, -1 if none fits, -2 if the task was not tried.
    """

    machine: Ints
    parts: Floats  # [Q, PARTS]
    devices: Ints  # bit mask
    runner: Ints  # [Q, RUNNERS] positions of the next best, -1: none
    runner_score: Floats  # [Q, RUNNERS]
    victims_from: Ints
    victims_to: Ints
    victims: Ints  # slots of tasks
    emptied: Ints  # [Q] positions where tasks were preempted, in order
    figures: Ints  # hits, misses, preempted, emptied, placed


class Scratch(NamedTuple):
    """Arrays in which kernels write intermediate results."""

    victims: Ints  # at least as long as the longest list of tasks on a machine
    relief: Floats
    parts: Floats
    mask: Bools  # [BLOCK]
    top: Ints  # [1 + RUNNERS]
    top_score: Floats
    sums: Ints  # [L, 2, R]


class Tables(NamedTuple):
    """All arrays that the kernels of a pass read and write."""

    machines: MachineArrays
    running: Running
    levels: Levels
    groups: Groups
    queue: QueueArrays
    bookings: Bookings
    counts: TaskCounts
    cache: Cache
    knobs: SearchParams
    placed: Placed
    scratch: Scratch


class Judged(NamedTuple):
    """The reasons why the tasks of one group do not fit on each of N machines, and the number of machines for each
    reason.

    A reason is also called an obstacle. Each has a code number. C is the number of hard constraints, R the number of
    resources, O the number of reasons.

        0 … C - 1                a hard constraint
        C                        the state of the machine
        C + 1 + r                too little of resource r
        C + R + 1 … C + R + 3    the job's maximum number of tasks per machine, rack or power domain
        C + R + 4                a crash of the task on the machine
        C + R + 5                too few whole cores
        -1                       none
    """

    constraints: int  # C
    fell: Ints  # [1 + O] machines by the obstacle that rules them out, those without one first
    largest: Ints  # [1 + O] of these machines, the largest free amount of what they have too little of
    alone: Ints  # [O] machines on which the obstacle is the only one, and a change of the request can remove it
    alone_largest: Ints  # [O] of these machines, the largest free amount
    alone_at_largest: Ints  # [O] how many of them have it
    sums: Ints  # [4] numbers of machines: able, held, evictable, by reservation (see `kernels/obstacles.py`)
    first: Ints32  # the obstacle that rules the machine out, the first if there are several; -1 none
    only: Ints32  # the obstacle that rules the machine out alone, as in `alone`
    lacking: Ints32  # the first resource it lacks, -1 none
    distance: Floats  # how far it is from fitting: 0 nothing is missing
    few: Bools  # too few whole cores
    cores: Ints32  # the most whole cores that one task could have
    there: Ints32  # [N, 3] tasks of the job on the machine, in its rack, in its power domain
    flags: NDArray[np.int8]


class Reserved(NamedTuple):
    """The input of an estimate of reservations (§5.5). `slots` [N]: the slots of the running tasks to estimate.
    `shape_limit` has one row per shape, `job_fixed` one element per job slot, and the other arrays one element or row
    per task slot.
    """

    slots: Ints
    id: Ints
    incarnation: Ints32
    job: Ints32
    shape: Ints32
    reservation: Ints  # [T, R]
    shape_limit: Ints  # [S, R]
    job_fixed: Bools  # by slot of the job: its reservations are its limits


class History(NamedTuple):
    """The usage history of tasks. The arrays have one element or row per task slot. Arrays [T, K] have one column for
    each of the K estimated resources: CPU, RAM and disk.
    """

    id: Ints
    incarnation: Ints32
    shape: Ints32
    observed_s: Floats  # the time that samples cover
    peak: Floats  # [T, K]
    before: Floats  # [T, K] peak of the window before
    estimate: Floats  # [T, K]


class Estimating(NamedTuple):
    """The parameters of one estimate of the reservations of running tasks. `off`: whether reclamation is switched off.
    `passed_s`: seconds since the previous estimate. `settle_s`: how many seconds a task is observed before its
    reservation decreases. `keep`: the share of the distance between reservation and target that remains after this
    estimate. `step`: the smallest change that matters, as a share of the limit. `margin`, `floor`: the safety margin
    and the smallest reservation of each resource.
    """

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
    """The reservation estimates of running tasks, in the order of `Reserved.slots`. `wanted` [N, K]: the new
    reservations. `verdict` [N]: whether each reservation should be raised, lowered or left as it is. `gap` [N]:
    (present reservation - wanted reservation) / limit, for the resource where this value is largest, and at least 0.
    """

    wanted: Ints  # [N, K]
    verdict: NDArray[np.int8]
    gap: Floats
