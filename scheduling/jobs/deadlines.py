"""Ends jobs whose deadline has passed. The master does this once per second.

    Job.deadline_at, by an index ── overdue? ──► lock the cell ─► read again ─► end the live tasks, and so the job

The second read is under the cell's lock, and the ends are events of the journal. So each task ends once, also if a
master fails or two masters work at the same time, and an update that has just moved the deadline is respected.
"""

from __future__ import annotations

import datetime as dt

from django.utils import timezone

from quota.vocabulary.permissions import system
from quota.vocabulary.resources import format_number
from scheduling.core.vocabulary.states import TaskState
from scheduling.core.vocabulary.task_events import Ending
from scheduling.jobs import updates
from scheduling.journal import journal
from scheduling.models import Job, Task
from scheduling.tasks import counters, transitions

CAUSE = "deadline"
# Jobs of one transaction. The next second ends more.
_JOBS_AT_ONCE = 500


def jobs_end_overdue(cell_id: int, *, most: int = journal.CHUNK) -> int:
    """End at most `most` tasks of the cell's jobs whose deadline has passed. They have failed with the cause
    `deadline`. Return the number of tasks. A later call ends further tasks.

    Locks the cell's row, then the tasks in order of id. Without an overdue job, it makes one query and locks nothing.
    """
    overdue = Job.objects.filter(cell_id=cell_id, ended_at__isnull=True)
    if not overdue.filter(deadline_at__lte=timezone.now()).exists():
        return 0
    with journal.write(cell_id, system("deadlines")) as entry:
        due = overdue.filter(deadline_at__lte=entry.time).order_by("deadline_at", "id")
        times = due.values_list("id", "created_at", "deadline_at")[:_JOBS_AT_ONCE]
        why = {job_id: _detail(since, until) for job_id, since, until in times if until is not None}
        living = Task.objects.filter(job_id__in=why).exclude(state=TaskState.DEAD.value).order_by("id")
        tasks = list(living.values_list("id", "job_id")[:most])
        updates.updates_close(entry, why, "the deadline of the job has passed")
        endings = [Ending(task, "failed", cause=CAUSE, detail=why[job_id]) for task, job_id in tasks]
        ended = transitions.tasks_end(entry, endings)
        counters.jobs_end_if_over(entry, list(why))
    return len(ended)


def _detail(submitted_at: dt.datetime, deadline_at: dt.datetime) -> str:
    seconds = format_number((deadline_at - submitted_at).total_seconds())
    return f"deadline: the job did not end within {seconds} s after its submission, its deadline_s"
