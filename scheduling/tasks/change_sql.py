"""The SQL that changes tasks. `scheduling.tasks.transitions` uses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from scheduling.journal.sql import query


@dataclass(frozen=True, slots=True)
class TaskBefore:
    """The values of a task before an SQL statement changed the task."""

    task_id: int
    job_id: int
    index: int
    state: str
    machine_id: int | None
    incarnation: int
    ports: Sequence[int]
    up: bool
    phase: str


_BEFORE = "t.id, t.job_id, t.index, t.state, t.machine_id, t.incarnation, t.ports, t.up, t.phase"
SAME_INCARNATION = "t.state = 'running' AND a.number = t.incarnation"


def change_tasks(
    types: str, columns: str, assignments: str, values: list[Any], *, condition: str = SAME_INCARNATION
) -> list[TaskBefore]:
    """Change tasks with one SQL statement. Return the old values of the changed tasks, sorted by task id.

    `assignments`: SQL that sets columns of the task `t`. `columns`: names of further values per task, which
    `assignments` can use as `was.<name>`. `types`: the SQL types of these values. `values`: an array of task ids, an
    array of incarnations, one array per name in `columns`, and then the parameters of `assignments`. `condition`: SQL;
    only tasks that fulfil it change.
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
