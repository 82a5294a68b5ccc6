"""The messages between a link shard and a Borglet (§3.3): versioned structs, the one module both sides share.

A conversation, after TLS and a WebSocket upgrade authenticated as the machine (`Authorization: Bearer
<hostname>:<secret>`, path `/link`):

    Borglet ── Hello ──────────► shard      who I am, which history I last served
    Borglet ◄─ Welcome | Refusal ─ shard    session number, or why not (then the connection closes)
    Borglet ◄─ Poll ───────────── shard     every few seconds, at once when the desired state changes
    Borglet ── Report ─────────► shard      the FULL state of the machine

A Borglet never speaks unasked, except that a `Poll` with `hold_s` may be answered late: at once when the
state changes, at the latest after `hold_s`. Each frame is one JSON object, tagged by `type`.

The desired state is level-triggered. It is sent in full, and only when the Borglet's last `Report` does not
acknowledge its `generation`. It is fenced by (history ordinal, revision, epoch): a Borglet refuses an older one.
A Borglet starts what is in `run`, stops what is in `stop`, and *leaves alone* what is in neither: it reports
it, and the master decides. Thus no lossy database, no late message can kill work by omission.
"""

from __future__ import annotations

import hashlib
import re
import ssl
from enum import StrEnum
from typing import Annotated, Any

import msgspec

# Version 2 speaks to 1: both sides keep N and N-1, a release apart. What N adds has a default, so that N-1 may leave it
# out, and is unknown to N-1, which ignores it; no enumeration of N-1 ever gets a new value, for N-1 would refuse it.
PROTOCOL = 2
OLDEST_PROTOCOL = 1
WIRE_REPORTS_SINCE = 2
MAX_FRAME_BYTES = 8 * 2**20
MAX_REPORTED_PACKAGES = 64  # a digest takes 74 bytes of each report


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


