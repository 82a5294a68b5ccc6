"""The structure of a job file, version `borg/v1`: fields, their types and defaults. Pure."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec

from borglet.messages import NOTHING, RESTART, RestartPolicy, Slack
from quota.vocabulary.bands import FREE_PRIORITY
from scheduling.core.vocabulary.requirement import Constraint
from scheduling.spec.autoscaling.fields import Autoscale
from scheduling.spec.disruptions.limits import DisruptionBudget

API_VERSION = "borg/v1"
LATEST = "latest"  # the newest version of a secret or a config file
# The name of a lock, or of a folder of locks: parts between slashes.
_LOCK_PART = r"[a-z0-9][a-z0-9._-]{0,62}"
LOCK_NAME, MAX_LOCK_NAME = re.compile(rf"{_LOCK_PART}(/{_LOCK_PART}){{0,9}}"), 200
LOCK_NAME_RULE = (
    "use parts of lower-case letters, digits, '.', '_' and '-', beginning with a letter or digit, with '/' between"
    f" them, at most {MAX_LOCK_NAME} characters"
)
SERVICE_LABEL = "service"  # DNS serves jobs with the same value of this label together


class Restart(RestartPolicy, frozen=True, forbid_unknown_fields=True):
    """The rules for restarts, which the Borglet applies. `max_moves`: how often a task that crashes repeatedly is
    moved to another machine (§4).
    """

    max_moves: int = 3

    def policy(self) -> RestartPolicy:
        return RestartPolicy(self.on, self.max_failures, self.window_s, self.backoff_s, self.backoff_max_s)


class HealthFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    http: str | None = None
    tcp: bool = False
    port: str | None = None
    interval_s: float = 5.0
    timeout_s: float = 2.0
    grace_s: float = 30.0
    failures: int = 3


class SecretUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The use of a secret of the tenant in a task. It has no value. `file`: the name of the file with the value. `env`:
    the name of the environment variable with the value. `version`: a number, or `latest`.
    """

    name: str
    file: str = ""
    env: str = ""
    version: int | str = LATEST


class ConfigUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The use of a config file of the tenant in a task. `file`: the name of the file in the folder `$BORG_CONFIGS`.
    `version`: a number, or `latest`. `on_change`: what follows from a new version if `version` is `latest`: nothing,
    signal or restart. With `nothing` and `signal`, the file is replaced while the task runs.
    """

    name: str
    file: str = ""
    version: int | str = LATEST
    on_change: str = NOTHING

    @property
    def path(self) -> str:
        """Return the name of the file for the task: `file`, or else the name of the config file."""
        return self.file or self.name

    @property
    def restarts(self) -> bool:
        """Return whether a new version of the file restarts the task."""
        return self.version == LATEST and self.on_change == RESTART


class TaskFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a task that mean the same in a job file and in a parsed spec."""

    notice_s: float = 10.0
    max_run_s: float | None = None
    restart: Restart = Restart()
    max_processes: int = 1024
    working_dir: str = ""
    user: str = ""
    root: str = "host"
    network: str = "host"
    slack: Slack = Slack()
    whole_cores: bool = False
    weight: int = 1


class TaskFile(TaskFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields under `task` in a job file."""

    command: list[str] = []
    env: dict[str, Any] = {}
    limit: dict[str, Any] = {}
    ports: list[str] = []
    health: HealthFile | None = None
    constraints: list[Constraint] = []
    packages: list[str] = []
    flags: dict[str, Any] = {}
    secrets: list[SecretUse] = []
    configs: list[ConfigUse] = []
    plain_env: list[str] = []
    locks: list[str] = []


# What promotes the canary tasks.
HEALTHY, MANUAL = "healthy", "manual"


class Spread(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The largest number of tasks of the job on one machine, in one rack and in one power domain; 0: no limit."""

    max_per_machine: int = 0
    max_per_rack: int = 0
    max_per_power_domain: int = 0


class Rolling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of updates (§2.3). `max_down`: how many tasks may be down at once; 0: a tenth of the tasks, but at
    least one. `max_disruptions`: how many restarts and moves an update may cause; 0: no limit.

    These apply to updates that restart tasks. `canary`: how many tasks, those with the lowest indexes, change first; 0:
    none. `promote`: what lets the other tasks change: `healthy`, all canary tasks have been up for `healthy_s` seconds,
    or `manual`, a person resumes the update. `rollback`: whether the job returns to its last good version if a task of
    the new version fails, or if the update is late. `deadline_s`: how many seconds an update may take; None: no limit.
    """

    max_down: int = 0
    max_disruptions: int = 0
    canary: int = 0
    promote: str = HEALTHY
    healthy_s: float = 60.0
    rollback: bool = False
    deadline_s: float | None = None


class Names(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings of the job's names (§2.6). A change of the settings takes effect at once for all tasks.

    `ttl_s`: how long clients may cache an answer, in seconds; 0: the default of the installation. `leave_s`: how many
    seconds before SIGTERM a stopping task is removed from answers; None: one second more than clients may cache an
    answer (at most ten minutes), or zero for tasks without ports.
    """

    ttl_s: int = 0
    leave_s: float | None = None


Moment = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]


class JobFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a job that mean the same in a job file and in a parsed spec."""

    name: str
    tenant: str = ""
    cell: str = ""
    tasks: int = 1
    spread: Spread = Spread()
    update: Rolling = Rolling()
    alloc_set: str = ""
    reclamation: bool = True
    gang: bool = False
    disruption_budget: DisruptionBudget = 0
    max_running: int = 0
    preemption_delay_s: float | None = None
    saves_for_s: float = 0.0
    deadline_s: float | None = None
    start_after: Moment | None = None
    after: dict[str, str] = {}
    ttl_after_end_s: float | None = None
    api: str = "none"
    names: Names = Names()
    autoscale: Autoscale | None = None


class JobFile(JobFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fields of a job file. `scheduling.spec.task_spec` parses `task` and the overrides."""

    task: dict[str, Any]
    apiVersion: str = API_VERSION  # noqa: N815 - the file's own spelling
    kind: str = "Job"
    labels: dict[str, Any] = {}
    priority: int | str = FREE_PRIORITY
    appclass: str | None = None
    overrides: dict[str, Any] = {}
