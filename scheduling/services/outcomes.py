"""What a service is as a whole, and what a verb has done with each of its jobs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from quota.vocabulary.errors import Rejected


class ServiceState(StrEnum):
    """The state of a service. `scheduling/README.md` explains each value."""

    HEALTHY = "healthy"  # every task that should be up is up
    DEGRADED = "degraded"  # some tasks are up
    DOWN = "down"  # no task is up
    PARTLY_STOPPED = "partly-stopped"  # some jobs are live, and a start brings others back
    STOPPED = "stopped"  # no job is live, and a start brings jobs back


class Change(StrEnum):
    """What a verb has done with a job, or would do in a dry run."""

    STOPPED = "stopped"
    STARTED = "started"
    RESTARTED = "restarted"
    UNCHANGED = "unchanged"  # the job needs no change
    REFUSED = "refused"  # the job was not changed because of `problem`


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """What a verb has done with one job. `tasks`: how many tasks it stops, starts or restarts. `detail`: why the job is
    unchanged, or what to know about its change; may be empty.
    """

    job: str
    change: Change
    tasks: int = 0
    detail: str = ""
    problem: Rejected | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceChange:
    """What a verb has done with a service. `quota`: sentences about the quota before and after; empty if it does not
    change.
    """

    service: str
    jobs: tuple[JobChange, ...]
    quota: tuple[str, ...] = ()

    @classmethod
    def of(cls, service: str, changes: Iterable[JobChange], quota: Sequence[str] = ()) -> ServiceChange:
        """Return the changes with rejected jobs first, then by name."""
        ordered = sorted(changes, key=lambda one: (one.change is not Change.REFUSED, one.job))
        return cls(service=service, jobs=tuple(ordered), quota=tuple(quota))

    @property
    def changed(self) -> list[JobChange]:
        return [one for one in self.jobs if one.change not in (Change.UNCHANGED, Change.REFUSED)]

    @property
    def problems(self) -> list[JobChange]:
        return [one for one in self.jobs if one.change is Change.REFUSED]

    @property
    def tasks(self) -> int:
        return sum(one.tasks for one in self.changed)


def service_state(*, jobs: int, stopped: int, wanted: int, up: int) -> ServiceState:
    """Return the state of a service. `jobs`: its live jobs. `stopped`: its jobs that a start brings back. `wanted`: how
    many tasks of the live jobs should be up. `up`: how many of them are up.
    """
    if not jobs:
        return ServiceState.STOPPED
    if stopped:
        return ServiceState.PARTLY_STOPPED
    if up >= wanted:
        return ServiceState.HEALTHY
    return ServiceState.DEGRADED if up else ServiceState.DOWN
