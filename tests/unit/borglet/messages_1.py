"""`borglet/messages.py` of protocol 1, when it was the only one: what an older peer reads and writes. Never changed."""

from __future__ import annotations

from enum import StrEnum

import msgspec

# Version 1 speaks to 1; a change that older peers can't read raises it, and both sides keep N and N-1.
PROTOCOL = 1
OLDEST_PROTOCOL = 1
MAX_FRAME_BYTES = 8 * 2**20


class Phase(StrEnum):
    """Where the incarnation of a task stands on its machine (§3.2: installing is most of a start)."""

    ASSIGNED = "assigned"
    INSTALLING = "installing"
    STARTING = "starting"
    UP = "up"
    STOPPING = "stopping"
    BACKOFF = "backoff"  # it failed; the Borglet starts it again after a delay
    ENDED = "ended"  # it will not run again here; `exit` says why. Kept until the master stops listing it.


class Health(StrEnum):
    UNKNOWN = "unknown"  # no check declared, or no answer yet
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


class EndCause(StrEnum):
    """Why an incarnation's processes ended, for the last time or before a local restart."""

    EXITED = "exited"
    SIGNALED = "signaled"
    STOPPED = "stopped"  # the master asked for it
    OUT_OF_MEMORY = "out-of-memory"  # over its own limit
    OUT_OF_DISK = "out-of-disk"
    OUT_OF_PROCESSES = "out-of-processes"
    UNHEALTHY = "unhealthy"
    START_FAILED = "start-failed"
    SUPERVISOR_LOST = "supervisor-lost"
    MACHINE_SHORT = "machine-short"  # the machine ran out of an incompressible resource (§6.2)
    MACHINE_RESTARTED = "machine-restarted"


class HealthCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`kind` is `http` (GET `path`, 2xx or 3xx within `timeout_s`) or `tcp` (a connection within it)."""

    kind: str
    port: str
    path: str = "/"
    interval_s: float = 5.0
    timeout_s: float = 2.0
    grace_s: float = 30.0  # after start, failures don't count until the first success or this long
    failures: int = 3  # in a row, until the task counts as unhealthy and is restarted


class RestartPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`on`: `failure`, `always` or `never`. More than `max_failures` inside `window_s` is a crash loop: ended."""

    on: str = "failure"
    max_failures: int = 5
    window_s: float = 300.0
    backoff_s: float = 0.5  # first delay; doubles with each failure in a row
    backoff_max_s: float = 30.0


class TaskKey(msgspec.Struct, frozen=True, order=True):
    """One incarnation of one task, unique over all histories of all cells."""

    job: str  # UID of the job, 32 hex digits
    index: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.job}/{self.index}/{self.incarnation}"


class RunTask(msgspec.Struct, frozen=True):
    """A task that should run here. A newer incarnation of a task starts only when the older one is gone."""

    key: TaskKey
    name: str  # BNS name: cell/tenant/job/index
    command: list[str]
    env: dict[str, str]
    limit: dict[str, int]  # resource name -> quantity, units of quota.vocabulary.resources.AXIS
    ports: dict[str, int]  # port name -> port number allotted
    priority: int
    latency_sensitive: bool
    prod: bool
    spec_version: int
    notice_s: float = 10.0  # between SIGTERM and SIGKILL
    max_processes: int = 1024
    health: HealthCheck | None = None
    restart: RestartPolicy = RestartPolicy()
    waits_for: list[TaskKey] = []  # preempted tasks that must be gone first
    working_dir: str = ""
    user: str = ""


class StopTask(msgspec.Struct, frozen=True):
    """An incarnation that should not run here. `notice_s` overrides the task's own when it is shorter."""

    key: TaskKey
    cause: str  # kill, preemption, update, drain, superseded, machine-failure, quarantine
    notice_s: float | None = None


class Desired(msgspec.Struct, frozen=True):
    """All that should be on one machine. `generation` names this content: equal content, equal generation."""

    history_id: str
    history_ordinal: int  # raised by every restore of the cell's database
    revision: int
    epoch: int
    generation: str
    run: list[RunTask]
    stop: list[StopTask]


class Hello(msgspec.Struct, frozen=True, tag="hello", tag_field="type"):
    protocol: int
    hostname: str
    boot_id: str
    software: str
    history_id: str = ""  # the last one served; empty on a new machine
    attributes: dict[str, str] = {}
    capacity: dict[str, int] = {}


