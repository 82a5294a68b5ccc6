"""Changes of tasks as values for `scheduling.tasks.transitions`, and the state of the tasks before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from scheduling.journal.journal import Cause


@dataclass(frozen=True, slots=True)
class Eviction:
    """running -> pending. `cause`: a value of `core.states.EvictionCause`.

    `gone`: its processes have already ended there. `avoid`: don't pair the two again for a while.
    `preemptor`: task id of the task that takes its place. `notice_s` would shorten the notice that the task asked for;
    no caller sets it yet, so an evicted task has all of its notice, also when it is preempted.
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


@dataclass(frozen=True, slots=True)
class Ending:
    """pending or running -> dead. `how`: finished, failed or killed. `cause` is sent to the Borglet."""

    task_id: int
    how: str
    incarnation: int | None = None  # None: whichever it is
    cause: str = "kill"
    detail: str = ""
    gone: bool = False
    notice_s: float | None = None
    exit: dict[str, Any] | None = None
    caused_by: Cause | None = None


@dataclass(frozen=True, slots=True)
class TaskBefore:
    """A task as it was before the change."""

    task_id: int
    job_id: int
    index: int
    state: str
    machine_id: int | None
    incarnation: int
    ports: tuple[int, ...]
    up: bool


WAS = "t.id, t.job_id, t.index, t.state, t.machine_id, t.incarnation, t.ports, t.up"


def read_was(rows: Iterable[tuple[Any, ...]]) -> list[TaskBefore]:
    return sorted(
        (TaskBefore(*row[:6], ports=tuple(row[6]), up=row[7]) for row in rows),  # type: ignore[misc]
        key=lambda was: was.task_id,
    )


def as_json(value: dict[str, Any] | None) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()
