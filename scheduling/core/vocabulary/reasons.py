"""The data of explanations why tasks are pending (§2.6). Other modules make sentences from this data."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from scheduling.core.vocabulary.requirement import Constraint

# The name of whole cores in `Lack` and `SuggestedChange`. The axis of resources does not contain them.
WHOLE_CORES = "whole-cores"


class ReasonCode(StrEnum):
    """Reasons why a task cannot be placed on a machine. `scheduling/README.md` explains each reason."""

    NO_MACHINES = "no-machines"  # the cell has no machines
    NO_SUCH_RESOURCE = "no-such-resource"  # no machine has a resource that the task asks for
    CONSTRAINT = "constraint"  # a machine attribute does not satisfy a hard constraint; `subject` names it
    DEDICATED_POOL = "dedicated-pool"  # the machine is in a pool for other tenants; `subject` names the pool
    OUTSIDE_POOL = "outside-pool"  # jobs of the tenant run only in the pool `subject`, and the machine is not in it
    MACHINE_STATE = "machine-state"  # the machine is draining or down
    MAINTENANCE = "maintenance"  # a maintenance window of the machine has begun, or would interrupt the task
    RESOURCE = "resource"  # less is free than the limit, even after preemption; `subject` names the resource
    PORTS = "ports"  # too few ports are free
    MAX_PER_MACHINE = "max-per-machine"  # the machine has as many tasks of the job as `spread` allows
    MAX_PER_RACK = "max-per-rack"  # the rack has as many tasks of the job as `spread` allows
    MAX_PER_POWER_DOMAIN = "max-per-power-domain"  # the power domain has as many tasks of the job as allowed
    CRASHED_PAIR = "crashed-pair"  # the task crashed on this machine a short while ago (§4)
    CORES = "cores"  # too few whole cores are free of other latency-sensitive tasks (§6.2)
    ALLOC = "alloc"  # no alloc of the alloc set that the job belongs to can hold the task (§2.4)
    BOOKED = "booked"  # its free capacity is booked for a gang that starts before the task would end
    GANG = "gang"  # the machine can hold one task, but the tasks that start together do not all fit


class ChangeKind(StrEnum):
    """The kinds of changes to the request of a task that an explanation can suggest."""

    LOWER = "lower"  # asks for less of a resource
    DROP = "drop"  # gives a constraint up
    RELAX = "relax"  # asks for another value of the attribute
    RAISE = "raise"  # lets more tasks of the job share a machine, rack or power domain
    COMBINED = "combined"  # several of these at once: no single one is enough


class Basis(StrEnum):
    """The basis of the forecast when a pending task starts: the data from which it is computed, or the reason why there
    is none.
    """

    ENDS = "ends"  # tasks that ended on machines that could hold it, and the queue ahead
    CRASH_BACK_OFF = "crash-back-off"  # when machines it crashed on are tried again (§4)
    NO_HISTORY = "no-history"  # nothing ended there since the scheduler watches
    NEEDS_CHANGE = "needs-change"  # waiting alone won't do
    BOOKED = "booked"  # the gang's own booking: when tasks on the booked machines have reached their time limits
    TIME_LIMITS = "time-limits"  # when tasks have reached their time limits; nothing is booked
    RUN_TIMES = "run-times"  # when tasks have run as long as earlier tasks of their jobs: an estimate
    NO_TIME_LIMITS = "no-time-limits"  # no end is known of tasks that use the capacity
    BOOKED_FOR_A_GANG = "booked-for-a-gang"  # the capacity is kept free for a gang until `at`
    MAINTENANCE = "maintenance"  # when the first maintenance window of a machine that could hold the task ends
    BEHIND_OTHERS = "behind-others"  # other pending tasks come first


class RuledOut(msgspec.Struct, frozen=True):
    """The number of machines that the reason `code` excludes. Machines that an earlier reason already excluded are not
    counted. `subject`: the name of the resource or the text of the constraint that causes this.

    `wanted`: the requested amount of the resource. `largest`: the largest free amount on one of these machines.
    `until`: when the first of the maintenance windows that exclude the machines ends, in seconds since the epoch.
    """

    code: ReasonCode
    subject: str
    machines: int
    wanted: int = 0
    largest: int = 0
    until: float = 0.0


class SuggestedChange(msgspec.Struct, frozen=True):
    """The smallest change of one kind with which the task's request fits, and the number of machines on which it then
    fits.

    `subject`: the name of the resource or attribute to change. If the maximum number of tasks per machine, rack or
    power domain should change, `subject` is a `ReasonCode`, for example `max-per-rack`. `to`: the new amount, attribute
    value or maximum. `constraint`: the constraint that prevents the placement. `instead`: the constraint that should
    replace `constraint`, if any. `parts`: if several changes are needed together, each of these changes.
    """

    subject: str
    to: int | str
    machines: int
    kind: ChangeKind = ChangeKind.LOWER
    constraint: Constraint | None = None
    instead: Constraint | None = None
    parts: tuple[SuggestedChange, ...] = ()


class Lack(msgspec.Struct, frozen=True):
    """A resource of which a machine has too little for a task. `left`: the free amount. `short`: the missing amount.
    Both are in the unit of the resource.
    """

    resource: str
    left: int
    short: int


class Nearest(msgspec.Struct, frozen=True):
    """The machine that comes closest to having enough for a task, and what it lacks."""

    machine_id: int
    lacks: tuple[Lack, ...] = ()
    fails: tuple[Constraint, ...] = ()
    bounds: tuple[ReasonCode, ...] = ()


class Ahead(msgspec.Struct, frozen=True):
    """The number of pending tasks of one tenant that come before the explained job in the queue. Users outside this
    tenant do not see its name.
    """

    tenant: str
    jobs: int
    tasks: int


class QueuePlace(msgspec.Struct, frozen=True):
    """The place of a job's first pending task in the queue. `ahead`: how many tasks come before this task. `own`: how
    many of these are in the same class of equal tasks.

    `ahead_of`: the tenants with the most tasks before this task. `tenants`: how many tenants have tasks before this
    task. Neither field is set for jobs that are far back in their class.
    """

    ahead: int
    own: int
    tenants: int = 0
    ahead_of: tuple[Ahead, ...] = ()


class Preemption(msgspec.Struct, frozen=True):
    """The numbers of machines that have too little capacity for the task even with preemption.

    `not_enough`: machines that are too small, even if all tasks of lower priority are preempted. `held`: machines that
    are large enough, but whose capacity is used by tasks that this task may not preempt.
    """

    not_enough: int = 0
    held: int = 0


class Reclamation(msgspec.Struct, frozen=True):
    """The number of machines on which a prod task does not fit, but would fit if it were non-prod. Non-prod tasks may
    use reclaimed resources (§5.5).
    """

    machines: int = 0


class ExpectedStart(msgspec.Struct, frozen=True):
    """The probable start of the next task of a class of equal pending tasks: between `low_s` and `high_s` seconds after
    the explanation was computed. Both are None if there is no forecast.

    `ends`: how many tasks ended in the last `window_s` seconds on machines that could hold the task. `room`: how many
    tasks of the class would have fitted into the capacity that these tasks released. `least`, `ahead`: at least and at
    most how many other tasks come before the next task of the class.

    `at`: when the tasks are expected to start, or when the gang is for which the capacity is booked, in seconds since
    the epoch. `machines`: how many machines are booked, or go into maintenance. `fills_s`: the longest sum of time
    limit, notice and time to leave DNS with which a task would use the booked capacity now, if it cannot start again in
    place, or would end before a maintenance window.
    """

    basis: Basis
    low_s: float | None = None
    high_s: float | None = None
    ends: int = 0
    window_s: float = 0.0
    room: float = 0.0
    least: float = 0.0
    ahead: float = 0.0
    at: float | None = None
    machines: int = 0
    fills_s: float | None = None


class Shape(msgspec.Struct, frozen=True):
    """A limit with which `per_machine` tasks fit on a machine of one kind. `machines`: the number of machines of this
    kind.

    `limit`: the amount of each resource. `in_all`: how many such tasks would fit into the whole cell if it were empty.
    """

    limit: tuple[int, ...]
    per_machine: int
    machines: int
    in_all: int


class Conforming(msgspec.Struct, frozen=True):
    """Advice about limits with which tasks are likely to be placed (§2.6). The advice is for the most common kind of
    machine that could hold the task.

    `wanted`: the requested limit. `machines`: how many machines could hold one task if they were empty. `now`: how many
    machines can hold one task now. `room`: how many tasks fit on all machines together now. `absent`: indexes of
    resources that no machine of the cell has. `asked`: the requested limit and how many tasks with this limit fit on
    one empty machine; None if no such task fits. `one_more`: the largest limit with which one task more than with
    `wanted` fits on an empty machine. `fuller`: the largest limit with which as many tasks as with `wanted` fit on an
    empty machine, or None if no larger limit exists.
    """

    wanted: tuple[int, ...]
    machines: int
    now: int
    room: int
    asked: Shape | None = None
    one_more: Shape | None = None
    fuller: Shape | None = None
    absent: tuple[int, ...] = ()


class Why(msgspec.Struct, frozen=True):
    """The explanation why a class of equal tasks is pending. `tasks`: (job id, number of pending tasks) for each job of
    the class.

    `code`: the main reason, or empty if the class has not been examined yet. `revision`: the revision of the cell's
    state when the class was examined. `places`: the place in the queue of each job in `tasks`. All other fields about
    the queue are about the first job. `unplaced_tasks.of_job` returns the explanation for another job.
    """

    tasks: tuple[tuple[int, int], ...]
    machines: int
    ruled_out: tuple[RuledOut, ...] = ()
    changes: tuple[SuggestedChange, ...] = ()
    never: bool = False  # no machine of the cell could hold it even if it were empty
    ahead: int = 0  # pending tasks that the queue tries first
    code: str = ""
    revision: int = 0
    nearest: Nearest | None = None
    ahead_of: tuple[Ahead, ...] = ()  # the tenants with most of them
    ahead_tenants: int = 0  # how many tenants in all
    places: tuple[QueuePlace, ...] = ()
    preemption: Preemption = Preemption()
    reclamation: Reclamation = Reclamation()
    expected: ExpectedStart | None = None
    shapes: Conforming | None = None
