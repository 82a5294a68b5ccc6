"""The events of a Borglet. They are the only input of `AgentState`.

In the events, `run` is the number of a start of the task on this machine, counted from 1. A start includes the
installation of the task's packages.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from borglet.messages import AllocReport, Desired, Exit, Removal, TaskKey, Usage
from borglet.runtimes.base.runtime import Presence
from borglet.state.instructions import Remembered


class Adopted(msgspec.Struct, frozen=True):
    """The Borglet started. This is always the first event. `remembered`: the saved state. `presences`: the tasks on the
    machine.
    """

    remembered: Remembered
    presences: tuple[Presence, ...]
    allocs: tuple[AllocReport, ...] = ()


class Polled(msgspec.Struct, frozen=True):
    """A poll of the master arrived. `desired`: the new desired state, or None if there is none."""

    session: int
    sequence: int
    desired: Desired | None = None


class Saved(msgspec.Struct, frozen=True):
    """The state in the instruction `Save` is now on the disk."""

    generation: str


class SaveFailed(msgspec.Struct, frozen=True):
    generation: str
    detail: str


class PackagesInstalled(msgspec.Struct, frozen=True):
    """All packages of a task are installed. They stay installed until the Borglet deletes its data about the task."""

    key: TaskKey
    run: int


class InstallFailed(msgspec.Struct, frozen=True):
    """A package of a task could not be installed. `detail`: which package, and why."""

    key: TaskKey
    run: int
    detail: str


class Started(msgspec.Struct, frozen=True):
    key: TaskKey
    run: int


class StartRefused(msgspec.Struct, frozen=True):
    """The runtime could not start the task. `detail`: the reason."""

    key: TaskKey
    run: int
    detail: str


class StopRefused(msgspec.Struct, frozen=True):
    """The runtime could not stop the task. The Borglet tries again."""

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
    """The folders of allocs on this machine have changed. `allocs`: all allocs that now have a folder."""

    allocs: tuple[AllocReport, ...]


class MemoryPressure(msgspec.Struct, frozen=True):
    """The machine ran out of memory or disk space. This task must end, so that its memory or disk space becomes free
    (§6.2).
    """

    key: TaskKey
    detail: str


class RemovalsWanted(msgspec.Struct, frozen=True):
    """The master should evict these tasks, because limiting their CPU usage did not help. Each event has the complete
    list.
    """

    removals: tuple[Removal, ...]


class TimePassed(msgspec.Struct, frozen=True):
    """The time that `AgentState.next_wake` returned has come."""


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
