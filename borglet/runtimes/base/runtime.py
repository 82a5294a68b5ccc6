"""The interface between the Borglet's agent and the runtime, which runs tasks on the machine.

    agent ── start, stop, resize, adjust, remove ──► runtime ──► one supervisor per task ──► the task's processes
    agent ◄─ next_end, presences, sample, ready ──── runtime

A runtime makes no decisions: it does not restart tasks or check their health, and it has no desired state. Tasks
continue if the Borglet is killed. The next Borglet creates a new runtime on the same directory. Its `presences` returns
the tasks that still run, and the tasks that have ended in the meantime, with their exits.
"""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from borglet.messages import (
    AllocReport,
    EndCause,
    Exit,
    LogChunk,
    LogRequest,
    RunAlloc,
    RunTask,
    SecretRef,
    SecretValue,
    ShellClaims,
    TaskKey,
    TaskRun,
    Usage,
)
from borglet.runtimes.cgroups.limits import Grant

if TYPE_CHECKING:
    from borglet.runtimes.supervisor.ptys import Pty

NO_TREES: Mapping[str, Path] = MappingProxyType({})


class StartFailed(Exception):
    """The error if the machine could not start a task. The message has the reason, for the owner of the job."""


class TaskDoors(Protocol):
    """What answers the requests of tasks at their sockets."""

    async def open(self, run: TaskRun, listener: socket.socket) -> None:
        """Answer the requests of a run at a bound socket."""

    def adopt(self, run: TaskRun) -> None:
        """Continue the session of a run that an earlier Borglet started, also if its socket cannot be opened."""

    def close(self, run: TaskRun) -> None:
        """Close the socket of a run. Its session continues until its processes have ended."""

    def ended(self, run: TaskRun, *, certain: bool) -> None:
        """End the session of a run. `certain`: all its processes have ended."""


@dataclass(frozen=True, slots=True)
class Presence:
    """One incarnation of a task on this machine. It still runs if `exit` is None.

    `task`: the request to run it, stored on the disk for the next Borglet. `run`: the number of starts of this
    incarnation on this machine, from 1. A local restart is a new run."""

    task: RunTask
    run: int
    started_at: float
    exit: Exit | None

    @property
    def key(self) -> TaskKey:
        return self.task.key


class Runtime(Protocol):
    """The interface of all runtimes. Call `presences` first. Call all methods from the same asyncio loop. No method
    blocks the loop.
    """

    name: str
    api_url: str  # address of the REST API for tasks; empty until the cell sends it

    def attributes(self) -> dict[str, str]:
        """Return attributes of this machine: `runtime`, `isolation.memory`, `isolation.cpu`, …

        The value of each `isolation` attribute says how a limit is enforced, for example `cgroup-v2`, `polled` (the
        Borglet measures the usage, and stops a task that exceeds the limit) or `none`.
        """

    def capacity(self) -> dict[str, int]:
        """Return the machine's capacity by resource name: CPU in milli-cores, RAM and disk in bytes."""

    async def start(
        self, task: RunTask, *, run: int, trees: Mapping[str, Path] = NO_TREES, secrets: Sequence[SecretValue] = ()
    ) -> None:
        """Start the task's processes, unless the task already runs. Raises `StartFailed` if the task cannot be started.

        `trees`: read-only directories of the task's packages by mount name, in the order of the packages. `secrets`:
        the values of the task's secrets and config files, which are written to no disk.
        """

    async def stop(self, key: TaskKey, *, notice_s: float, cause: EndCause, detail: str = "") -> None:
        """Send SIGTERM now, and SIGKILL to all remaining processes after `notice_s`. This call does not wait for the
        end of the task: `next_end` returns it later, with `cause`. A second call can only shorten `notice_s`. Raises
        OSError if the kernel or the disk reports an error.
        """

    async def resize(self, task: RunTask) -> None:
        """Apply the changed limits and priority of `task` to its running processes, without a restart."""

    async def adjust(self, grants: Mapping[TaskKey, Grant], *, batch_milli: int, batch_idle: bool = True) -> None:
        """Set temporary limits (`grants`) of running tasks (§6.2). A task that is not in `grants` gets its usual limits
        again.

        `batch_milli`: a CPU limit for all batch tasks together, in milli-cores; 0 means no limit. `batch_idle`: batch
        tasks get only CPU that no other process needs.
        """

    async def identify(self, key: TaskKey, token: str) -> None:
        """Set the signed identity of a task that runs or will run. `token` becomes the content of the file that the
        task finds in `BORG_IDENTITY_FILE`. Raises OSError if the file cannot be written.
        """

    async def renew_secrets(self, key: TaskKey, secrets: Sequence[SecretValue], *, signal: bool = False) -> None:
        """Replace the files of a running task that contain secrets, and its config files. Environment variables keep
        their values. `signal`: send SIGHUP to the task's first process afterwards. Raises OSError if a file cannot be
        written.
        """

    def secrets_of(self, key: TaskKey) -> list[SecretRef]:
        """Return the secrets and config files that a running task has, without their values."""

    async def remove(self, key: TaskKey) -> None:
        """Delete an ended incarnation and its working directory. Its logs stay until they expire. Raises OSError if a
        file cannot be moved or deleted.
        """

    async def hold_allocs(self, allocs: Sequence[RunAlloc], dropped: Collection[TaskKey]) -> None:
        """Create a folder and, if possible, a control group for each of `allocs`. Remove each alloc in `dropped` that
        no task uses. All other allocs stay unchanged. Raises OSError if a folder or a group cannot be created or
        removed.
        """

    def allocs(self) -> list[AllocReport]:
        """Return every alloc that has a folder on this machine, whether or not the master lists it."""

    def addresses(self) -> dict[TaskKey, str]:
        """Return the IP address of each task that has its own network."""

    async def presences(self) -> list[Presence]:
        """Return all incarnations on this machine, also ended ones until they are removed. The first call also finds
        the tasks that an earlier Borglet started.
        """

    async def next_end(self) -> Presence:
        """Wait until an incarnation ends, and return it with its exit. Each end is returned once. This method does not
        return ends that the first call of `presences` has returned.
        """

    async def sample(self) -> dict[TaskKey, Usage]:
        """Return the usage of running tasks since the last call. Also stop tasks that exceed a limit."""

    async def ready(self, keys: Collection[TaskKey]) -> dict[TaskKey, int]:
        """Return how many threads of each task run or wait for a core now."""

    async def read_log(self, request: LogRequest) -> LogChunk:
        """Return the requested part of a log. If the log cannot be read, the field `error` of the result contains the
        reason.
        """

    async def open_shell(self, claims: ShellClaims) -> Pty:
        """Open a shell on a terminal, with the task's namespaces, control groups, limits, user and environment.

        Raises `ShellRefused` if the shell cannot be opened.
        """

    async def close(self) -> None:
        """Release all resources. All tasks keep running."""
