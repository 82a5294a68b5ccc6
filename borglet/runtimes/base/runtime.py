"""The interface between the Borglet's agent and the runtime, which runs tasks on the machine.

    agent ── start, stop, resize, adjust, remove ──► runtime ──► one supervisor per task ──► the task's processes
    agent ◄─ next_end, presences, sample, ready ──── runtime

A runtime has no policy: no restarts, no health, no desired state. Its tasks must outlive it: after a SIGKILL of the
Borglet, `presences` of a new instance on the same directory lists everything that still runs *and* everything that
ended meanwhile, with its exit.
"""

from __future__ import annotations

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
    ShellClaims,
    TaskKey,
    Usage,
)
from borglet.runtimes.cgroups.limits import Grant

if TYPE_CHECKING:
    from borglet.runtimes.supervisor.ptys import Pty

NO_TREES: Mapping[str, Path] = MappingProxyType({})


class StartFailed(Exception):
    """The task could not be started. The text has the reason, for the owner of the job."""


@dataclass(frozen=True, slots=True)
class Presence:
    """One incarnation on this machine: running while `exit` is None, else ended that way.

    `task` is the request, which is stored on the disk for the next Borglet. `run` counts the starts of this
    incarnation here, from 1: a local restart is a new run.
    """

    task: RunTask
    run: int
    started_at: float
    exit: Exit | None

    @property
    def key(self) -> TaskKey:
        return self.task.key


class Runtime(Protocol):
    """All methods may be called from one asyncio loop only; none blocks it."""

    name: str
    api_url: str  # address of the REST API for tasks; empty until the cell sends it

    def attributes(self) -> dict[str, str]:
        """Return what this runtime offers on this machine: `runtime`, `isolation.memory`, `isolation.cpu`, … each
        with how it is enforced (`cgroup-v2`, `cgroup-v1`, `polled`, `none`)."""

    def capacity(self) -> dict[str, int]:
        """Return the capacity of the machine by resource name, units of `quota.vocabulary.resources.AXIS`."""

    async def start(self, task: RunTask, *, run: int, trees: Mapping[str, Path] = NO_TREES) -> None:
        """Start the task's processes. Raises `StartFailed`. Does nothing if the task already runs.

        `trees`: the task's packages in their order, each a read-only directory by the name it should appear under."""

    async def stop(self, key: TaskKey, *, notice_s: float, cause: EndCause, detail: str = "") -> None:
        """Send SIGTERM now, and SIGKILL to all remaining processes after `notice_s`. Return at once; the end arrives
        through `next_end` with `cause`. A second call may shorten the notice, never lengthen it."""

    async def resize(self, task: RunTask) -> None:
        """Apply a changed limit or priority to running processes, in place."""

    async def adjust(self, grants: Mapping[TaskKey, Grant], *, batch_milli: int, batch_idle: bool = True) -> None:
        """Apply the grants of the control loop to running tasks (§6.2). A task that is not named gets none.
        `batch_milli`: a ceiling of CPU for all of batch together, 0 for none. `batch_idle`: batch gets only CPU
        that no other process wants."""

    async def identify(self, key: TaskKey, token: str) -> None:
        """Set the identity of a running or future task, which is the content of `BORG_IDENTITY_FILE`. Raises
        OSError."""

    async def remove(self, key: TaskKey) -> None:
        """Forget an ended incarnation and its working directory; logs stay until their own time is up."""

    async def hold_allocs(self, allocs: Sequence[RunAlloc], dropped: Collection[TaskKey]) -> None:
        """Make a folder, and if possible a control group, for each of `allocs`. Remove those of `dropped` once no task
        uses them. All others stay unchanged. Raises OSError."""

    def allocs(self) -> list[AllocReport]:
        """Return every alloc that has a folder here, listed by the master or not."""

    def addresses(self) -> dict[TaskKey, str]:
        """Return the addresses of tasks with their own network."""

    async def presences(self) -> list[Presence]:
        """Return all incarnations here that run or are not yet removed, also those that an earlier Borglet started."""

    async def next_end(self) -> Presence:
        """Wait for the next incarnation that ends. Each end is delivered once: ends that `presences` returned at
        adoption are not delivered here again."""

    async def sample(self) -> dict[TaskKey, Usage]:
        """Return the usage of running tasks since the last call. Also enforce limits that the kernel does not."""

    async def ready(self, keys: Collection[TaskKey]) -> dict[TaskKey, int]:
        """Return how many threads of each task are ready to run now, with a core or waiting for one."""

    async def read_log(self, request: LogRequest) -> LogChunk:
        """Return part of a log, or the reason in `LogChunk.error`."""

    async def open_shell(self, claims: ShellClaims) -> Pty:
        """Open a shell on a terminal, inside the task's own namespaces, control groups and limits, as its user, with
        its environment. Raises `ShellRefused`."""

    async def close(self) -> None:
        """Release all resources without stopping a task."""
