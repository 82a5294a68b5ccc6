"""The events of a cell's journal, as one closed union of structs.

A row of the journal stores one event in `data` and its tag in `kind`. The domain folders, `scheduling.master.commit`
and the link write events. Readers such as the warm state, the names and the live pages apply them. A struct may gain
fields with defaults. Any other change increases `VERSION`, and the older version stays readable.
"""

from __future__ import annotations

from typing import Any

import msgspec

from scheduling.core.vocabulary.published import Published
from scheduling.core.vocabulary.requirement import Group, Requirement

VERSION = 1


class _Event(msgspec.Struct, frozen=True, tag_field="kind", kw_only=True):
    pass


class _TaskEvent(_Event, frozen=True):
    job_id: int
    index: int


class _IncarnationEvent(_TaskEvent, frozen=True):
    machine_id: int
    incarnation: int


class CellSet(_Event, frozen=True, tag="cell.set"):
    """The cell's settings changed. `extra_resources`: the names of all resources that the cell defines itself; None if
    they have not changed.
    """

    settings: dict[str, Any]
    extra_resources: tuple[str, ...] | None = None


class LeaseTaken(_Event, frozen=True, tag="cell.lease"):
    """A master took over (§3.1). Writes of masters with an older `epoch` are rejected."""

    scheduler: str
    holder: str
    epoch: int


class BrakeSet(_Event, frozen=True, tag="cell.brake"):
    """A brake of the cell changed to `state`. The brake `lost` limits how many tasks of lost machines are
    rescheduled, and the brake `stops` how many tasks are stopped. `wanted`: the number of tasks that the cell wanted
    to change.
    """

    brake: str
    state: str
    wanted: int = 0
    detail: str = ""


class MachineSet(_Event, frozen=True, tag="machine.set"):
    """A machine joined, or its facts changed. The event holds all facts of the machine."""

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
    """A machine is now up, draining or down. Evictions that follow from this are separate events, which name this event
    as their cause.

    These fields are for a drain. `deadline`: Unix time, 0 for none. `break_budgets`: whether tasks are evicted after
    the deadline in spite of disruption budgets.
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
    """The installed packages of machines changed (§3.2): digest -> ids of machines. Placement uses this as a hint.
    One event is written for many machines at once, every few seconds at most.
    """

    came: dict[str, tuple[int, ...]] = {}
    went: dict[str, tuple[int, ...]] = {}


class AllocKept(_IncarnationEvent, frozen=True, tag="alloc.kept"):
    """An alloc left a machine, which keeps the alloc's folder for its log savers (§4).

    The kept folder uses the amounts in `hold`. The `machine.set` event of the same revision has the remaining
    capacity of the machine.
    """

    until: float  # seconds since the epoch
    hold: tuple[int, ...]
    savers: tuple[tuple[int, int], ...]  # (job id, index) of the tasks that run again


class AllocReleased(_IncarnationEvent, frozen=True, tag="alloc.released"):
    """The folder of a kept alloc was released. `how`: `saved`, if all log savers succeeded; `too-late`, if the time of
    the kept alloc ended before all savers had succeeded; `dropped`, if an SRE deleted it.
    """

    how: str
    reason: str = ""


class AllocGone(_IncarnationEvent, frozen=True, tag="alloc.gone"):
    """The folder of a released alloc is removed from its machine."""


class MachineCredential(_Event, frozen=True, tag="machine.credential"):
    """The secret with which a Borglet connects changed its state. `asked`: a new secret is due. `offered`: the
    Borglet has the new secret, and both secrets are valid. `renewed`: the new secret was used, and the old one is no
    longer valid. `revoked`: no secret is valid until the machine joins again.
    """

    machine_id: int
    step: str
    reason: str = ""


class JobSubmitted(_Event, frozen=True, tag="job.submitted"):
    """A job was submitted, and admission control accepted it. All its tasks are pending."""

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
    disruption_budget: int = 0  # most tasks that preemption and drains may have down at once; 0: no limit
    published: Published = Published()


class JobRejected(_Event, frozen=True, tag="job.rejected"):
    """Admission control rejected a submission (§2.5). No row of a job exists."""

    tenant: str
    name: str
    code: str
    detail: str
    figures: dict[str, Any] = {}


class JobChanged(_Event, frozen=True, tag="job.changed"):
    """Properties of a job changed at once, without a restart (§2.3): its priority, its labels, its target spec.

    `reason`: why the cell changed the job automatically; empty for a change by a user.
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
    """The end of a job: all its tasks are dead, and its name is free again."""

    job_id: int
    how: str  # finished | failed | killed


class TasksAdded(_Event, frozen=True, tag="tasks.added"):
    """Tasks were added to a job. They are pending."""

    job_id: int
    groups: tuple[Group, ...]
    spec_version: int


