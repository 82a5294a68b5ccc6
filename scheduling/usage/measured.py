"""The usage of one machine and its tasks as arrays. A shard keeps the usage from reports in this form, and then
stores it in Redis. Pure."""

from __future__ import annotations

from array import array
from typing import NamedTuple


class MeasuredUsage(NamedTuple):
    """The usage of one machine. `figures`: a flat array of rows with `columns` numbers each, in the order of the fields
    of `Usage`. The first row is the usage of the machine itself, and each other row is the usage of a task.

    `task_ids`, `incarnations`: the task id and the incarnation of each row. The task id of an unknown task is 0. The
    task id of the machine's row is the negative id of the machine.
    """

    machine_id: int
    columns: int
    figures: array[int]
    task_ids: array[int]
    incarnations: array[int]