class Slack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether a task may use more than its limit of a resource while nobody else wants it (§6.2)."""

    cpu: bool = True
    ram: bool = False


class Package(msgspec.Struct, frozen=True):
    """One content-addressed archive (§3.2). `digest` is of the archive as stored: `sha256:` and 64 hex digits."""

    name: str  # as the job file says it, for people: `name@tag` or `name@sha256:…`
    digest: str
    size_bytes: int
    format: str = (
        "tar"  # tar, tar+gzip, tar+zstd: a manifest beside a tree; oci: an OCI image layout in a tar
    )


class PeerAddress(msgspec.Struct, frozen=True):
    """Where a Borglet serves the archives of packages that it has, to Borglets with a ticket."""

    address: str
    port: int


class PackageSources(msgspec.Struct, frozen=True):
    """Answer to GET /packages/<digest>/sources: where this machine should fetch a package, best first."""

    peers: list[PeerAddress]
    store: str  # path on the link's own host, when no peer will do; empty: come back in `retry_after_s`
    ticket: str  # signed by the cell's authority; opens that package at any peer, for some minutes
    retry_after_s: float = 0.0


class PackageHave(msgspec.Struct, frozen=True):
    """POST /packages/<digest>/have: it is installed here, and served on `port`; 0: not served."""

    port: int = 0


class PackageFailed(msgspec.Struct, frozen=True):
    """POST /packages/<digest>/failed: a source that did not deliver. An empty address means the link's store.

    `reason`: mismatch (other content than the digest says), slow, unreachable, busy, refused.
    """

    address: str
    port: int
    reason: str


class PackageTicket(msgspec.Struct, frozen=True):
    """What a ticket says: `machine` may fetch the archive `digest` from any peer before `expires_at` (epoch, s)."""

    digest: str
    machine: str
    expires_at: float


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
    limit: dict[str, int]  # resource name -> quantity, units of quota.resources.AXIS
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
    packages: list[Package] = []  # installed before it starts, read-only below /packages/<name>
    root: str = (
        "host"  # what it sees as /: host (the machine's /usr, read-only) or packages (the first of them)
    )
    network: str = "host"  # host, or own: a network namespace with an address of its own (§8.1)
    slack: Slack = Slack()
    whole_cores: bool = False  # cores of limit["cpu"] are kept free of other latency-sensitive tasks (§6.2)
    devices: list[int] = []  # numbers of the accelerators allotted, a device twice never
    alloc: TaskKey | None = None  # the alloc of this machine that it lives in (§2.4)
    leave_s: float = (
        0.0  # between leaving the answers of its names and SIGTERM, where a stop leaves room for it
    )


class StopTask(msgspec.Struct, frozen=True):
    """An incarnation that should not run here. `notice_s` bounds how long that takes: the task's own notice when it is
    longer, and leaving the answers of its names, which has what the notice leaves."""

    key: TaskKey
    cause: str  # kill, preemption, update, drain, superseded, machine-failure, quarantine
    notice_s: float | None = None


class RunAlloc(msgspec.Struct, frozen=True):
    """Room on this machine that tasks of several jobs share: a control group and a folder (§2.4).

    `ended`: its own time here is over. What its folder holds is kept for its log savers, which are in `run`.
    An alloc that is listed no more stays, like a task, until its key is in `stop`.
    """

    key: TaskKey
    name: str  # BNS name of the alloc
    limit: dict[str, int]
    priority: int
    latency_sensitive: bool
    prod: bool
    ended: bool = False


class Desired(msgspec.Struct, frozen=True):
    """All that should be on one machine. `generation` names this content: equal content, equal generation."""

    history_id: str
    history_ordinal: int  # raised by every restore of the cell's database
    revision: int
    epoch: int
    generation: str
    run: list[RunTask]
    stop: list[StopTask]
    allocs: list[RunAlloc] = []


class Hello(msgspec.Struct, frozen=True, tag="hello", tag_field="type"):
    protocol: int  # the oldest that this Borglet speaks, so that an older shard takes it
    hostname: str
    boot_id: str
    software: str
    history_id: str = ""  # the last one served; empty on a new machine
    attributes: dict[str, str] = {}
    capacity: dict[str, int] = {}
    authority: str = ""  # digest of the authorities it trusts, see `authority_digest`
    newest: int = 0  # the newest that it speaks; 0: `protocol` is the only one


class Welcome(msgspec.Struct, frozen=True, tag="welcome", tag_field="type"):
    protocol: int  # spoken from now on
    session: int  # newer sessions of a machine supersede older ones
    cell: str
    history_id: str
    zone: str = ""
    authority: str = ""  # PEM of all authorities to trust from now on; empty: those it said it trusts
    api_url: str = ""  # where tasks reach the REST API


class Refusal(msgspec.Struct, frozen=True, tag="refusal", tag_field="type"):
    """Why a message was not accepted; nothing was changed. `retry` says whether coming back can help."""

    code: str
    field: str
    detail: str
    retry: bool = True


class LogRequest(msgspec.Struct, frozen=True):
    """Read part of a task's log: at most `limit_bytes` from `offset` (negative: from the end).

    With `search`, the lines that hold it from `offset` on (0: all that is kept), each as `LogLine`, at most
    `limit_lines`; `LogChunk.end` is where to go on, `LogChunk.complete` says whether that is the end of the log.
    """

    request_id: str
    key: TaskKey
    stream: str = "stdout"  # stdout | stderr
    offset: int = -65536
    limit_bytes: int = 65536
    search: str = ""
    ignore_case: bool = False
    since: float = 0.0  # seconds since the epoch: only what was printed then or later
    limit_lines: int = 1000


class LogLine(msgspec.Struct, frozen=True):
    """One line found. `at`: about when it was printed (seconds since the epoch); 0 where nobody knows."""

    offset: int
    text: str
    at: float = 0.0


class LogChunk(msgspec.Struct, frozen=True):
    """`offset` is the position of the first byte of `text` since the task's first start; `end` the next one."""

    request_id: str
    offset: int
    end: int
    text: str
    error: str = ""
    lines: list[LogLine] = []
    complete: bool = True


