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
    """The cell's settings changed. `extra_resources`: its own named resources, if one was added."""

    settings: dict[str, Any]
    extra_resources: tuple[str, ...] | None = None


class LeaseTaken(_Event, frozen=True, tag="cell.lease"):
    """A master took over (§3.1). Writes of masters with an older `epoch` are rejected."""

    scheduler: str
    holder: str
    epoch: int


class BrakeSet(_Event, frozen=True, tag="cell.brake"):
    """A brake of the cell (lost, stops) changed to `state`, because of `wanted` tasks."""

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
    """A machine is up, draining or down. Evictions that follow from it are events of their own, with this one as
    their cause.

    For a drain: its `deadline` (Unix time, 0 for none), and whether it ignores disruption budgets after the deadline.
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
    """Installed packages of machines changed (§3.2): digest -> ids of machines. A hint for placement, written for many
    machines at once, every few seconds at most."""

    came: dict[str, tuple[int, ...]] = {}
    went: dict[str, tuple[int, ...]] = {}


class AllocKept(_IncarnationEvent, frozen=True, tag="alloc.kept"):
    """An alloc left a machine, which keeps the alloc's folder for its log savers (§4).

    The kept folder takes `hold` of the machine's capacity; a `machine.set` beside this event has the rest.
    """

    until: float  # seconds since the epoch
    hold: tuple[int, ...]
    savers: tuple[tuple[int, int], ...]  # (job id, index) of the tasks that run again


class AllocReleased(_IncarnationEvent, frozen=True, tag="alloc.released"):
    """A kept alloc was released. `how`: saved; too-late: its time ended before every log saver had succeeded; dropped
    by an SRE.
    """

    how: str
    reason: str = ""


class AllocGone(_IncarnationEvent, frozen=True, tag="alloc.gone"):
    """The folder of a released alloc is removed from its machine."""


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

    `reason`: the cause, if the change was automatic.
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
    """The job grew; the new tasks are pending."""

    job_id: int
    groups: tuple[Group, ...]
    spec_version: int


class TaskPlaced(_IncarnationEvent, frozen=True, omit_defaults=True, tag="task.placed"):
    """pending -> running on a machine. `ports`: numbers in the order of the job's port names.

    `alloc`: the task id of its alloc on that machine; 0 if it is in none (§2.4).
    `devices`: its accelerators of the machine. `runners_up`: (machine id, score) of the next best machines.
    `packages`: bytes of its packages that the machine had already, and bytes in all; empty if it names none.
    A task in an alloc that leaves has its own `task.evicted`, before that of the alloc.
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
    """running -> pending. The incarnation still occupies its ports there until `task.gone`, unless `gone`.

    `cause`: preemption, machine-failure, machine-shutdown, out-of-resources, other (Figure 3), or update,
    failure (the task's restarts on the machine are spent), lost.
    """

    cause: str
    detail: str = ""
    gone: bool = False
    avoid: bool = False  # this pairing of task and machine crashed (§4)
    preemptor: tuple[int, int] | None = None
    exit: dict[str, Any] | None = None


class TaskEnded(_IncarnationEvent, frozen=True, tag="task.ended"):
    """pending or running -> dead. `machine_id` is 0 if the task was pending."""

    how: str  # finished | failed | killed
    detail: str = ""
    gone: bool = False
    exit: dict[str, Any] | None = None


class TaskGone(_IncarnationEvent, frozen=True, tag="task.gone"):
    """The processes of a departed incarnation have ended on the machine: its ports are free."""

    exit: dict[str, Any] | None = None


class TaskRevived(_TaskEvent, frozen=True, tag="task.revived"):
    """dead -> pending: the task was resubmitted or an update asks for it again."""

    spec_version: int


class TaskUpdated(_TaskEvent, frozen=True, tag="task.updated"):
    """A task follows another version of its spec. A running task stays on its machine: the change is made in place."""

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
    """New reservations of tasks (§5.5), for those whose estimate changed enough."""

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
    """An update ended. `how`: done, superseded, or stopped with its reason (too many disruptions, tasks that don't
    come up).
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
    """Raise `msgspec.ValidationError` for anything that is not an event."""
    event: Event = _decoder.decode(data)
    return event
