"""The desired state of a machine."""

from __future__ import annotations

import msgspec

from borglet.messages.packages import PackageRef


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
    packages: list[PackageRef] = []  # installed before it starts, read-only below /packages/<name>
    root: str = "host"  # its /: host (the machine's /usr, read-only) or packages (the first of them)
    network: str = "host"  # host, or own: a network namespace with an address of its own (§8.1)
    slack: Slack = Slack()
    whole_cores: bool = False  # cores of limit["cpu"] are kept free of other latency-sensitive tasks (§6.2)
    devices: list[int] = []  # numbers of the allotted accelerators, each once
    alloc: TaskKey | None = None  # the alloc of this machine that it lives in (§2.4)
    leave_s: float = 0.0  # between the removal of its names and SIGTERM, if a stop leaves time for it


class StopTask(msgspec.Struct, frozen=True):
    """An incarnation that should not run here. `notice_s` limits the total time of its stop: the notice comes first,
    and leaving (`state.stopping`) gets the rest. No master sends it yet."""

    key: TaskKey
    cause: str  # kill, preemption, update, drain, superseded, machine-failure, quarantine
    notice_s: float | None = None


class RunAlloc(msgspec.Struct, frozen=True):
    """Resources of this machine that tasks of several jobs share: a control group and a folder (§2.4).

    `ended`: the alloc has ended. Its folder is kept for its log savers, which are in `run`. An alloc that is not listed
    any more stays, like a task, until its key is in `stop`."""

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
