"""The events of a cell's journal: one struct per kind of event.

A row of the journal stores one event in `data` and the tag of the event's struct in `kind`. Readers of the journal can
read events of older versions too. A struct may get new fields if they have defaults. Any other change increases
`VERSION`, and the older version stays readable.

Version 2: the reservations in `reservations.set` are packed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from scheduling.core.vocabulary import reservation_packing
from scheduling.core.vocabulary.published import Published
from scheduling.core.vocabulary.requirement import Group, Requirement

VERSION = 2


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


class CellDeleted(_Event, frozen=True, tag="cell.deleted"):
    """An SRE deleted the cell. This is the last event of its journal. `cell`: the name of the cell until then."""

    cell: str


class CellCopied(_Event, frozen=True, tag="cell.copied"):
    """This cell was created as a copy of a cell, for study. Its machines, jobs and tasks are those that the other cell
    had at a revision, with other ids. `cell`: the name of the other cell. `history`: the id of its history. `redacted`:
    names in the copy are hashes.
    """

    cell: str
    revision: int
    history: str
    redacted: bool = False


class CellRestored(_Event, frozen=True, tag="cell.restored"):
    """The cell is being set back to the state that it had at a revision. This and the following events of the same
    request make the difference. `history`: the id of the history that ended. The new history begins with this event,
    and continues the revisions of the journal.
    """

    revision: int
    history: str


class LeaseTaken(_Event, frozen=True, tag="cell.lease"):
    """A new master took over the cell (§3.1). Writes of masters with a lower `epoch` are rejected."""

    scheduler: str
    holder: str
    epoch: int


class BrakeSet(_Event, frozen=True, tag="cell.brake"):
    """A brake (a safety limit) of the cell changed its state to `state`. The brake `lost` limits how many tasks of lost
    machines are rescheduled. The brake `stops` limits how many tasks are stopped. `wanted`: how many tasks the cell
    would have rescheduled or stopped without the brake.
    """

    brake: str
    state: str
    wanted: int = 0
    detail: str = ""


class RepackingSet(_Event, frozen=True, tag="cell.repacking"):
    """A re-packing of the cell, which moves tasks so that machines become free or a pending task fits, has the state
    `state`. `repacking`: its number. `machine_id`, `step`: a step that began or ended, and its state. `tasks`: how many
    tasks move.
    """

    repacking: int
    state: str
    machine_id: int = 0
    step: str = ""
    tasks: int = 0
    detail: str = ""


class MaintenanceSet(_Event, frozen=True, tag="cell.maintenance"):
    """A maintenance window of the cell was written or changed, or has another state. The event contains all facts about
    the window.

    `state`: `planned`, `draining` (its machines are being drained, or are empty), `ended` or `cancelled`. `starts_at`,
    `ends_at`: in seconds since the epoch. The window covers the `machines` (hostnames), or all machines of the `rack`
    or of the `power_domain`.
    """

    window: int
    state: str
    starts_at: float
    ends_at: float
    machines: tuple[str, ...] = ()
    rack: str = ""
    power_domain: str = ""
    reason: str = ""


class PoolSet(_Event, frozen=True, tag="cell.pool"):
    """A machine pool of the cell was written, changed or deleted. The event contains all facts about the pool. The
    attribute `pool` of a machine names the pool to which it belongs.

    `tenants`: the names of its tenants. `dedicated`: only their tasks may run on its machines. `use`: `may`, `prefer`
    or `must`, as in `PoolUse`. `others`: what happens to tasks of other tenants that run there: they `stay` until they
    end, or they `leave`. `selector`: machines that match belong to the pool.
    """

    pool: str
    description: str = ""
    selector: str = ""
    tenants: tuple[str, ...] = ()
    dedicated: bool = False
    use: str = "may"
    others: str = "stay"
    deleted: bool = False


class MachineSet(_Event, frozen=True, tag="machine.set"):
    """A machine joined the cell, or facts about the machine changed. The event contains all facts about the machine.

    `reason`: why a person changed them, if the person said so. States do not keep it.
    """

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
    reason: str = ""


class MachineState(_Event, frozen=True, tag="machine.state"):
    """The state of a machine changed to up, draining or down. Evictions because of this change are separate events,
    which name this event as their cause.

    For a draining machine, `deadline` is the Unix time at which the drain should end, or 0. `break_budgets`: whether
    tasks are evicted after the deadline even if a disruption budget forbids it.
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
    """The installed packages of some machines changed (§3.2). `came`: for each package digest, the ids of the machines
    that installed the package. `went`: the same for machines that removed it.
    """

    came: dict[str, tuple[int, ...]] = {}
    went: dict[str, tuple[int, ...]] = {}