class ShellClaims(msgspec.Struct, frozen=True):
    """What one signed grant allows: one shell in one incarnation of a task on one machine, asked for once."""

    session: str  # 32 hex digits; a second grant of the same session is refused
    machine: str  # hostname
    key: TaskKey
    user: str
    issued_at: float  # seconds since the epoch, the shard's clock
    expires_at: float  # the machine must have dialled by then
    idle_s: float  # ends after so long without input and output
    longest_s: float  # ends after so long whatever happens
    command: list[str] = []  # empty: a login shell
    rows: int = 24
    cols: int = 80
    plain: bool = False  # no terminal: what talks to it is a program
    term: str = "xterm-256color"


class ShellGrant(msgspec.Struct, frozen=True):
    """`claims`: JSON of `ShellClaims`. `signature`: ECDSA with SHA-256 by the cell's authority over
    `SHELL_CONTEXT` and `claims`, so that it can be mistaken for nothing else that the authority signs."""

    claims: bytes
    signature: bytes


SHELL_CONTEXT = b"borg shell grant 1\n"
# A shell's own WebSocket (`/shell?session=…`) carries binary frames: one byte of kind, then its payload.
# Each side sends at most this many bytes beyond what the other has said it consumed: nothing between them
# ever holds more, however fast a task prints and however slow a browser draws.
SHELL_WINDOW_BYTES = 256 * 1024
SHELL_FRAME_BYTES = 16 * 1024
# A frame counts as at least this much, so that the number of frames on their way is bounded too.
SHELL_LEAST_COST = 512


class ShellFrame(StrEnum):
    """Kinds of frames. `client` is the browser or borgctl."""

    DATA = "d"  # both ways: what was typed, what was printed
    CONSUMED = "a"  # both ways: how much of the window may be used again, decimal
    RESIZE = "r"  # from the client: "<rows> <cols>"
    END = "e"  # from a plain client: nothing more will be typed
    ALIVE = "p"  # both ways, every few seconds
    OPENED = "o"  # from the task: the shell runs
    EXIT = "x"  # from the task, the last: "status <n>" | "signal <n>"
    FAILED = "f"  # both ways, the last: why there is no shell, or none any more


def shell_frame(kind: ShellFrame, payload: bytes = b"") -> bytes:
    return kind.value.encode() + payload


def shell_frame_of(frame: bytes | str) -> tuple[ShellFrame, bytes]:
    """Raises `MalformedMessage`."""
    raw = frame.encode() if isinstance(frame, str) else frame
    try:
        return ShellFrame(raw[:1].decode("ascii")), raw[1:]
    except ValueError as error:
        raise MalformedMessage(f"no frame of a shell begins with {raw[:1]!r}") from error


def shell_cost(size: int) -> int:
    """What a frame of `size` bytes of data takes of the window."""
    return max(size, SHELL_LEAST_COST)


class TaskIdentity(msgspec.Struct, frozen=True):
    """A signed statement that its bearer is this incarnation, for some time: a JWT. Secret."""

    key: TaskKey
    token: str

    def __repr__(self) -> str:
        return f"TaskIdentity(key={self.key!r}, token=…)"


class Poll(msgspec.Struct, frozen=True, tag="poll", tag_field="type", omit_defaults=True):
    sequence: int
    hold_s: float = 0.0
    desired: Desired | None = None  # None: unchanged since the generation the last report acknowledged
    logs: list[LogRequest] = []
    identities: list[TaskIdentity] = []  # new ones, of tasks that should run here
    rotate: bool = False  # make a new secret, keep it, and say its digest as `Report.offer`
    accepted: str = ""  # the offer that counts from now on: dial in with it, which ends the old secret
    shells: list[ShellGrant] = []  # to be dialled for at once; nothing of them is in a report
    windows_until: int = 0  # windows of usage that end by then are stored, or not wanted


