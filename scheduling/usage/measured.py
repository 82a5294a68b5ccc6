"""The usage of one machine and its tasks as arrays. A shard keeps the usage in this form before it stores it in Redis.
Pure.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple


class MeasuredUsage(NamedTuple):
    """The usage of one machine and its tasks. `figures`: a flat array of rows with `columns` numbers each, in the
    order of the fields of `Usage`. The first row is the usage of the machine itself. Each other row is the usage of
    one task.

    `task_ids`, `incarnations`: the task id and the incarnation of each row. The task id of an unknown task is 0. In
    the machine's own row, the task id is the negative id of the machine.
    """

    machine_id: int
    columns: int
    figures: array[int]
    task_ids: array[int]
    incarnations: array[int]