class AllocKept(_IncarnationEvent, frozen=True, tag="alloc.kept"):
    """An alloc left a machine. The machine keeps the alloc's folder until log savers (tasks that copy the logs) have
    finished, but not longer than until the time `until` (§4). `savers`: (job id, index) of these tasks.

    `hold`: the amounts of resources that the kept folder uses. A `machine.set` event of the same revision contains the
    remaining capacity of the machine.
    """

    until: float  # seconds since the epoch
    hold: tuple[int, ...]
    savers: tuple[tuple[int, int], ...]  # (job id, index) of the tasks that run again


class AllocReleased(_IncarnationEvent, frozen=True, tag="alloc.released"):
    """The machine no longer has to keep the folder of a kept alloc. `how`: `saved` if all log savers succeeded,
    `too-late` if they did not finish in time, `dropped` if an SRE decided not to keep the folder.
    """

    how: str
    reason: str = ""


class AllocGone(_IncarnationEvent, frozen=True, tag="alloc.gone"):
    """The machine has removed the folder of a released alloc."""


class MachineCredential(_Event, frozen=True, tag="machine.credential"):
    """The state of the secret with which a Borglet connects changed. `step`: `asked` if the Borglet should make a new
    secret; `offered` if it has made one, and both secrets are valid; `renewed` if the old secret is no longer valid;
    `revoked` if no secret is valid until the machine joins again.
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
    max_running: int = 0  # most tasks that have a machine at once; 0: no limit
    start_after: float = 0.0  # no task is placed before this time, in seconds since the epoch
    waiting: bool = False  # no task is placed until the event `job.released`
    max_run_s: float = 0.0  # the longest time limit of a run; 0: a task has none
    ends_within_s: float = 0.0  # this long after its start, each run has ended; 0: not known
    published: Published = Published()


class JobRejected(_Event, frozen=True, tag="job.rejected"):
    """Admission control rejected the submission of a job (§2.5). No row is created for the job."""

    tenant: str
    name: str
    code: str
    detail: str
    figures: dict[str, Any] = {}


class JobChanged(_Event, frozen=True, tag="job.changed"):
    """Properties of a job changed without a restart of its tasks (§2.3), for example its priority, its labels or its
    target spec.

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
    max_running: int = 0
    start_after: float = 0.0
    max_run_s: float = 0.0
    ends_within_s: float = 0.0
    published: Published = Published()
    reason: str = ""


class JobReleased(_Event, frozen=True, tag="job.released"):
    """A job no longer waits for other jobs (`after`), because they have reached the states that it waited for."""

    job_id: int


class JobEnded(_Event, frozen=True, tag="job.ended"):
    """A job ended. All its tasks are dead. A new job may have the same name."""

    job_id: int
    how: str  # finished | failed | killed


class TasksAdded(_Event, frozen=True, tag="tasks.added"):
    """New tasks were added to a job. They are pending."""

    job_id: int
    groups: tuple[Group, ...]
    spec_version: int


