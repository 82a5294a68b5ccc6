"""The newest placement and the newest preemption of a task (§3.2), read from the journal: the score, the next best
machines, and the other tasks of a preemption (see `preemptors`).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from scheduling.models import Event, Machine
from scheduling.tasks.preemptors import Party, parties_of

PREEMPTION = "preemption"


@dataclass(frozen=True, slots=True)
class PlacementReceipt:
    """The record of a placement: the points from each scorer, the next best machines, and the preempted tasks.

    `packages_bytes`: the size of the packages that the task needs. `present_bytes`: the part of them that the machine
    already had. Both are 0 if the task has no packages.
    """

    machine: str
    revision: int
    time: dt.datetime
    incarnation: int
    score: dict[str, float] = field(default_factory=dict)
    runners_up: tuple[tuple[str, float], ...] = ()
    victims: tuple[Party, ...] = ()
    present_bytes: int = 0
    packages_bytes: int = 0

    @property
    def total(self) -> float:
        return round(sum(self.score.values()), 6)


@dataclass(frozen=True, slots=True)
class Preempted:
    """The record of a preemption: on which machine and when the task was preempted, and by which task."""

    machine: str
    revision: int
    time: dt.datetime
    by: Party | None


@dataclass(frozen=True, slots=True)
class Receipts:
    """The record of a task's newest placement, and of the newest preemption that stopped the task."""

    placement: PlacementReceipt | None = None
    preempted: Preempted | None = None


def receipts(events: Sequence[Event], *, sees: Callable[[str], bool]) -> Receipts:
    """Return the newest placement and the newest preemption of a task. `events`: the events of the task, newest first.
    Makes two queries.

    `sees`: a function that returns whether the reader may see the jobs of a tenant.
    """
    placed = next((event for event in events if event.kind == "task.placed"), None)
    evicted = (event for event in events if event.kind == "task.evicted")
    lost = next((event for event in evicted if event.data.get("cause") == PREEMPTION), None)
    detail = [event for event in (placed, lost) if event is not None]
    machines = {event.machine_id for event in detail if event.machine_id}
    pairs: list[tuple[int, int]] = []
    if placed is not None:
        machines |= {machine for machine, _ in placed.data.get("runners_up") or ()}
        pairs += [tuple(pair) for pair in placed.data.get("victims") or ()]
    if lost is not None and lost.data.get("preemptor"):
        pairs.append(tuple(lost.data["preemptor"]))
    names = hostnames(machines)
    parties = parties_of(pairs, sees=sees)
    return Receipts(
        _placement(placed, names, parties) if placed is not None else None,
        _preempted(lost, names, parties) if lost is not None else None,
    )


def hostnames(machines: Iterable[int]) -> dict[int, str]:
    """Return the hostnames of machines by machine id. Every reader of a cell may see them. Makes at most one query."""
    ids = set(machines)
    return dict(Machine.objects.filter(pk__in=ids).values_list("id", "hostname")) if ids else {}


def _placement(event: Event, names: dict[int, str], parties: dict[tuple[int, int], Party]) -> PlacementReceipt:
    data = event.data
    present_bytes, packages_bytes = data.get("packages") or (0, 0)
    return PlacementReceipt(
        machine=names.get(event.machine_id or 0, f"machine {event.machine_id}"),
        revision=event.revision,
        time=event.time,
        incarnation=data["incarnation"],
        score=data.get("score") or {},
        runners_up=tuple(
            (names.get(machine, f"machine {machine}"), score) for machine, score in data.get("runners_up") or ()
        ),
        victims=tuple(parties[job, index] for job, index in data.get("victims") or ()),
        present_bytes=present_bytes,
        packages_bytes=packages_bytes,
    )


def _preempted(event: Event, names: dict[int, str], parties: dict[tuple[int, int], Party]) -> Preempted:
    preemptor = event.data.get("preemptor")
    return Preempted(
        machine=names.get(event.machine_id or 0, f"machine {event.machine_id}"),
        revision=event.revision,
        time=event.time,
        by=parties[preemptor[0], preemptor[1]] if preemptor else None,
    )
