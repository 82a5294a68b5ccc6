"""A copy of `borglet/messages.py` at protocol 1, which stands for an older peer in tests. Do not change its code."""

from __future__ import annotations

from enum import StrEnum

import msgspec

# Version 1 is compatible with 1. A change that older peers cannot read raises it. Both sides support N and N-1.
PROTOCOL = 1
OLDEST_PROTOCOL = 1
MAX_FRAME_BYTES = 8 * 2**20


class Phase(StrEnum):
    """The phase of a task's incarnation on its machine (§3.2: most of a start is the installation of packages)."""

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
    """The reason why an incarnation's processes ended, finally or before a local restart."""

    EXITED = "exited"
    SIGNALED = "signaled"
    STOPPED = "stopped"  # the master asked for it
    OUT_OF_MEMORY = "out-of-memory"  # the task exceeded its own limit
    OUT_OF_DISK = "out-of-disk"
    OUT_OF_PROCESSES = "out-of-processes"
    UNHEALTHY = "unhealthy"
    START_FAILED = "start-failed"
    SUPERVISOR_LOST = "supervisor-lost"
    MACHINE_SHORT = "machine-short"  # the machine ran out of an incompressible resource (§6.2)
    MACHINE_RESTARTED = "machine-restarted"


class HealthCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A health check of a task.

    `kind`: `http` (GET `path` must give 2xx or 3xx within `timeout_s`) or `tcp` (a connection within `timeout_s`).
    """

    kind: str
    port: str
    path: str = "/"
    interval_s: float = 5.0
    timeout_s: float = 2.0
    grace_s: float = 30.0  # after start, failures don't count until the first success or this long
    failures: int = 3  # in a row, until the task counts as unhealthy and is restarted


class RestartPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rule by which a Borglet restarts a task that ended.

    `on`: `failure`, `always` or `never`. More than `max_failures` within `window_s` are a crash loop, which ends the
    task.
    """

    on: str = "failure"
    max_failures: int = 5
    window_s: float = 300.0
    backoff_s: float = 0.5  # first delay; doubles with each failure in a row
    backoff_max_s: float = 30.0


class TaskKey(msgspec.Struct, frozen=True, order=True):
    """The name of one incarnation of one task, unique in all cells."""

    job: str  # UID of the job, 32 hex digits
    index: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.job}/{self.index}/{self.incarnation}"


class RunTask(msgspec.Struct, frozen=True):
    """A task that the machine should run. It starts when older incarnations of the task have ended."""

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
    """An incarnation that the machine should stop. `notice_s` replaces the task's own notice if it is shorter."""

    key: TaskKey
    cause: str  # kill, preemption, update, drain, superseded, machine-failure, quarantine
    notice_s: float | None = None


class Desired(msgspec.Struct, frozen=True):
    """Everything that one machine should run or stop. `generation`: a name of the content, equal for equal contents."""

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
    history_id: str = ""  # of the last history served; empty on a new machine
    attributes: dict[str, str] = {}
    capacity: dict[str, int] = {}


class Welcome(msgspec.Struct, frozen=True, tag="welcome", tag_field="type"):
    protocol: int
    session: int  # newer sessions of a machine supersede older ones
    cell: str
    history_id: str
    zone: str = ""


class Refusal(msgspec.Struct, frozen=True, tag="refusal", tag_field="type"):
    """The reason why a message was rejected and changed nothing. `retry`: whether to send it again later."""

    code: str
    field: str
    detail: str
    retry: bool = True


class LogRequest(msgspec.Struct, frozen=True):
    """A request for at most `limit_bytes` of a task's log from `offset` on; a negative offset counts from the end."""

    request_id: str
    key: TaskKey
    stream: str = "stdout"  # stdout | stderr
    offset: int = -65536
    limit_bytes: int = 65536


class LogChunk(msgspec.Struct, frozen=True):
    """A part of a task's log.

    `offset`: position of the first byte of `text` since the task's first start. `end`: position after the last byte.
    """

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
    """The end of a task's processes. If a process was started, exactly one of `status` and `signal` is set."""

    cause: EndCause
    at: float  # seconds since the epoch, the machine's clock
    status: int | None = None
    signal: int | None = None
    detail: str = ""


class Usage(msgspec.Struct, frozen=True):
    """Usage over the last few seconds; CPU in milli-cores.

    `throttled_milli`: CPU that a quota denied to the task; 0 if it is not measured.
    """

    cpu_milli: int = 0
    ram_bytes: int = 0
    disk_bytes: int = 0
    processes: int = 0
    throttled_milli: int = 0


class TaskReport(msgspec.Struct, frozen=True):
    """The state of one incarnation that is on the machine, whether the master listed it or not."""

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
    quarantined: bool = False  # the master has not listed it since a change of history: an SRE decides


class Report(msgspec.Struct, frozen=True, tag="report", tag_field="type"):
    """The whole state of a machine. Reports are ordered by (session, sequence); an older one is ignored."""

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
    """The body of POST /join. The client trusts the TLS certificate by the fingerprint in its join token."""

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
    """The error for a frame that is not a valid message of the protocol. Its text names the field."""


def encode(message: msgspec.Struct) -> bytes:
    return _encoder.encode(message)


def decode_to_borglet(frame: bytes | str) -> ToBorglet:
    """Decode a message to a Borglet. Raise `MalformedMessage` with the field, such as `$.desired.run[3].limit`."""
    try:
        message: ToBorglet = _to_borglet.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedMessage(str(error)) from error
    return message


def decode_to_shard(frame: bytes | str) -> ToShard:
    """Decode a message to a link shard. Raise `MalformedMessage` with the field."""
    try:
        message: ToShard = _to_shard.decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedMessage(str(error)) from error
    return message
