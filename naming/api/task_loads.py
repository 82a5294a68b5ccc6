"""The load of placed tasks: the CPU usage as a share of the CPU limit, from the last reports of the Borglets.

The load is stored only in Redis (`scheduling.usage.live_usage`). It is not published in DNS, because the zones of
secondaries must equal the zone of the primary. The load of a task is unknown if Redis is unreachable or has no recent
report.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, Protocol

import numpy as np
import redis
import structlog

from scheduling.journal import wakeups
from scheduling.usage import live_usage

log = structlog.get_logger(__name__)

FRESH_S = 60.0  # older reports do not describe the present load


class Busy(NamedTuple):
    """The facts of a placed task from which its load is computed. `limit_mcpu` is 0 if the task has no CPU limit."""

    task_id: int
    incarnation: int
    machine_id: int
    limit_mcpu: int


class PlacedTask(Protocol):
    """A placed task whose load is to be computed: a `Busy`, or a database row with the same fields."""

    @property
    def task_id(self) -> int: ...

    @property
    def incarnation(self) -> int: ...

    @property
    def machine_id(self) -> int | None: ...

    @property
    def limit_mcpu(self) -> int: ...


def loads_of(cell_id: int, tasks: Collection[PlacedTask]) -> dict[int, float]:
    """Return the load of each task, by the id of the task, rounded to a hundredth. Tasks whose load is unknown are
    omitted. The function makes one request to Redis.
    """
    if not tasks or not wakeups.answers():
        return {}
    try:
        read = live_usage.read_machines(cell_id, {task.machine_id for task in tasks if task.machine_id is not None})
    except redis.RedisError as error:
        log.warning("cannot read the loads of tasks from Redis", error=str(error))
        return {}
    rows = read.rows
    if not len(rows):
        return {}
    wanted = np.fromiter((task.task_id for task in tasks), np.int64, len(tasks))
    rows = rows[(rows["at"] >= read.now - FRESH_S) & np.isin(rows["task_id"], wanted)]
    used = {
        (task_id, incarnation): cpu
        for task_id, incarnation, cpu in zip(
            rows["task_id"].tolist(), rows["incarnation"].tolist(), rows["cpu_milli"].tolist(), strict=True
        )
    }
    return {
        task.task_id: round(used[key] / task.limit_mcpu, 2)
        for task in tasks
        if task.limit_mcpu and (key := (task.task_id, task.incarnation)) in used
    }
