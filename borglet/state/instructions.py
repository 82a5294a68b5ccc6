"""Instructions, the only output of `AgentState`, carried out by `agent`."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from borglet.messages import Desired, EndCause, Exit, HealthCheck, RunAlloc, RunTask, TaskKey


class GivenUp(msgspec.Struct, frozen=True):
    """An incarnation that used up its restarts. `run` still lists it, but it does not start again."""

    key: TaskKey
    run: int
    exit: Exit


class Remembered(msgspec.Struct, frozen=True):
    """State that must survive the Borglet and cannot be read from the machine."""

    desired: Desired | None = None
    given_up: list[GivenUp] = []
    quarantined: list[TaskKey] = []


class Save(msgspec.Struct, frozen=True):
    """Write to the disk, then answer `Saved` or `SaveFailed` with the generation. The Borglet does not act on a
    desired state before it is saved."""

    remembered: Remembered

    @property
    def generation(self) -> str:
        return self.remembered.desired.generation if self.remembered.desired else ""


class Install(msgspec.Struct, frozen=True):
    """Make the task's packages present. Answered by `Installed` or `InstallFailed`."""

    task: RunTask
    run: int


class CancelInstall(msgspec.Struct, frozen=True):
    """Cancel an installation that no task waits for. A late answer is ignored."""

    key: TaskKey


class Start(msgspec.Struct, frozen=True):
    """Start a run of a task. The runtime answers with `Started` or `StartRefused`."""

    task: RunTask
    run: int


class Terminate(msgspec.Struct, frozen=True):
    """SIGTERM, `notice_s`, SIGKILL; the end arrives as `Ended`."""

    key: TaskKey
    notice_s: float
    cause: EndCause
    detail: str = ""


class Resize(msgspec.Struct, frozen=True):
    """Apply a changed limit or priority to running processes."""

    task: RunTask


class Remove(msgspec.Struct, frozen=True):
    """Forget an ended incarnation, because the master has received its end."""

    key: TaskKey


class HoldAllocs(msgspec.Struct, frozen=True):
    """Create a folder for each of `allocs`, and remove those of `dropped`. Answered by `AllocsHeld`."""

    allocs: tuple[RunAlloc, ...]
    dropped: frozenset[TaskKey]


class Probe(msgspec.Struct, frozen=True):
    """Answered by `ProbeAnswered`."""

    key: TaskKey
    run: int
    check: HealthCheck
    port: int


Instruction: TypeAlias = Save | Install | CancelInstall | Start | Terminate | Resize | Remove | HoldAllocs | Probe
