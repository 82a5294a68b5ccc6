"""Events of a Borglet, the only input of `AgentState`."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from borglet.messages import AllocReport, Desired, Exit, Removal, TaskKey, Usage
from borglet.runtimes.base.runtime import Presence
from borglet.state.instructions import Remembered


class Adopted(msgspec.Struct, frozen=True):
    """The Borglet started. What it remembers, and what is on the machine. Always the first event."""

    remembered: Remembered
    presences: tuple[Presence, ...]
    allocs: tuple[AllocReport, ...] = ()


class Polled(msgspec.Struct, frozen=True):
    """The shard asked, perhaps with a new desired state."""

    session: int
    sequence: int
    desired: Desired | None = None


class Saved(msgspec.Struct, frozen=True):
    """The data of `Save` is on the disk."""

    generation: str


class SaveFailed(msgspec.Struct, frozen=True):
    generation: str
    detail: str


class PackagesInstalled(msgspec.Struct, frozen=True):
    """All packages of the task are there and stay as long as the task is known here."""

    key: TaskKey
    run: int


class InstallFailed(msgspec.Struct, frozen=True):
    """A package can't be had; `detail` says which and why."""

    key: TaskKey
    run: int
    detail: str


class Started(msgspec.Struct, frozen=True):
    key: TaskKey
    run: int


class StartRefused(msgspec.Struct, frozen=True):
    """The runtime could not start it; `detail` says why."""

    key: TaskKey
    run: int
    detail: str


class StopRefused(msgspec.Struct, frozen=True):
    """The runtime failed to deliver the stop; it is tried again."""

    key: TaskKey
    detail: str


class Ended(msgspec.Struct, frozen=True):
    key: TaskKey
    run: int
    exit: Exit


class ProbeAnswered(msgspec.Struct, frozen=True):
    key: TaskKey
    run: int
    ok: bool
    detail: str = ""
    holds_s: float = 0.0


class Sampled(msgspec.Struct, frozen=True):
    usages: dict[TaskKey, Usage]


class AllocsHeld(msgspec.Struct, frozen=True):
    """The allocs that have a folder here, by now."""

    allocs: tuple[AllocReport, ...]


class MemoryPressure(msgspec.Struct, frozen=True):
    """The machine ran out of an incompressible resource, and this task must end (§6.2)."""

    key: TaskKey
    detail: str


class RemovalsWanted(msgspec.Struct, frozen=True):
    """Throttling does not help: the master should take these tasks away. All of them; empty when it helps again."""

    removals: tuple[Removal, ...]


class TimePassed(msgspec.Struct, frozen=True):
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
