"""Events of a Borglet, the only input of `AgentState`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from borglet.messages import AllocReport, Desired, Exit, Removal, TaskKey, Usage
from borglet.runtimes.base.runtime import Presence
from borglet.state.instructions import Remembered


@dataclass(frozen=True, slots=True)
class Adopted:
    """The Borglet started. What it remembers, and what is on the machine. Always the first event."""

    remembered: Remembered
    presences: tuple[Presence, ...]
    allocs: tuple[AllocReport, ...] = ()


@dataclass(frozen=True, slots=True)
class Polled:
    """The shard asked, perhaps with a new desired state."""

    session: int
    sequence: int
    desired: Desired | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """The data of `Save` is on the disk."""

    generation: str


@dataclass(frozen=True, slots=True)
class SaveFailed:
    generation: str
    detail: str


@dataclass(frozen=True, slots=True)
class PackagesInstalled:
    """All packages of the task are there and stay as long as the task is known here."""

    key: TaskKey
    run: int


@dataclass(frozen=True, slots=True)
class InstallFailed:
    """A package can't be had; `detail` says which and why."""

    key: TaskKey
    run: int
    detail: str


@dataclass(frozen=True, slots=True)
class Started:
    key: TaskKey
    run: int


@dataclass(frozen=True, slots=True)
class StartRefused:
    """The runtime could not start it; `detail` says why."""

    key: TaskKey
    run: int
    detail: str


@dataclass(frozen=True, slots=True)
class StopRefused:
    """The runtime failed to deliver the stop; it is tried again."""

    key: TaskKey
    detail: str


@dataclass(frozen=True, slots=True)
class Ended:
    key: TaskKey
    run: int
    exit: Exit


@dataclass(frozen=True, slots=True)
class ProbeAnswered:
    key: TaskKey
    run: int
    ok: bool
    detail: str = ""
    holds_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Sampled:
    usages: dict[TaskKey, Usage]


@dataclass(frozen=True, slots=True)
class AllocsHeld:
    """The allocs that have a folder here, by now."""

    allocs: tuple[AllocReport, ...]


@dataclass(frozen=True, slots=True)
class MemoryPressure:
    """The machine ran out of an incompressible resource, and this task must end (§6.2)."""

    key: TaskKey
    detail: str


@dataclass(frozen=True, slots=True)
class RemovalsWanted:
    """Throttling does not help: the master should take these tasks away. All of them; empty when it helps again."""

    removals: tuple[Removal, ...]


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time of `AgentState.next_wake` has come."""


Event: TypeAlias = (
    Adopted
    | Polled
    | Saved
    | SaveFailed
    | PackagesInstalled
    | InstallFailed
    | Started
    | StartRefused
    | StopRefused
    | Ended
    | ProbeAnswered
    | Sampled
    | AllocsHeld
    | MemoryPressure
    | RemovalsWanted
    | TimePassed
)
