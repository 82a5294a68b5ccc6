"""Usage of one machine and its tasks as arrays, the form between reports and Redis. Pure."""

from __future__ import annotations

from array import array
from typing import NamedTuple


class MeasuredUsage(NamedTuple):
    """Usage of one machine: rows of `columns` figures, in the order of `Usage`, the machine's own first.

    `task_ids`, `incarnations`: of each row; 0 for one that is nobody's, minus the machine's id for its own.
    """

    machine_id: int
    columns: int
    figures: array[int]
    task_ids: array[int]
    incarnations: array[int]
