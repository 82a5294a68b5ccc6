"""Classes that describe changes of tasks, and the SQL that changes tasks. `scheduling.tasks.transitions` uses them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from scheduling.journal.journal import Cause
from scheduling.journal.sql import query


@dataclass(frozen=True, slots=True)
class Eviction:
    """An eviction: a running task becomes pending again. `cause`: a value of `EvictionCause`.

    `gone`: the task's processes have already ended. `avoid`: for some time, do not place the task on the same machine
    again. `preemptor`: id of the task that preempts this task.
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
class TaskBefore:
    """The values of a task before `change_tasks` changed the task."""

    task_id: int
    job_id: int
    index: int
    state: str
    machine_id: int | None
    incarnation: int
    ports: Sequence[int]
    up: bool


_BEFORE = "t.id, t.job_id, t.index, t.state, t.machine_id, t.incarnation, t.ports, t.up"
SAME_INCARNATION = "t.state = 'running' AND a.number = t.incarnation"


def change_tasks(
    types: str, columns: str, assignments: str, values: list[Any], *, condition: str = SAME_INCARNATION
) -> list[TaskBefore]:
    """Change tasks with one SQL statement. Return the old values of the changed tasks, sorted by task id.

    `assignments`: SQL that sets columns of the task `t`. It may use `columns`, which are names for additional values,
    as `was.name`. `types`: the SQL types of these values. `values`: an array of task ids, an array of incarnations,
    one array per name in `columns`, and then the parameters of `assignments`. `condition`: SQL; only tasks that fulfil
    it change.
    """
    rows = query(
        f"WITH was AS (SELECT {_BEFORE}, a.* FROM scheduling_task AS t"
        f" JOIN unnest(%s::bigint[], %s::integer[], {types}) AS a(task_id, number, {columns})"
        f" ON a.task_id = t.id AND {condition} ORDER BY t.id FOR UPDATE OF t)"
        f" UPDATE scheduling_task AS t SET {assignments} FROM was WHERE t.id = was.id"
        f" RETURNING {_BEFORE.replace('t.', 'was.')}",
        values,
    )
    return sorted((TaskBefore(*row) for row in rows), key=lambda was: was.task_id)


def as_json(value: dict[str, Any] | None) -> str | None:
    """Return `value` as JSON text. If `value` is None, return None."""
    return None if value is None else msgspec.json.encode(value).decode()
