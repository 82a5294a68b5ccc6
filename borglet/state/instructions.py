"""Instructions, the only output of `AgentState`, carried out by `agent`."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from borglet.messages import Desired, EndCause, Exit, HealthCheck, RunAlloc, RunTask, TaskKey


class GivenUp(msgspec.Struct, frozen=True):
    """An incarnation that spent its restarts: still listed in `run`, and yet not to be started again."""

    key: TaskKey
    run: int
    exit: Exit


class Remembered(msgspec.Struct, frozen=True):
    """State that must survive the Borglet and cannot be read from the machine."""

    desired: Desired | None = None
    given_up: list[GivenUp] = []
    quarantined: list[TaskKey] = []


class Save(msgspec.Struct, frozen=True):
    """Write to the disk, then answer `Saved` or `SaveFailed` with the generation: nothing of a desired state is
    acted upon before it is safe there."""

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
    """Answered by `Started` or `StartRefused`."""

    task: RunTask
    run: int


class Terminate(msgspec.Struct, frozen=True):
    """SIGTERM, `notice_s`, SIGKILL; the end arrives as `Ended`."""

    key: TaskKey
    notice_s: float
    cause: EndCause
    detail: str = ""


class Resize(msgspec.Struct, frozen=True):
    """Apply a changed limit or priority to what runs."""

    task: RunTask


class Remove(msgspec.Struct, frozen=True):
    """Forget an ended incarnation: the master has heard of its end."""

    key: TaskKey


class HoldAllocs(msgspec.Struct, frozen=True):
    """Have a folder for each of `allocs`; let those of `dropped` go. Answered by `AllocsHeld`."""

    allocs: tuple[RunAlloc, ...]
    dropped: frozenset[TaskKey]


class Probe(msgspec.Struct, frozen=True):
    """Answered by `ProbeAnswered`."""

    key: TaskKey
    run: int
    check: HealthCheck
    port: int


Instruction: TypeAlias = Save | Install | CancelInstall | Start | Terminate | Resize | Remove | HoldAllocs | Probe
