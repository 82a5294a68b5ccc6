"""Reasons why a class of tasks is pending, as values with a code (§2.6). Callers turn them into sentences."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from scheduling.core.vocabulary.requirement import Constraint

# The name of whole cores in `Lack` and `SuggestedChange`. The axis of resources does not contain them.
WHOLE_CORES = "whole-cores"


class ReasonCode(StrEnum):
    """Reasons that exclude machines. `scheduling/README.md` explains each reason, and a test checks that none is
    missing.
    """

    NO_MACHINES = "no-machines"  # the cell has no machines
    NO_SUCH_RESOURCE = "no-such-resource"  # no machine has a resource that the task asks for
    CONSTRAINT = "constraint"  # a machine attribute does not satisfy a hard constraint; `subject` names it
    MACHINE_STATE = "machine-state"  # the machine is draining or down
    RESOURCE = "resource"  # less is free than the limit, even after preemption; `subject` names the resource
    PORTS = "ports"  # too few ports are free
    MAX_PER_MACHINE = "max-per-machine"  # the machine has as many tasks of the job as `spread` allows
    MAX_PER_RACK = "max-per-rack"  # the rack has as many tasks of the job as `spread` allows
    MAX_PER_POWER_DOMAIN = "max-per-power-domain"  # the power domain has as many tasks of the job as allowed
    CRASHED_PAIR = "crashed-pair"  # the task crashed on this machine a short while ago (§4)
    CORES = "cores"  # too few whole cores are free of other latency-sensitive tasks (§6.2)
    ALLOC = "alloc"  # no alloc of the alloc set that the job belongs to can hold the task (§2.4)
    GANG = "gang"  # the machine can hold one task, but the tasks that start together do not all fit


class ChangeKind(StrEnum):
    """The kinds of changes to a request that an explanation may suggest."""

    LOWER = "lower"  # asks for less of a resource
    DROP = "drop"  # gives a constraint up
    RELAX = "relax"  # asks for another value of the attribute
    RAISE = "raise"  # lets more tasks of the job share a machine, rack or power domain
    COMBINED = "combined"  # several of these at once: no single one is enough


class Basis(StrEnum):
    """How the expected start of a pending task was computed, or why there is none."""

    ENDS = "ends"  # tasks that ended on machines that could hold it, and the queue ahead
    CRASH_BACK_OFF = "crash-back-off"  # when machines it crashed on are tried again (§4)
    NO_HISTORY = "no-history"  # nothing ended there since the scheduler watches
    NEEDS_CHANGE = "needs-change"  # waiting alone won't do


class RuledOut(msgspec.Struct, frozen=True):
    """The machines that the reason `code` excludes and that no earlier reason excluded. `subject`: the resource or
    constraint.

    `wanted`: the requested amount. `largest`: the most that one of these machines has free. Both are in the unit of
    the resource.
    """

    code: ReasonCode
    subject: str
    machines: int
    wanted: int = 0
    largest: int = 0


class SuggestedChange(msgspec.Struct, frozen=True):
    """The smallest change of one kind with which the request would fit, and the number of machines where it would.

    `subject`: what changes: the name of a resource or an attribute, or for a bound on the tasks per machine, rack or
    power domain, the code of its reason. `to`: the new quantity, attribute value or bound.
    `constraint`: the constraint that prevents the placement. `instead`: the constraint that should replace it, if
    any. `parts`: the changes of a combined change, which are all needed.
    """

    subject: str
    to: int | str
    machines: int
    kind: ChangeKind = ChangeKind.LOWER
    constraint: Constraint | None = None
    instead: Constraint | None = None
    parts: tuple[SuggestedChange, ...] = ()


class Lack(msgspec.Struct, frozen=True):
    """A resource that a machine has too little of: `left` is free, and `short` is missing. Both are in the unit of the
    resource.
    """

    resource: str
    left: int
    short: int


class Nearest(msgspec.Struct, frozen=True):
    """The machine on which a task nearly fits, with everything that is missing there."""

    machine_id: int
    lacks: tuple[Lack, ...] = ()
    fails: tuple[Constraint, ...] = ()
    bounds: tuple[ReasonCode, ...] = ()


class Ahead(msgspec.Struct, frozen=True):
    """The number of pending tasks of one tenant that come earlier in the queue than the explained job. Other tenants do
    not see this tenant's name.
    """

    tenant: str
    jobs: int
    tasks: int


class QueuePlace(msgspec.Struct, frozen=True):
    """The place of a job's first pending task in the queue: `ahead` tasks come before it, and `own` of these belong
    to the same class.

    `ahead_of`: the tenants with most of the `ahead` tasks. `tenants`: the number of all tenants with such tasks. Both
    are empty for jobs far back in their class, for which they are not computed.
    """

    ahead: int
    own: int
    tenants: int = 0
    ahead_of: tuple[Ahead, ...] = ()


class Preemption(msgspec.Struct, frozen=True):
    """The numbers of machines on which even preemption does not make room for the task.

    `not_enough`: machines that are too small even without all tasks of lower priority. `held`: machines that are large
    enough, but their capacity is used by tasks that this task may not preempt.
    """

    not_enough: int = 0
    held: int = 0


class Reclamation(msgspec.Struct, frozen=True):
    """The number of machines where the task does not fit by limits, but would fit by reservations if it were non-prod
    (§5.5).
    """

    machines: int = 0


class ExpectedStart(msgspec.Struct, frozen=True):
    """The time until the next task of a pending class is expected to start, in seconds after the explanation was
    computed; None: no forecast.

    `ends`: tasks that ended within `window_s` on machines that could hold the task; `room`: tasks of the class that
    fit in the capacity that these freed. `least`, `ahead`: at least `least` and at most `ahead` competing tasks are
    tried before the next task of the class.
    """

    basis: Basis
    low_s: float | None = None
    high_s: float | None = None
    ends: int = 0
    window_s: float = 0.0
    room: float = 0.0
    least: float = 0.0
    ahead: float = 0.0


class Shape(msgspec.Struct, frozen=True):
    """A limit with which `machines` machines of one kind are filled completely, with `per_machine` tasks on each
    machine.

    `limit`: the complete resource vector. `in_all`: tasks that the empty cell could hold at once.
    """

    limit: tuple[int, ...]
    per_machine: int
    machines: int
    in_all: int


class Conforming(msgspec.Struct, frozen=True):
    """Guidance on limits with which tasks are likely to be placed (§2.6), for the most common kind of machine that
    could hold the task.

    `wanted`: the requested limit. `machines`: number of machines that could hold one task if empty. `now`: number of
    machines that can hold one now. `room`: number of tasks that fit on these together. `absent`: indexes of resources
    that no machine of the cell has. `asked`: how many tasks with the requested limit fit, or None if none fits.
    `one_more`: the largest limit with which one more task fits per machine. `fuller`: the largest limit with which as
    many tasks fit per machine as with the requested limit, or None if no larger limit exists.
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
    """The explanation of a pending class that REST, CLI and portal show. `tasks`: (job id, number of pending tasks)
    for each job of the class.

    `code`: the main reason; empty while the class has not been examined. `revision`: the revision of the examined
    state. A class is examined about once per second, not in each pass. `places`: the place in the queue of each job in
    `tasks`. All other fields about the queue refer to the first job; `waiting.of_job` returns the explanation for
    another job.
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