class Welcome(msgspec.Struct, frozen=True, tag="welcome", tag_field="type"):
    protocol: int
    session: int  # newer sessions of a machine supersede older ones
    cell: str
    history_id: str
    zone: str = ""


class Refusal(msgspec.Struct, frozen=True, tag="refusal", tag_field="type"):
    """Why a message was not accepted; nothing was changed. `retry` says whether coming back can help."""

    code: str
    field: str
    detail: str
    retry: bool = True


class LogRequest(msgspec.Struct, frozen=True):
    """Read part of a task's log: at most `limit_bytes` from `offset` (negative: from the end)."""

    request_id: str
    key: TaskKey
    stream: str = "stdout"  # stdout | stderr
    offset: int = -65536
    limit_bytes: int = 65536


class LogChunk(msgspec.Struct, frozen=True):
    """`offset` is the position of the first byte of `text` since the task's first start; `end` the next one."""

    request_id: str
    offset: int
    end: int
    text: str
    error: str = ""


class Poll(msgspec.Struct, frozen=True, tag="poll", tag_field="type"):
    sequence: int
    hold_s: float = 0.0
    desired: Desired | None = None  # None: unchanged since the generation the last report acknowledged
    logs: list[LogRequest] = []


class Exit(msgspec.Struct, frozen=True):
    """How processes ended. Exactly one of `status` and `signal` is set where a process was started at all."""

    cause: EndCause
    at: float  # seconds since the epoch, the machine's clock
    status: int | None = None
    signal: int | None = None
    detail: str = ""


class Usage(msgspec.Struct, frozen=True):
    """Measured over the last few seconds. CPU in milli-cores, the rest as its name says.

    `throttled_milli`: CPU that it would have used but was denied by its quota; 0 where nobody counts it.
    """

    cpu_milli: int = 0
    ram_bytes: int = 0
    disk_bytes: int = 0
    processes: int = 0
    throttled_milli: int = 0


class TaskReport(msgspec.Struct, frozen=True):
    """What is true of one incarnation, and every incarnation present is reported, known or not."""

    key: TaskKey
    name: str
    phase: Phase
    health: Health = Health.UNKNOWN
    restarts: int = 0
    started_at: float = 0.0
    spec_version: int = 0
    usage: Usage = Usage()
    exit: Exit | None = None  # of the last end, also while it runs again
    expected: bool = True  # False: in neither list of the desired state
    quarantined: bool = False  # unknown since a change of history: an SRE decides


class Report(msgspec.Struct, frozen=True, tag="report", tag_field="type"):
    """The full state of the machine. Ordered by (session, sequence): a late one never overwrites a newer."""

    session: int
    sequence: int  # of the Poll it answers
    history_id: str
    generation: str  # of the desired state now in force; empty before the first
    revision: int
    tasks: list[TaskReport]
    usage: Usage = Usage()
    logs: list[LogChunk] = []
    attributes: dict[str, str] = {}
    refused: Refusal | None = None  # a desired state that was not accepted, and why


class JoinRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /join, over TLS pinned by the fingerprint inside the join token."""

    token: str
    hostname: str
    address: str  # where clients reach its tasks
    capacity: dict[str, int]
    attributes: dict[str, str] = {}
    platform: str = ""
    rack: str = ""
    power_domain: str = ""
    port_low: int = 20000
    port_high: int = 29999


class JoinAnswer(msgspec.Struct, frozen=True):
    cell: str
    hostname: str
    secret: str  # shown once; the cell keeps its hash
    authority: str  # PEM of the cell's certificate authority


ToBorglet = Welcome | Refusal | Poll
ToShard = Hello | Report

_encoder = msgspec.json.Encoder()
_to_borglet = msgspec.json.Decoder(ToBorglet)
_to_shard = msgspec.json.Decoder(ToShard)


class MalformedMessage(ValueError):
    """A frame that is not a message of this protocol; its text names the field."""


def encode(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


def decode_to_borglet(frame: bytes | str) -> ToBorglet:
    """Raises `MalformedMessage`, naming the field (`$.desired.run[3].limit`)."""
    try:
        message: ToBorglet = _to_borglet.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedMessage(str(error)) from error
    return message


def decode_to_shard(frame: bytes | str) -> ToShard:
    """Raises `MalformedMessage`, naming the field."""
    try:
        message: ToShard = _to_shard.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedMessage(str(error)) from error
    return message
