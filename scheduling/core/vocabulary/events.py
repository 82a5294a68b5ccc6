"""The journal's vocabulary: every kind of news a cell has, as one closed union of structs.

A row of the journal holds one of these in `data`, its tag in `kind`. The writers (`scheduling.services`,
`scheduling.master.commit`, the link) build them; every reader (warm state, names, live pages, archive, Fauxmaster)
applies them. A struct may gain fields with defaults; any other change raises `VERSION` and keeps reading
the older one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from scheduling.core.vocabulary.published import Published
from scheduling.core.vocabulary.requirement import Group, Requirement

VERSION = 1


class _Event(msgspec.Struct, frozen=True, tag_field="kind", kw_only=True):
    pass


class CellSet(_Event, frozen=True, tag="cell.set"):
    """The cell's settings changed. `extra_resources`: its own named resources, told when one was added."""

    settings: dict[str, Any]
    extra_resources: tuple[str, ...] | None = None


class LeaseTaken(_Event, frozen=True, tag="cell.lease"):
    """A master took over (§3.1). `epoch` fences what older masters still say."""

    scheduler: str
    holder: str
    epoch: int


class BrakeSet(_Event, frozen=True, tag="cell.brake"):
    """Much of the cell would be disturbed at once: `brake` (lost, stops) went into `state`, for `wanted` tasks."""

    brake: str
    state: str
    wanted: int = 0
    detail: str = ""


class MachineSet(_Event, frozen=True, tag="machine.set"):
    """A machine joined, or its facts changed. Carries all of them."""

    machine_id: int
    hostname: str
    address: str
    capacity: tuple[int, ...]
    attributes: dict[str, str] = {}
    platform: str = ""
    rack: str = ""
    power_domain: str = ""
    port_low: int = 20000
    port_high: int = 29999
    state: str = "up"


class MachineState(_Event, frozen=True, tag="machine.state"):
    """up, draining, down. Tasks that leave because of it have events of their own, caused by this one.

    Of a drain: its `deadline` (unix time, 0 for none), and whether budgets are broken then.
    """

    machine_id: int
    state: str
    reason: str = ""
    deadline: float = 0.0
    break_budgets: bool = False


class MachineRemoved(_Event, frozen=True, tag="machine.removed"):
    machine_id: int
    reason: str = ""


class PackagesHeld(_Event, frozen=True, tag="packages.held"):
    """What machines have installed has changed (§3.2): digest -> ids of machines. A hint for placement, told for many
    machines at once, every few seconds at most."""

    came: dict[str, tuple[int, ...]] = {}
    went: dict[str, tuple[int, ...]] = {}


class AllocKept(_Event, frozen=True, tag="alloc.kept"):
    """An alloc left a machine, and what its folder holds is kept there for its log savers (§4).

    What that takes of the machine, `hold`, is out of its capacity: a `machine.set` says so beside it.
    """

    machine_id: int
    job_id: int
    index: int
    incarnation: int
    until: float  # seconds since the epoch
    hold: tuple[int, ...]
    savers: tuple[tuple[int, int], ...]  # (job id, index) of the tasks that run again


class AllocReleased(_Event, frozen=True, tag="alloc.released"):
    """`how`: saved; too-late: its time was up before every log saver had ended well; dropped by an SRE."""

    machine_id: int
    job_id: int
    index: int
    incarnation: int
    how: str
    reason: str = ""


class AllocGone(_Event, frozen=True, tag="alloc.gone"):
    """The folder of a released alloc is removed from its machine."""

    machine_id: int
    job_id: int
    index: int
    incarnation: int


class MachineCredential(_Event, frozen=True, tag="machine.credential"):
    """A machine's secret: `asked` (a new one is due), `offered` (its Borglet has one, both open the link), `renewed`
    (the new one was used, the old one is void), `revoked` (none opens the link until the machine joins again)."""

    machine_id: int
    step: str
    reason: str = ""


class JobSubmitted(_Event, frozen=True, tag="job.submitted"):
    """A job was admitted; all tasks of its groups are pending."""

    job_id: int
    uid: str
    tenant_id: int
    tenant: str
    name: str
    job_kind: str
    priority: int
    latency_sensitive: bool
    spec_version: int
    groups: tuple[Group, ...]
    labels: dict[str, str] = {}
    port_names: tuple[str, ...] = ()
    alloc_set: int = 0  # the job id of the alloc set its tasks live in (§2.4)
    gang: bool = False  # its pending tasks are placed together or not at all
    disruption_budget: int = (
        0  # of its tasks preemption and drains may have so many down at once; 0: no bound
    )
    published: Published = Published()


class JobRejected(_Event, frozen=True, tag="job.rejected"):
    """A submission refused by admission control (§2.5). No job row exists."""

    tenant: str
    name: str
    code: str
    detail: str
    figures: dict[str, Any] = {}


class JobChanged(_Event, frozen=True, tag="job.changed"):
    """Facts of the job itself, in force at once: its priority (§2.3: never a restart), labels, target spec.

    `reason`: why, where nobody of the tenant asked for it.
    """

    job_id: int
    priority: int
    latency_sensitive: bool
    spec_version: int
    labels: dict[str, str] = {}
    port_names: tuple[str, ...] = ()
    gang: bool = False
    disruption_budget: int = 0
    published: Published = Published()
    reason: str = ""


class JobEnded(_Event, frozen=True, tag="job.ended"):
    """Every task is dead; the name is free again."""

    job_id: int
    how: str  # finished | failed | killed