class TaskPlaced(_IncarnationEvent, frozen=True, omit_defaults=True, tag="task.placed"):
    """A pending task was placed and is now running on a machine. `ports`: port numbers in the order of the job's port
    names.

    `alloc`: the task id of the alloc that contains the task, 0 if there is none (§2.4). `devices`: indexes of its
    accelerators. `runners_up`: (machine id, score) of the next best machines. `packages`: how many bytes of the
    task's packages the machine had already, and how many bytes there are in all; empty without packages. If an alloc
    is evicted later, each task inside gets its own `task.evicted` event first.
    """

    ports: tuple[int, ...] = ()
    spec_version: int = 1
    score: dict[str, float] = {}
    victims: tuple[tuple[int, int], ...] = ()  # (job id, index) of the tasks that it preempted
    alloc: int = 0
    devices: tuple[int, ...] = ()
    runners_up: tuple[tuple[int, float], ...] = ()
    packages: tuple[int, ...] = ()


class TaskEvicted(_IncarnationEvent, frozen=True, tag="task.evicted"):
    """A running task was evicted and is pending again. Its old incarnation keeps its ports on the machine until the
    event `task.gone`, or frees them at once if `gone` is true.

    `cause`: one of the causes in Figure 3 (preemption, machine-failure, machine-shutdown, out-of-resources, other), or
    update, lost, or failure (the task crashed on this machine as often as it may).
    """

    cause: str
    detail: str = ""
    gone: bool = False
    avoid: bool = False  # this pairing of task and machine crashed (§4)
    preemptor: tuple[int, int] | None = None
    exit: dict[str, Any] | None = None


class TaskEnded(_IncarnationEvent, frozen=True, tag="task.ended"):
    """A pending or running task ended and is now dead. `machine_id` is 0 if the task was pending."""

    how: str  # finished | failed | killed
    detail: str = ""
    gone: bool = False
    exit: dict[str, Any] | None = None


class TaskGone(_IncarnationEvent, frozen=True, tag="task.gone"):
    """The processes of an incarnation that left its machine have ended. The ports of the incarnation are free."""

    exit: dict[str, Any] | None = None


class TaskRevived(_TaskEvent, frozen=True, tag="task.revived"):
    """A dead task is pending again, because it was resubmitted or an update needs it again."""

    spec_version: int


class TaskUpdated(_TaskEvent, frozen=True, tag="task.updated"):
    """A task changed to another version of its spec. A running task stays on its machine."""

    spec_version: int
    requirement: Requirement


class TaskReported(_IncarnationEvent, frozen=True, tag="task.reported"):
    """A Borglet reported another state of a running task than before.

    `up`: whether the task can serve: its phase is `up`, and its health check passes if it has one.
    """

    phase: str
    health: str
    up: bool = False
    restarts: int = 0
    exit: dict[str, Any] | None = None
    address: str = ""  # of a network of its own; empty: its machine's


class ReservationsSet(_Event, frozen=True, tag="reservations.set"):
    """Tasks have new reservations (§5.5). The event lists only tasks whose estimate changed enough."""

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
    """An update ended. `how`: done; superseded by a newer update; or stopped, with the reason (too many disruptions,
    or tasks that do not come up).
    """

    job_id: int
    update_id: int
    how: str
    detail: str = ""


class ShellOpened(_IncarnationEvent, frozen=True, tag="shell.opened"):
    """A shell in a task was granted to the actor. The event is written before the first byte can flow.

    `peer`: the network address that the portal saw. `command`: empty for a login shell.
    """

    session: str
    peer: str = ""
    command: tuple[str, ...] = ()


class ShellClosed(_IncarnationEvent, frozen=True, tag="shell.closed"):
    """A shell ended, or never started. `how` is the reason, and bytes are counted per direction."""

    session: str
    how: str
    seconds: float = 0.0
    bytes_typed: int = 0
    bytes_printed: int = 0


Event = (
    CellSet
    | LeaseTaken
    | BrakeSet
    | MachineSet
    | MachineState
    | MachineRemoved
    | MachineCredential
    | PackagesHeld
    | AllocKept
    | AllocReleased
    | AllocGone
    | JobSubmitted
    | JobRejected
    | JobChanged
    | JobEnded
    | TasksAdded
    | TaskPlaced
    | TaskEvicted
    | TaskEnded
    | TaskGone
    | TaskRevived
    | TaskUpdated
    | TaskReported
    | ReservationsSet
    | UpdateStarted
    | UpdateEnded
    | ShellOpened
    | ShellClosed
)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    return _encoder.encode(event)


def decode(data: bytes | str) -> Event:
    """Return the event that is stored as JSON in `data`. Raises `msgspec.ValidationError` if `data` is not an event."""
    event: Event = _decoder.decode(data)
    return event
