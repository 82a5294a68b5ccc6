"""Message types for the state and the usage of one incarnation of a task or alloc."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from borglet.messages.desired import TaskKey


class Phase(StrEnum):
    """The phase of an incarnation on its machine."""

    ASSIGNED = "assigned"
    INSTALLING = "installing"
    STARTING = "starting"
    UP = "up"
    STOPPING = "stopping"
    BACKOFF = "backoff"  # the run failed; the Borglet starts the incarnation again after a delay
    ENDED = "ended"  # the incarnation does not run again; `exit` has the reason


class Health(StrEnum):
    UNKNOWN = "unknown"  # the task declares no check, or has not answered yet
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"


class EndCause(StrEnum):
    """The reason why a run of a task ended."""

    EXITED = "exited"
    SIGNALED = "signaled"
    STOPPED = "stopped"  # the master stopped the incarnation
    OUT_OF_MEMORY = "out-of-memory"  # the task exceeded its limit
    OUT_OF_DISK = "out-of-disk"
    OUT_OF_PROCESSES = "out-of-processes"
    UNHEALTHY = "unhealthy"
    TIME_LIMIT = "time-limit"  # the run lasted for `RunTask.max_run_s`; since protocol 3
    START_FAILED = "start-failed"
    SUPERVISOR_LOST = "supervisor-lost"
    MACHINE_SHORT = "machine-short"  # the machine ran out of an incompressible resource (§6.2)
    MACHINE_RESTARTED = "machine-restarted"


class Exit(msgspec.Struct, frozen=True):
    """The end of a run. If a process was started, exactly one of `status` and `signal` is set."""

    cause: EndCause
    at: float  # seconds since the epoch by the machine's clock
    status: int | None = None
    signal: int | None = None
    detail: str = ""
    notice: str = ""  # after a stop, how much of its notice the task got: full, short, none (§2.3)


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The usage of a task over the last few seconds. `WireReport.usages` depends on the order of the fields, so new
    fields must come last.

    `throttled_milli`: CPU that the task's quota denied, in milli-cores; 0 if it is not measured.
    """

    cpu_milli: int = 0
    ram_bytes: int = 0
    disk_bytes: int = 0
    processes: int = 0  # includes threads, like the limit
    throttled_milli: int = 0
    cached_bytes: int = 0  # page cache of the task, which `ram_bytes` does not include
    threads: int = 0
    read_bytes_s: int = 0  # from disks
    written_bytes_s: int = 0
    received_bytes_s: int = 0  # over the task's own network; 0 if it uses the machine's
    sent_bytes_s: int = 0
    oom_kills: int = 0  # processes that the kernel killed to free memory, since the run began


NO_USAGE = Usage()


class Removal(msgspec.Struct, frozen=True):
    """A message by which a Borglet asks the master to evict a task (§6.2), because the task gets too little CPU. The
    task runs until it is evicted.
    """

    key: TaskKey
    reason: str  # cpu-starved
    detail: str


class UsageWindow(msgspec.Struct, frozen=True, array_like=True):
    """The usage of one incarnation from `start` (seconds since the epoch) for `span_s` seconds.

    The values are means over all measurements in this time; the values `most_…` are maxima. `cpu_distribution` has the
    percentiles 0, 10, …, 100, and `cpu_tail` the percentiles 91 to 99.
    """

    key: TaskKey
    start: int
    span_s: int
    samples: int
    cpu_milli: int
    most_cpu_milli: int
    random_cpu_milli: int  # of one random sample
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
    """The report about one incarnation. A Borglet reports all incarnations on its machine, also those that the desired
    state does not list.
    """

    key: TaskKey
    name: str
    phase: Phase
    health: Health = Health.UNKNOWN
    restarts: int = 0
    started_at: float = 0.0
    spec_version: int = 0
    usage: Usage = NO_USAGE
    exit: Exit | None = None  # the end of the last run, also while the task runs again
    expected: bool = True  # False: neither list of the desired state has it
    quarantined: bool = False  # not in the lists since a change of history: an SRE decides
    address: str = ""  # address of its own network; empty: the machine's address


class AllocReport(msgspec.Struct, frozen=True):
    """The report about an alloc that has a folder on the machine. `disk_bytes`: the size of the folder, which includes
    the logs of the alloc's tasks.
    """

    key: TaskKey
    name: str
    disk_bytes: int = 0
