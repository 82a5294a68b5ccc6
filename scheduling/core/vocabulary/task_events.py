"""The conversion of task changes (placements, evictions and ends) to events. Production and the simulator share it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.requirement import split_task_id, task_id
from scheduling.core.vocabulary.states import EvictionCause


class Cause(msgspec.Struct, frozen=True, gc=False):
    """A reference to the event that caused another event. For example, the event of an eviction refers to the drain
    that caused it.
    """

    revision: int
    seq: int


@dataclass(frozen=True, slots=True)
class Eviction:
    """An eviction: a running task becomes pending again. `cause`: a value of `EvictionCause`.

    `gone`: the task's processes have already ended. `avoid`: for some time, do not place the task on the same machine
    again. `preemptor`: id of the task that preempts this task. `notice_s`: the longest time until SIGKILL, in seconds;
    None: the notice period of the job file. `alloc_cause`: the cause for which the alloc that contains the task leaves;
    empty if the task leaves alone.
    """

    task_id: int
    incarnation: int
    cause: str
    detail: str = ""
    gone: bool = False
    avoid: bool = False
    preemptor: int | None = None
    notice_s: float | None = None
    exit: dict[str, Any] | None = None
    caused_by: Cause | None = None
    alloc_cause: str = ""

    @property
    def disrupts(self) -> bool:
        """Return whether the cell causes this eviction, and not the job itself. Such an eviction counts for the rate of
        disruptions of the job (§4). Evictions by updates, restarts and crashes do not count.
        """
        return (self.alloc_cause or self.cause) in _DISRUPTIVE


_DISRUPTIVE = frozenset(
    cause.value
    for cause in (
        EvictionCause.PREEMPTION,
        EvictionCause.MACHINE_FAILURE,
        EvictionCause.MACHINE_SHUTDOWN,
        EvictionCause.OUT_OF_RESOURCES,
        EvictionCause.DEDICATED_POOL,
        EvictionCause.LOST,
    )
)


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a pending or running task. The task becomes dead. `how`: finished, failed or killed.

    `incarnation`: only this incarnation ends; None: any incarnation. `cause`: the reason that is sent to the Borglet.
    """

    task_id: int
    how: str
    incarnation: int | None = None
    cause: str = "kill"
    detail: str = ""
    gone: bool = False
    exit: dict[str, Any] | None = None
    caused_by: Cause | None = None


@dataclass(frozen=True, slots=True)
class InnerTask:
    """A task inside an alloc. `alloc_id`: task id of the alloc. `alloc`: its name, such as `web/3`."""

    task_id: int
    incarnation: int
    alloc_id: int
    alloc: str


def placed_event(assignment: Assignment, *, incarnation: int, spec_version: int = 1) -> events.TaskPlaced:
    """Return the event of an applied assignment. `incarnation`: the number of the new incarnation."""
    return events.TaskPlaced(
        job_id=assignment.job_id,
        index=assignment.index,
        machine_id=assignment.machine_id,
        incarnation=incarnation,
        ports=assignment.ports,
        spec_version=spec_version,
        score=assignment.score,
        victims=assignment.victims,
        alloc=assignment.alloc,
        devices=assignment.devices,
        runners_up=assignment.runners_up,
        packages=assignment.packages,
    )


def evicted_event(eviction: Eviction, *, machine_id: int, incarnation: int) -> events.TaskEvicted:
    """Return the event of an eviction from a machine. `incarnation`: the incarnation that was evicted."""
    job_id, index = split_task_id(eviction.task_id)
    return events.TaskEvicted(
        job_id=job_id,
        index=index,
        machine_id=machine_id,
        incarnation=incarnation,
        cause=eviction.cause,
        detail=eviction.detail,
        gone=eviction.gone,
        avoid=eviction.avoid,
        preemptor=split_task_id(eviction.preemptor) if eviction.preemptor is not None else None,
        exit=eviction.exit,
    )


def ended_event(ending: Ending, *, machine_id: int | None, incarnation: int) -> events.TaskEnded:
    """Return the event of the end of a task. `machine_id`: None if the task was pending."""
    job_id, index = split_task_id(ending.task_id)
    return events.TaskEnded(
        job_id=job_id,
        index=index,
        machine_id=machine_id or 0,
        incarnation=incarnation,
        how=ending.how,
        detail=ending.detail,
        gone=ending.gone or machine_id is None,
        exit=ending.exit,
    )


def victims_of(assignments: Iterable[Assignment]) -> dict[int, Assignment]:
    """Return the assignment that preempts each victim, by task id of the victim."""
    return {task_id(*victim): assignment for assignment in assignments for victim in assignment.victims}


def preemptions(
    claims: Mapping[int, Assignment],
    running: Mapping[int, tuple[int | None, int]],
    delays: Mapping[int, float] = MappingProxyType({}),
) -> list[Eviction]:
    """Return the evictions of the victims that still run on the machine of their preemptor. Victims that have already
    left the machine need no eviction.

    `claims`: the assignment that preempts each victim, by task id of the victim. `running`: (machine id, incarnation)
    of each victim that still runs, by task id. `delays`: the delay bound of preemptors that have one, in seconds, by
    job id.
    """
    return [
        Eviction(
            task_id=victim,
            incarnation=running[victim][1],
            cause=EvictionCause.PREEMPTION.value,
            detail="preempted by a more urgent task",  # `why` names it to callers that may see it
            preemptor=task_id(assignment.job_id, assignment.index),
            notice_s=delays.get(assignment.job_id),
        )
        for victim, assignment in claims.items()
        if victim in running and running[victim][0] == assignment.machine_id
    ]


def evictions_inside(inside: Sequence[InnerTask], why: Mapping[int, Eviction | Ending]) -> list[Eviction]:
    """Return an eviction for each task inside the allocs that leave their machines (§2.4). `why`: the eviction or the
    end of each task and alloc that leaves, by task id.
    """
    result = []
    for inner in inside:
        own = why.get(inner.task_id)
        if isinstance(own, Eviction) and own.incarnation == inner.incarnation:
            result.append(own)
            continue
        alloc = why[inner.alloc_id]
        result.append(
            Eviction(
                inner.task_id,
                inner.incarnation,
                EvictionCause.OTHER.value,
                detail=f"its alloc {inner.alloc} was stopped: {alloc.detail or alloc.cause}",
                gone=alloc.gone,
                preemptor=alloc.preemptor if isinstance(alloc, Eviction) else None,
                notice_s=alloc.notice_s if isinstance(alloc, Eviction) else None,
                caused_by=alloc.caused_by,
                alloc_cause=alloc.cause,
            )
        )
    return result
