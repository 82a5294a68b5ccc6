"""Counts of the machines and tasks of cells by state. Tasks are counted from the counters of their jobs."""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.core.vocabulary.states import JobState, MachineStatus
from scheduling.journal.sql import query
from scheduling.models.machines import REMOVED

# The most racks that `cell_counts_and_racks` returns.
MOST_RACKS = 500
_TASKS = ("tasks_pending", "tasks_placed", "tasks_up")


def cell_counts(cell_ids: Sequence[int]) -> dict[int, dict[str, int]]:
    """Return, by cell id, how many machines and tasks are in each state. Makes two queries.

    The keys are machines_up, machines_draining, machines_down, tasks_pending, tasks_placed and tasks_up. Only tasks of
    live jobs count. The user interface calls tasks that are up "running".
    """
    counts = {cell_id: no_counts() for cell_id in cell_ids}
    for cell_id, state, number in query(
        "SELECT cell_id, state, count(*) FROM scheduling_machine WHERE cell_id = ANY(%s) AND state <> %s GROUP BY 1, 2",
        [list(cell_ids), REMOVED],
    ):
        counts[cell_id][f"machines_{state}"] = number
    for cell_id, numbers in _task_counts(cell_ids).items():
        counts[cell_id] |= numbers
    return counts


def cell_counts_and_racks(cell_id: int) -> tuple[dict[str, int], list[str]]:
    """Return how many machines and tasks of a cell are in each state, and the names of its racks. Makes two queries."""
    counts, racks = _no_machines(), set()
    for state, rack, number in query(
        "SELECT state, rack, count(*) FROM scheduling_machine WHERE cell_id = %s GROUP BY 1, 2", [cell_id]
    ):
        racks.add(rack)
        if state != REMOVED:
            counts[f"machines_{state}"] += number
    tasks = _task_counts([cell_id]).get(cell_id, dict.fromkeys(_TASKS, 0))
    return counts | tasks, sorted(racks - {""})[:MOST_RACKS]


def no_counts() -> dict[str, int]:
    """Return the counts of a cell without machines and tasks."""
    return _no_machines() | dict.fromkeys(_TASKS, 0)


def _no_machines() -> dict[str, int]:
    return {f"machines_{status.value}": 0 for status in MachineStatus}


def _task_counts(cell_ids: Sequence[int]) -> dict[int, dict[str, int]]:
    rows = query(
        "SELECT cell_id, sum(tasks_pending)::bigint, sum(tasks_running)::bigint, sum(tasks_up)::bigint"
        " FROM scheduling_job WHERE cell_id = ANY(%s) AND state <> %s GROUP BY 1",
        [list(cell_ids), JobState.DEAD.value],
    )
    return {cell_id: dict(zip(_TASKS, numbers, strict=True)) for cell_id, *numbers in rows}
