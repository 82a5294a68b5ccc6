"""The instructions of `AgentState`, which are its only output. The Borglet's agent carries them out."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from borglet.messages import Desired, EndCause, Exit, HealthCheck, RunAlloc, RunTask, TaskKey


class GivenUp(msgspec.Struct, frozen=True):
    """An incarnation that failed too often and does not start again, although the desired state still lists it."""

    key: TaskKey
    run: int
    exit: Exit


class Remembered(msgspec.Struct, frozen=True):
    """The data that a restarted Borglet needs, but cannot read from the runtime. `quarantined`: incarnations that the
    master has not listed since its database was restored from a backup or replaced; an SRE decides about them.
    """

    desired: Desired | None = None
    given_up: list[GivenUp] = []
    quarantined: list[TaskKey] = []


class Save(msgspec.Struct, frozen=True):
    """Save the state on the disk. The agent answers with `Saved` or `SaveFailed`. The Borglet applies a desired state
    only after `Saved`.
    """

    remembered: Remembered

    @property
    def generation(self) -> str:
        return self.remembered.desired.generation if self.remembered.desired else ""


class Install(msgspec.Struct, frozen=True):
    """Install the packages of a task, and get the values of its secrets. The agent answers with `PackagesInstalled` or
    `InstallFailed`.
    """

    task: RunTask
    run: int


class CancelInstall(msgspec.Struct, frozen=True):
    """Cancel the installation of a task's packages. If an answer to `Install` still arrives, it is ignored."""

    key: TaskKey


class Start(msgspec.Struct, frozen=True):
    """Start a run of a task. The agent answers with `Started` or `StartRefused`."""

    task: RunTask
    run: int


class Terminate(msgspec.Struct, frozen=True):
    """Send SIGTERM to a task, and SIGKILL after `notice_s` seconds. When the task has ended, the agent sends the event
    `Ended`.
    """

    key: TaskKey
    notice_s: float
    cause: EndCause
    detail: str = ""


class Resize(msgspec.Struct, frozen=True):
    """Apply a changed limit or priority, or new versions of secrets, to a running task."""

    task: RunTask


class Remove(msgspec.Struct, frozen=True):
    """Delete the files of an ended incarnation. The master has already received the report of its end."""

    key: TaskKey


class HoldAllocs(msgspec.Struct, frozen=True):
    """Create a folder for each alloc in `allocs`, and remove the folders of the allocs in `dropped`. The agent answers
    with `AllocsHeld`.
    """

    allocs: tuple[RunAlloc, ...]
    dropped: frozenset[TaskKey]


class Probe(msgspec.Struct, frozen=True):
    """Probe the health of a task. The agent answers with `ProbeAnswered`."""

    key: TaskKey
    run: int
    check: HealthCheck
    port: int


Instruction: TypeAlias = Save | Install | CancelInstall | Start | Terminate | Resize | Remove | HoldAllocs | Probe
