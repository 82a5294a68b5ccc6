"""Find the machines whose desired state may have changed, from the newest events of the journal."""

from __future__ import annotations

from scheduling.core.vocabulary.requirement import task_id
from scheduling.journal.sql import query

# The kinds of events that can change a desired state.
_BY_MACHINE = (
    "task.placed",
    "task.evicted",
    "task.ended",
    "task.gone",
    "machine.state",
    "machine.removed",
    "alloc.kept",
    "alloc.released",
    "machine.credential",
)
_BY_TASK = ("task.updated",)
_BY_JOB = ("job.changed", "job.secret", "job.config")
_BY_CELL = ("cell.set", "cell.restored")
_KINDS = [*_BY_MACHINE, *_BY_TASK, *_BY_JOB, *_BY_CELL]


def concerned_machines(cell_id: int, revision: int, *, newest: int) -> set[int] | None:
    """Return the ids of the machines whose desired state may have changed after revision `revision`, up to revision
    `newest`. Return None if all machines may have changed.

    Makes at most two queries.
    """
    if newest <= revision:
        return set()
    machines: set[int] = set()
    tasks, jobs = set(), set()
    rows = query(
        "SELECT DISTINCT kind, job_id, task_index, machine_id FROM scheduling_event"
        " WHERE cell_id = %s AND revision > %s AND revision <= %s AND kind = ANY(%s)"
        # If events after the revision are only in the archive, all machines may have changed.
        " UNION ALL SELECT 'cell.set', NULL, NULL, NULL FROM scheduling_cell WHERE id = %s AND journal_floor > %s",
        [cell_id, revision, newest, _KINDS, cell_id, revision],
    )
    for kind, job_id, index, machine_id in rows:
        if kind in _BY_CELL:
            return None
        if kind in _BY_JOB:
            jobs.add(job_id)
        elif kind in _BY_TASK:
            tasks.add(task_id(job_id, index))
        elif machine_id is not None:
            machines.add(machine_id)
    if jobs or tasks:
        rows = query(
            "SELECT DISTINCT machine_id FROM scheduling_task"
            " WHERE state = 'running' AND (job_id = ANY(%s) OR id = ANY(%s))",
            [sorted(jobs), sorted(tasks)],
        )
        machines |= {machine_id for (machine_id,) in rows}
    return machines