class TaskPlaced(_IncarnationEvent, frozen=True, omit_defaults=True, tag="task.placed"):
    """A pending task was placed and is now running on a machine. `ports`: port numbers in the order of the job's port
    names.

    `alloc`: the task id of the alloc that contains the task, 0 if there is none (§2.4). `devices`: indexes of the
    accelerators that the task uses. `runners_up`: (machine id, score) of the next best machines. `packages`: how many
    bytes of the task's packages the machine already had, and the size of all its packages in bytes; empty if the task
    has no packages.
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
    """A running task was evicted and is pending again. `gone`: whether the ports of its old incarnation are free at
    once. Otherwise, they stay in use until the event `task.gone`.

    `cause`: preemption, machine-failure, machine-shutdown, out-of-resources or other (Figure 3), or dedicated-pool (its
    machine is in a pool for other tenants), update, lost or failure (the task crashed too often on this machine).
    """

    cause: str
    detail: str = ""
    gone: bool = False
    avoid: bool = False  # this pairing of task and machine crashed (§4)
    preemptor: tuple[int, int] | None = None
    exit: dict[str, Any] | None = None


class TaskEnded(_IncarnationEvent, frozen=True, tag="task.ended"):
    """A pending or running task is now dead. `machine_id` is 0 if the task was pending."""

    how: str  # finished | failed | killed
    detail: str = ""
    gone: bool = False
    exit: dict[str, Any] | None = None


class TaskGone(_IncarnationEvent, frozen=True, tag="task.gone"):
    """After a task left its machine, all processes of its old incarnation have ended. The ports of the incarnation are
    now free.
    """

    exit: dict[str, Any] | None = None


class TaskRevived(_TaskEvent, frozen=True, tag="task.revived"):
    """A dead task is pending again, because it was resubmitted or because an update needs it."""

    spec_version: int


class TaskUpdated(_TaskEvent, frozen=True, tag="task.updated"):
    """A task changed to another version of its spec. A running task stays on its machine."""

    spec_version: int
    requirement: Requirement


class TaskReported(_IncarnationEvent, frozen=True, tag="task.reported"):
    """A Borglet reported that the state of a running task has changed.

    `up`: whether the task can serve: its phase is `up`, and its health check passes if it has one. `skipped`: how many
    earlier changes have no event of their own, because the task changed again and again.
    """

    phase: str
    health: str
    up: bool = False
    restarts: int = 0
    exit: dict[str, Any] | None = None
    address: str = ""  # of a network of its own; empty: its machine's
    skipped: int = 0


class ReservationsSet(_Event, frozen=True, omit_defaults=True, tag="reservations.set"):
    """The reservations of some tasks changed (§5.5). The event contains only tasks whose estimate changed enough.

    `number`, `packed`: only in the stored form of the event. They are the number of tasks, and both lists as a short
    text (`reservation_packing`). `decode` always returns the lists.
    """

    tasks: tuple[tuple[int, int], ...] = ()  # (job id, index)
    reservations: tuple[tuple[int, ...], ...] = ()
    number: int = 0
    packed: str = ""


class UpdateStarted(_Event, frozen=True, tag="update.started"):
    """An update of a job's tasks started. `restarted`: the number of tasks that it replaces without another spec; 0 for
    an update to another spec.
    """

    job_id: int
    update_id: int
    from_version: int
    to_version: int
    max_down: int
    undo: bool = False
    restarted: int = 0


class UpdatePaused(_Event, frozen=True, tag="update.paused"):
    """An update was paused and then changes no further tasks, or was resumed (`paused` is false). An update whose
    canary tasks are promoted by hand is also paused by itself when they are up.
    """

    job_id: int
    update_id: int
    paused: bool


class UpdatePromoted(_Event, frozen=True, tag="update.promoted"):
    """The canary tasks of an update were up long enough, and its other tasks change now."""

    job_id: int
    update_id: int


class UpdateEnded(_Event, frozen=True, tag="update.ended"):
    """An update of a job ended. `how`: done, superseded (by a newer update or by the end of the job), stopped, or
    rolled-back (a newer update returns the job to its last good version). `detail`: the reason.
    """

    job_id: int
    update_id: int
    how: str
    detail: str = ""


class JobSecretChanged(_Event, frozen=True, tag="job.secret"):
    """A secret that a job uses has changed, so its machines look at the newest version again. `change`: set, granted,
    revoked or deleted. `version`: the newest version of the secret. The event has no value.
    """

    job_id: int
    secret: str
    change: str
    version: int


class JobConfigChanged(_Event, frozen=True, tag="job.config"):
    """A config file of which a job uses the newest version has changed, so its machines look at it again. `version`:
    its newest version. The event has no content.
    """

    job_id: int
    config: str
    version: int


class CronSet(_Event, frozen=True, tag="cron.set"):
    """A cron job was created or changed, suspended or resumed. `version`: 1 for a new cron job."""

    cron_id: int
    tenant: str
    name: str
    version: int
    schedule: str
    time_zone: str
    overlap: str
    suspended: bool = False


class CronDeleted(_Event, frozen=True, tag="cron.deleted"):
    """A cron job was deleted. Its runs that are live go on."""

    cron_id: int
    tenant: str
    name: str
    reason: str = ""


class CronSkipped(_Event, frozen=True, tag="cron.skipped"):
    """A run of a cron job was not submitted. `outcome`: `skipped` because of the overlap policy, `missed` because it
    would have started later than the catch-up window allows, or `rejected`. `due_at`: in seconds since the epoch.
    """

    cron_id: int
    tenant: str
    name: str
    due_at: float
    outcome: str
    code: str
    detail: str


class TemplateSet(_Event, frozen=True, tag="template.set"):
    """A template was created or changed. `version`: 1 for a new template."""

    template_id: int
    tenant: str
    name: str
    version: int


class TemplateDeleted(_Event, frozen=True, tag="template.deleted"):
    """A template was deleted. The jobs that were submitted from it stay."""

    template_id: int
    tenant: str
    name: str
    reason: str = ""


class ServiceSet(_Event, frozen=True, tag="service.set"):
    """A service was stopped or started, or its stopped jobs were forgotten. `change`: stopped, started or forgotten.
    `jobs`: how many jobs that start together with the service are stored or removed.
    """

    service: str
    tenant: str
    change: str
    jobs: int
    reason: str = ""


class ServiceWeighed(_Event, frozen=True, tag="service.weighed"):
    """The weights of the tracks of a service, after a change of them or of its switch to another track. Names are
    published with these weights (`naming.table.service_weights`).

    `change`: set or cleared by a person; or, by a switch: begun, moved, stopping (the old tracks), done or returned.
    `track`: to which the switch goes; empty without a switch. `weights`: the weight of each track; empty: none.
    """

    service: str
    tenant: str
    change: str
    weights: dict[str, int]
    track: str = ""
    reason: str = ""


class WorkflowSet(_Event, frozen=True, tag="workflow.set"):
    """A workflow was submitted, paused, resumed, cancelled or retried. `state`: running, paused or cancelling.
    `nodes`: how many nodes its file has.
    """

    workflow_id: int
    tenant: str
    name: str
    change: str
    state: str
    nodes: int


class WorkflowEnded(_Event, frozen=True, tag="workflow.ended"):
    """All nodes of a workflow have ended. `how`: succeeded, failed or cancelled. `detail`: why it failed."""

    workflow_id: int
    tenant: str
    name: str
    how: str
    detail: str = ""


class ShellOpened(_IncarnationEvent, frozen=True, tag="shell.opened"):
    """A user received permission to open a shell in a task. The event is written before the shell starts.

    `peer`: the network address of the user, as the portal sees it. `command`: the command to run, empty for a login
    shell.
    """

    session: str
    peer: str = ""
    command: tuple[str, ...] = ()


class ShellClosed(_IncarnationEvent, frozen=True, tag="shell.closed"):
    """A shell in a task ended or could not start. `how`: the reason. `bytes_typed`, `bytes_printed`: how many bytes the
    user typed, and how many the shell printed.
    """

    session: str
    how: str
    seconds: float = 0.0
    bytes_typed: int = 0
    bytes_printed: int = 0


Event = (
    CellSet
    | CellDeleted
    | CellCopied
    | CellRestored
    | LeaseTaken
    | BrakeSet
    | RepackingSet
    | MaintenanceSet
    | PoolSet
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
    | JobReleased
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
    | UpdatePaused
    | UpdatePromoted
    | UpdateEnded
    | JobSecretChanged
    | JobConfigChanged
    | CronSet
    | CronDeleted
    | CronSkipped
    | TemplateSet
    | TemplateDeleted
    | ServiceSet
    | ServiceWeighed
    | WorkflowSet
    | WorkflowEnded
    | ShellOpened
    | ShellClosed
)

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    """Return the event as JSON, in the form in which the journal stores it."""
    if type(event) is ReservationsSet and event.tasks:
        packed = reservation_packing.pack(event.tasks, event.reservations)
        event = ReservationsSet(number=len(event.tasks), packed=packed)
    return _encoder.encode(event)


def decode(data: bytes | str) -> Event:
    """Return the event that is stored as JSON in `data`. Raises `msgspec.ValidationError` if `data` is not an event."""
    return unpacked(_decoder.decode(data))


def unpacked(event: Event) -> Event:
    """Return the event; if it contains packed lists, with unpacked lists. `decode` unpacks them itself, so this
    function is for events from other decoders. Raises `msgspec.ValidationError` if the lists cannot be read.
    """
    if type(event) is ReservationsSet and event.packed:
        try:
            tasks, reservations = reservation_packing.unpack(event.packed)
        except ValueError as error:
            raise msgspec.ValidationError(
                f"the event's list of reservations (field `packed`) cannot be read: {error}"
            ) from error
        return ReservationsSet(tasks=tasks, reservations=reservations)
    return event