class Exit(msgspec.Struct, frozen=True):
    """How processes ended. Exactly one of `status` and `signal` is set where a process was started at all."""

    cause: EndCause
    at: float  # seconds since the epoch, the machine's clock
    status: int | None = None
    signal: int | None = None
    detail: str = ""
    notice: str = (
        ""  # of a stop, what there was of the notice the task had asked for: full, short, none (§2.3)
    )


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Measured over the last few seconds. CPU in milli-cores, the rest as its name says. Fields are added at the end:
    `WireReport.usages` goes by their order.

    `throttled_milli`: CPU that it would have used but was denied by its quota; 0 where nobody counts it.
    """

    cpu_milli: int = 0
    ram_bytes: int = 0
    disk_bytes: int = 0
    processes: int = 0  # as its limit counts them: threads
    throttled_milli: int = 0
    cached_bytes: int = 0  # page cache charged to it; `ram_bytes` is without
    threads: int = 0
    read_bytes_s: int = 0  # from disks
    written_bytes_s: int = 0
    received_bytes_s: int = 0  # over a network of its own; 0 where it shares the machine's
    sent_bytes_s: int = 0
    oom_kills: int = 0  # by the kernel, since the run began


NO_USAGE = Usage()


class Removal(msgspec.Struct, frozen=True):
    """A task that the machine asks the master to take away (§6.2): throttling did not help. It runs on until then."""

    key: TaskKey
    reason: str  # cpu-starved
    detail: str


class UsageWindow(msgspec.Struct, frozen=True, array_like=True):
    """What one incarnation used from `start` (seconds since the epoch) for `span_s`: means over its samples, where the
    name says nothing else. `cpu_distribution`: percentiles 0, 10, …, 100; `cpu_tail`: 91 to 99."""

    key: TaskKey
    start: int
    span_s: int
    samples: int
    cpu_milli: int
    most_cpu_milli: int
    random_cpu_milli: int  # of one sample
    cpu_distribution: list[int]
    cpu_tail: list[int]
    ram_bytes: int
    most_ram_bytes: int
    limit_cpu_milli: int
    limit_ram_bytes: int
    cached_bytes: int = 0
    disk_bytes: int = 0
    throttled_milli: int = 0
    read_bytes_s: int = 0
    written_bytes_s: int = 0
    received_bytes_s: int = 0
    sent_bytes_s: int = 0
    most_threads: int = 0
    oom_kills: int = 0


class TaskReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is true of one incarnation, and every incarnation present is reported, known or not."""

    key: TaskKey
    name: str
    phase: Phase
    health: Health = Health.UNKNOWN
    restarts: int = 0
    started_at: float = 0.0
    spec_version: int = 0
    usage: Usage = NO_USAGE
    exit: Exit | None = None  # of the last end, also while it runs again
    expected: bool = True  # False: in neither list of the desired state
    quarantined: bool = False  # unknown since a change of history: an SRE decides
    address: str = ""  # of a network of its own; empty: the machine's


class AllocReport(msgspec.Struct, frozen=True):
    """An alloc whose folder is on the machine. `disk_bytes`: what its folder holds, logs of its tasks included."""

    key: TaskKey
    name: str
    disk_bytes: int = 0


class Report(msgspec.Struct, frozen=True, tag="report", tag_field="type", omit_defaults=True):
    """The full state of the machine. Ordered by (session, sequence): a late one never overwrites a newer."""

    session: int
    sequence: int  # of the Poll it answers
    history_id: str
    generation: str  # of the desired state now in force; empty before the first
    revision: int
    tasks: list[TaskReport]
    usage: Usage = NO_USAGE
    logs: list[LogChunk] = []
    attributes: dict[str, str] = {}
    refused: Refusal | None = None  # a desired state that was not accepted, and why
    removals: list[Removal] = []
    packages: list[str] = []  # digests installed here, the latest used first, at most MAX_REPORTED_PACKAGES
    allocs: list[AllocReport] = []
    windows: list[UsageWindow] = []  # told until `Poll.windows_until` says that they are stored
    offer: str = ""  # SHA-256 of the secret that this machine will use next, 64 hex digits


