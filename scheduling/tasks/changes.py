"""Changes of tasks, as values for `scheduling.tasks.transitions`, and the state of tasks before a change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from scheduling.journal.journal import Cause


@dataclass(frozen=True, slots=True)
class Eviction:
    """An eviction: running -> pending. `cause`: a value of `EvictionCause`.

    `gone`: the task's processes have already ended on the machine. `avoid`: do not place the task on this machine again
    for a while. `preemptor`: id of the task that gets the capacity.
    """

    task_id: int
    incarnation: int
    cause: str
    detail: str = ""
    gone: bool = False
    avoid: bool = False
    preemptor: int | None = None
    exit: dict[str, Any] | None = None
    caused_by: Cause | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a task: pending or running -> dead. `how`: finished, failed or killed.

    `incarnation`: None stands for any incarnation. `cause`: the reason that is sent to the Borglet.
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
    """Return rows of the columns `WAS` as values, in the order of task ids."""
    return sorted(
        (TaskBefore(*row[:6], ports=tuple(row[6]), up=row[7]) for row in rows),  # type: ignore[misc]
        key=lambda was: was.task_id,
    )


def as_json(value: dict[str, Any] | None) -> str | None:
    """Return a value as JSON text, or None."""
    return None if value is None else msgspec.json.encode(value).decode()