class TasksAdded(_Event, frozen=True, tag="tasks.added"):
    """The job grew; the new tasks are pending."""

    job_id: int
    groups: tuple[Group, ...]
    spec_version: int


class TaskPlaced(_Event, frozen=True, omit_defaults=True, tag="task.placed"):
    """pending -> running on a machine. `ports`: numbers in the order of the job's port names.

    `alloc`: the task id of the alloc it lives in, on that machine; 0 when it lies on the bare machine (§2.4).
    `devices`: which of the machine's accelerators. `runners_up`: (machine id, score) of what else was considered.
    `packages`: how many bytes of its packages were there already, of how many; nothing where it names none.
    Who leaves an alloc that leaves has a `task.evicted` of its own, before that of the alloc.
    """

    job_id: int
    index: int
    machine_id: int
    incarnation: int
    ports: tuple[int, ...] = ()
    spec_version: int = 1
    score: dict[str, float] = {}
    victims: tuple[tuple[int, int], ...] = ()  # (job id, index) of whom it preempted
    alloc: int = 0
    devices: tuple[int, ...] = ()
    runners_up: tuple[tuple[int, float], ...] = ()
    packages: tuple[int, ...] = ()


class TaskEvicted(_Event, frozen=True, tag="task.evicted"):
    """running -> pending. The incarnation still occupies its ports there until `task.gone`, unless `gone`.

    `cause`: preemption, machine-failure, machine-shutdown, out-of-resources, other (Figure 3), or update,
    failure (the task's restarts on the machine are spent), lost.
    """

    job_id: int
    index: int
    machine_id: int
    incarnation: int
    cause: str
    detail: str = ""
    gone: bool = False
    avoid: bool = False  # this pairing of task and machine crashed (§4)
    preemptor: tuple[int, int] | None = None
    exit: dict[str, Any] | None = None


class TaskEnded(_Event, frozen=True, tag="task.ended"):
    """-> dead. `machine_id` 0 when it was pending."""

    job_id: int
    index: int
    machine_id: int
    incarnation: int
    how: str  # finished | failed | killed
    detail: str = ""
    gone: bool = False
    exit: dict[str, Any] | None = None


class TaskGone(_Event, frozen=True, tag="task.gone"):
    """The processes of a departed incarnation have ended on the machine: its ports are free."""

    job_id: int
    index: int
    machine_id: int
    incarnation: int
    exit: dict[str, Any] | None = None


class TaskRevived(_Event, frozen=True, tag="task.revived"):
    """dead -> pending: the task was resubmitted or an update asks for it again."""

    job_id: int
    index: int
    spec_version: int


class TaskUpdated(_Event, frozen=True, tag="task.updated"):
    """The task follows another version of the spec. A running one keeps its machine: the change is in place."""

    job_id: int
    index: int
    spec_version: int
    requirement: Requirement


class TaskReported(_Event, frozen=True, tag="task.reported"):
    """What its Borglet says of a running task, when it differs from before.

    `up`: what people call running: phase `up`, and healthy where a check is declared.
    """

    job_id: int
    index: int
    machine_id: int
    incarnation: int
    phase: str
    health: str
    up: bool = False
    restarts: int = 0
    exit: dict[str, Any] | None = None
    address: str = ""  # of a network of its own; empty: its machine's


class ReservationsSet(_Event, frozen=True, tag="reservations.set"):
    """New estimates of what tasks will use (§5.5), those that changed enough to matter."""

    tasks: tuple[tuple[int, int], ...]  # (job id, index)
    reservations: tuple[tuple[int, ...], ...]


class UpdateStarted(_Event, frozen=True, tag="update.started"):
    job_id: int
    update_id: int
    from_version: int
    to_version: int
    max_down: int
    undo: bool = False


class UpdateEnded(_Event, frozen=True, tag="update.ended"):
    """`how`: done, superseded, or stopped with its reason (too many disruptions, tasks that don't come up)."""

    job_id: int
    update_id: int
    how: str
    detail: str = ""


class ShellOpened(_Event, frozen=True, tag="shell.opened"):
    """Somebody was granted a shell in a task: written before its first byte can flow. The actor is who asked.

    `peer`: the network address that the portal saw. `command`: empty for a login shell.
    """

    job_id: int
    index: int
    machine_id: int
    incarnation: int
    session: str
    peer: str = ""
    command: tuple[str, ...] = ()


class ShellClosed(_Event, frozen=True, tag="shell.closed"):
    """A shell is over, or never came up. `how` says why; bytes are what went in each direction."""

    job_id: int
    index: int
    machine_id: int
    incarnation: int
    session: str
    how: str
    seconds: float = 0.0
    bytes_typed: int = 0
    bytes_printed: int = 0


Event = (
    CellSet | LeaseTaken | BrakeSet | MachineSet | MachineState | MachineRemoved | MachineCredential | PackagesHeld
    | AllocKept | AllocReleased | AllocGone | JobSubmitted | JobRejected | JobChanged | JobEnded
    | TasksAdded | TaskPlaced | TaskEvicted | TaskEnded | TaskGone | TaskRevived | TaskUpdated | TaskReported
    | ReservationsSet | UpdateStarted | UpdateEnded
    | ShellOpened | ShellClosed
)  # fmt: skip

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


def kind_of(event: Event) -> str:
    return str(event.__struct_config__.tag)


def encode(event: Event) -> bytes:
    return _encoder.encode(event)


def decode(data: bytes | str) -> Event:
    """Raises `msgspec.ValidationError` for anything that is no event."""
    event: Event = _decoder.decode(data)
    return event