class WireReport(Report, frozen=True, kw_only=True, tag="report", tag_field="type", omit_defaults=True):
    """A report as it travels from protocol 2 on: what hardly ever changes as bytes that are made once and compared as
    bytes, what always changes apart from it, as bare numbers. A report of protocol 1 is read as one without `usages`.
    """

    tasks: msgspec.Raw  # type: ignore[assignment]  # list[TaskReport], without usage
    allocs: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]  # list[AllocReport]
    usage_columns: int = 0  # how many of `Usage`'s fields, the first ones, are in `usages`; the others are 0
    # First of the machine as a whole, then of each task in the order of `tasks`.
    usages: list[Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]] = []


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
ToShard = Hello | WireReport

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----\s.*?-----END CERTIFICATE-----", re.DOTALL)
_encoder = msgspec.json.Encoder()
_to_borglet = msgspec.json.Decoder(ToBorglet)
_to_shard = msgspec.json.Decoder(ToShard)
_tasks = msgspec.json.Decoder(list[TaskReport])
_allocs = msgspec.json.Decoder(list[AllocReport])


class MalformedMessage(ValueError):
    """A frame that is no message of this protocol; its text names the field."""


def authority_digest(pem: str) -> str:
    """SHA-256 over the fingerprints of all certificates in `pem`, in order of value: 64 hex digits.

    Raises ValueError for what holds no certificate.
    """
    try:
        found = [ssl.PEM_cert_to_DER_cert(part) for part in _CERTIFICATE.findall(pem)]
    except ValueError as error:
        raise ValueError(f"authority: no certificate in PEM form: {error}") from error
    if not found or not all(found):
        raise ValueError("authority: no certificate in PEM form")
    prints = sorted({hashlib.sha256(certificate).hexdigest() for certificate in found})
    return hashlib.sha256("\n".join(prints).encode()).hexdigest()


def common_protocol(hello: Hello) -> int | None:
    """The newest that this module and the other side both speak; None: there is none."""
    newest = min(max(hello.protocol, hello.newest), PROTOCOL)
    return newest if newest >= max(hello.protocol, OLDEST_PROTOCOL) else None


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


def sealed(content: list[TaskReport] | list[AllocReport]) -> msgspec.Raw:
    """As `WireReport.tasks` and `allocs`."""
    return msgspec.Raw(_encoder.encode(content))


def opened(report: WireReport) -> Report:
    """The report with its tasks, usage included. Raises `MalformedMessage`, naming the field."""
    tasks: list[TaskReport] = _opened(_tasks, report.tasks, "tasks")
    columns, figures = report.usage_columns, report.usages
    usage = report.usage
    if columns:
        if columns > len(Usage.__struct_fields__):
            columns_known = len(Usage.__struct_fields__)
            figures = [f for n, f in enumerate(figures) if n % columns < columns_known]
            columns = columns_known
        if len(figures) != columns * (1 + len(tasks)):
            text = f"Expected figures of the machine and {len(tasks)} tasks - at `$.usages`"
            raise MalformedMessage(text)
        usage, *each = (Usage(*figures[n : n + columns]) for n in range(0, len(figures), columns))
        tasks = [msgspec.structs.replace(task, usage=used) for task, used in zip(tasks, each, strict=True)]
    allocs: list[AllocReport] = _opened(_allocs, report.allocs, "allocs")
    shared = {name: getattr(report, name) for name in Report.__struct_fields__}
    return Report(**{**shared, "tasks": tasks, "usage": usage, "allocs": allocs})


def _opened(decoder: msgspec.json.Decoder[Any], content: msgspec.Raw, field: str) -> Any:
    try:
        return decoder.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        text = str(error)
        where = f"`$.{field}"
        text = text.replace("`$", where, 1) if "`$" in text else f"{text} - at {where}`"
        raise MalformedMessage(text) from error
