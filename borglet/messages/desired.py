"""The desired state of a machine."""

from __future__ import annotations

import msgspec

from borglet.messages.packages import PackageRef
from borglet.messages.secrets import SecretRef


class HealthCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A health check. `kind`: `http` (the task must answer GET `path` with a status 2xx or 3xx within `timeout_s`) or
    `tcp` (the task must accept a connection within `timeout_s`).
    """

    kind: str
    port: str
    path: str = "/"
    interval_s: float = 5.0
    timeout_s: float = 2.0
    grace_s: float = 30.0  # failures in this time after the start do not count before the first success
    failures: int = 3  # after this many failures in a row, the task is unhealthy and restarts


class RestartPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rule for restarts of a task on its machine. `on`: `failure` (restart after a failure), `always` or `never`.
    More than `max_failures` failures in `window_s` seconds are a crash loop, which ends the incarnation.
    """

    on: str = "failure"
    max_failures: int = 5
    window_s: float = 300.0
    backoff_s: float = 0.5  # first delay; doubles with each failure in a row
    backoff_max_s: float = 30.0


class Slack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The resources of which a task may use more than its limit while no other task needs them (§6.2)."""

    cpu: bool = True
    ram: bool = False


class TaskKey(msgspec.Struct, frozen=True, order=True):
    """The key of an incarnation of a task. It is unique in all cells, even if a cell's database is restored from a
    backup, or a cell is restored in place.
    """

    job: str  # UID of the job, 32 hex digits
    index: int
    incarnation: int

    def __str__(self) -> str:
        return f"{self.job}/{self.index}/{self.incarnation}"


class RunTask(msgspec.Struct, frozen=True):
    """A task that should run on this machine. It starts only when no earlier incarnation of the task still has
    processes.
    """

    key: TaskKey
    name: str  # BNS name: cell/tenant/job/index
    command: list[str]
    env: dict[str, str]
    limit: dict[str, int]  # resource name -> quantity, units of quota.vocabulary.resources.AXIS
    ports: dict[str, int]  # port name -> allotted port number
    priority: int
    latency_sensitive: bool
    prod: bool
    spec_version: int
    notice_s: float = 10.0  # between SIGTERM and SIGKILL
    max_processes: int = 1024
    health: HealthCheck | None = None
    restart: RestartPolicy = RestartPolicy()
    waits_for: list[TaskKey] = []  # preempted tasks that must end first
    working_dir: str = ""
    user: str = ""
    packages: list[PackageRef] = []  # installed before the start, read-only below /packages/<name>
    root: str = "host"  # the task's /: host (the machine's /usr, read-only) or packages (the first package)
    network: str = "host"  # host, or own: a network namespace with its own address (§8.1)
    slack: Slack = Slack()
    whole_cores: bool = False  # reserves limit["cpu"] cores, which other latency-sensitive tasks cannot use (§6.2)
    devices: list[int] = []  # numbers of the allotted accelerators, each once
    alloc: TaskKey | None = None  # the alloc on this machine whose resources the task uses (§2.4)
    leave_s: float = 0.0  # time between the removal of its names and SIGTERM, if a stop leaves time for it
    max_run_s: float | None = None  # the Borglet stops a run that lasts longer; None: no limit
    # Secrets and config files, without values, which the Borglet requests before each start.
    secrets: list[SecretRef] = []
    locks: list[str] = []  # the locks that the task may use; empty: the Borglet offers no socket for locks

    @property
    def needs_preparation(self) -> bool:
        """Return whether the Borglet has to get packages, secrets or config files before the task can start."""
        return bool(self.packages or self.secrets)


class StopTask(msgspec.Struct, frozen=True):
    """An incarnation that should not run on this machine. `notice_s`: the longest time from the start of the stop until
    SIGKILL. A stop has two periods. First, clients stop using the task; then SIGTERM is sent, and the notice before
    SIGKILL begins. If `notice_s` is too short for both, the first period is shortened first.
    """

    key: TaskKey
    cause: str  # kill, preemption, update, drain, superseded, machine-failure, quarantine
    notice_s: float | None = None


class RunAlloc(msgspec.Struct, frozen=True):
    """Resources of this machine that tasks of several jobs share: a control group and a folder (§2.4).

    `ended`: the alloc has ended. Its folder stays for the tasks in `Desired.run` that save its logs. An alloc that the
    desired state does not list stays on the machine, like a task, until its key is in `Desired.stop`.
    """

    key: TaskKey
    name: str  # BNS name of the alloc
    limit: dict[str, int]
    priority: int
    latency_sensitive: bool
    prod: bool
    ended: bool = False


class Desired(msgspec.Struct, frozen=True):
    """The desired state of one machine. States with equal content have the same `generation`."""

    history_id: str
    history_ordinal: int  # each restore of the cell's database raises it
    revision: int
    epoch: int
    generation: str
    run: list[RunTask]
    stop: list[StopTask]
    allocs: list[RunAlloc] = []
