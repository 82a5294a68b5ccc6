"""The usage of one machine and its tasks as arrays: the form between reports and Redis. Pure."""

from __future__ import annotations

from array import array
from typing import NamedTuple


class MeasuredUsage(NamedTuple):
    """The usage of one machine. `figures`: rows of `columns` values in the order of `Usage`, the machine first.

    `task_ids`, `incarnations`: the task id and the incarnation of each row. The task id of an unknown task is 0. The
    machine's row has minus the machine's id as its task id.
    """

    machine_id: int
    columns: int
    figures: array[int]
    task_ids: array[int]
    incarnations: array[int]
