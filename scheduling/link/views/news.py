"""The machines whose desired state may have changed, from new journal rows. No event is decoded."""

from __future__ import annotations

from dataclasses import dataclass, field

from scheduling.core.vocabulary.requirement import task_id
from scheduling.journal.sql import query

# Events that a Borglet must receive. Its own reports, and events only for the scheduler, are not included.
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
_BY_JOB = ("job.changed",)
_BY_CELL = ("cell.set",)
_KINDS = [*_BY_MACHINE, *_BY_TASK, *_BY_JOB, *_BY_CELL]


@dataclass(slots=True)
class ConcernedMachines:
    """The machines concerned by changes up to `revision`. `everywhere`: all machines of the cell."""

    revision: int
    machines: set[int] = field(default_factory=set)
    everywhere: bool = False


def since(cell_id: int, revision: int, *, newest: int) -> ConcernedMachines:
    """Return the changes in (`revision`, `newest`]. At most three queries; none without changes."""
    news = ConcernedMachines(newest)
    if newest <= revision:
        return news
    tasks, jobs = set(), set()
    rows = query(
        "SELECT DISTINCT kind, job_id, task_index, machine_id FROM scheduling_event"
        " WHERE cell_id = %s AND revision > %s AND revision <= %s AND kind = ANY(%s)",
        [cell_id, revision, newest, _KINDS],
    )
    for kind, job_id, index, machine_id in rows:
        if kind in _BY_CELL:
            news.everywhere = True
        elif kind in _BY_JOB:
            jobs.add(job_id)
        elif kind in _BY_TASK:
            tasks.add(task_id(job_id, index))
        elif machine_id is not None:
            news.machines.add(machine_id)
    if jobs or tasks:
        rows = query(
            "SELECT DISTINCT machine_id FROM scheduling_task"
            " WHERE state = 'running' AND (job_id = ANY(%s) OR id = ANY(%s))",
            [sorted(jobs), sorted(tasks)],
        )
        news.machines |= {machine_id for (machine_id,) in rows}
    return news
