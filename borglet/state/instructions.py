"""Instructions, the only output of `AgentState`, carried out by `agent`."""

from __future__ import annotations

from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Save:
    """Write to the disk, then answer `Saved` or `SaveFailed` with the generation: nothing of a desired state is
    acted upon before it is safe there."""

    remembered: Remembered

    @property
    def generation(self) -> str:
        return self.remembered.desired.generation if self.remembered.desired else ""


@dataclass(frozen=True, slots=True)
class Install:
    """Make the task's packages present. Answered by `Installed` or `InstallFailed`."""

    task: RunTask
    run: int


@dataclass(frozen=True, slots=True)
class CancelInstall:
    """Cancel an installation that no task waits for. A late answer is ignored."""

    key: TaskKey


@dataclass(frozen=True, slots=True)
class Start:
    """Answered by `Started` or `StartRefused`."""

    task: RunTask
    run: int


@dataclass(frozen=True, slots=True)
class Terminate:
    """SIGTERM, `notice_s`, SIGKILL; the end arrives as `Ended`."""

    key: TaskKey
    notice_s: float
    cause: EndCause
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Resize:
    """Apply a changed limit or priority to what runs."""

    task: RunTask


@dataclass(frozen=True, slots=True)
class Remove:
    """Forget an ended incarnation: the master has heard of its end."""

    key: TaskKey


@dataclass(frozen=True, slots=True)
class HoldAllocs:
    """Have a folder for each of `allocs`; let those of `dropped` go. Answered by `AllocsHeld`."""

    allocs: tuple[RunAlloc, ...]
    dropped: frozenset[TaskKey]


@dataclass(frozen=True, slots=True)
class Probe:
    """Answered by `ProbeAnswered`."""

    key: TaskKey
    run: int
    check: HealthCheck
    port: int


Instruction: TypeAlias = Save | Install | CancelInstall | Start | Terminate | Resize | Remove | HoldAllocs | Probe
