"""The state of one incarnation of a task."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from borglet.messages.desired import TaskKey


class Phase(StrEnum):
    """The phase of an incarnation on its machine (§3.2: installing is most of a start)."""

    ASSIGNED = "assigned"
    INSTALLING = "installing"
    STARTING = "starting"
    UP = "up"
    STOPPING = "stopping"
    BACKOFF = "backoff"  # it failed; the Borglet starts it again after a delay
    ENDED = "ended"  # it will not run again here; `exit` has the reason. Kept until the master stops listing it.


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


class Exit(msgspec.Struct, frozen=True):
    """How processes ended. Exactly one of `status` and `signal` is set where a process was started at all."""

    cause: EndCause
    at: float  # seconds since the epoch, the machine's clock
    status: int | None = None
    signal: int | None = None
    detail: str = ""
    notice: str = ""  # of a stop: how much of its notice the task got: full, short, none (§2.3)


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Measured over the last few seconds. CPU in milli-cores, the rest as its name says. Fields are added at the end:
    `WireReport.usages` goes by their order.

    `throttled_milli`: CPU that its quota denied; 0 if it is not measured.
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
    received_bytes_s: int = 0  # over its own network; 0 if it shares the machine's
    sent_bytes_s: int = 0
    oom_kills: int = 0  # by the kernel, since the run began


NO_USAGE = Usage()


class Removal(msgspec.Struct, frozen=True):
    """A task that the machine asks the master to evict (§6.2), because throttling did not help. It runs until then."""

    key: TaskKey
    reason: str  # cpu-starved
    detail: str


class UsageWindow(msgspec.Struct, frozen=True, array_like=True):
    """The usage of one incarnation from `start` (seconds since the epoch) for `span_s`: means over its samples, if the
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
    """The report about one incarnation. A Borglet reports every incarnation that is present, known or not."""

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
    """An alloc whose folder is on the machine. `disk_bytes`: of its folder, with the logs of its tasks."""

    key: TaskKey
    name: str
    disk_bytes: int = 0
