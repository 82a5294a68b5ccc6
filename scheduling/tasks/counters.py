"""Counters of each job's tasks per state, and the end of jobs whose tasks are all dead.

Each change of tasks updates the counters. The caller must have locked the cell's row with `journal.write`.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Sequence

from quota.admission import admission
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.states import JobState, TaskState
from scheduling.journal.copy_rows import column
from scheduling.journal.journal import JournalEntry
from scheduling.journal.sql import execute, query
from scheduling.models import Cell

# Detail of tasks that ended because an update made their job smaller. An update that makes it larger revives them.
SHRUNK = "the job shrank"
PENDING, RUNNING, DEAD = TaskState.PENDING.value, TaskState.RUNNING.value, TaskState.DEAD.value


def notices_given(entry: JournalEntry, departed: Sequence[tuple[str, str]]) -> None:
    """Add tasks that have left their machines to the counts of this day (UTC). `departed`: for each task (cause,
    notice). The notice says how much of its notice period the task received: full, short, none or unknown.
    """
    if not departed:
        return
    numbers = Counter(departed)
    execute(
        "INSERT INTO scheduling_noticecount (cell_id, day, cause, delivered, number)"
        " SELECT %s, %s, n.* FROM unnest(%s::text[], %s::text[], %s::bigint[]) AS n"
        " ON CONFLICT (cell_id, day, cause, delivered) DO UPDATE"
        " SET number = scheduling_noticecount.number + excluded.number",
        [
            entry.cell_id,
            entry.time.astimezone(dt.UTC).date(),
            [cause for cause, _ in numbers],
            [delivered for _, delivered in numbers],
            list(numbers.values()),
        ],
    )


class CounterChanges:
    """Collects changes of the jobs' counters. `store` writes the sums of the changes with one statement."""

    _STATES = (PENDING, RUNNING, DEAD)

    def __init__(self) -> None:
        self._jobs: dict[int, list[int]] = {}  # job id -> [total, pending, running, dead, up]

    def move(self, job_id: int, source: str, target: str, *, was_up: bool = False) -> None:
        """Count the change of one task from the state `source` to the state `target`. `was_up`: whether the task was
        up before.
        """
        row = self._row(job_id)
        row[1 + self._STATES.index(source)] -= 1
        row[1 + self._STATES.index(target)] += 1
        row[4] -= int(was_up)

    def add(self, job_id: int, number: int) -> None:
        row = self._row(job_id)
        row[0] += number
        row[1] += number

    def up(self, job_id: int, change: int) -> None:
        if change:
            self._row(job_id)[4] += change

    def store(self, entry: JournalEntry) -> None:
        """Write the changes of the counters to the rows of the jobs. End the jobs whose tasks are all dead."""
        if not self._jobs:
            return
        ids = sorted(self._jobs)
        columns = [column([self._jobs[job][i] for job in ids]) for i in range(5)]
        rows = query(
            "UPDATE scheduling_job AS j SET tasks_total = j.tasks_total + c.total,"
            " tasks_pending = j.tasks_pending + c.pending, tasks_running = j.tasks_running + c.running,"
            " tasks_dead = j.tasks_dead + c.dead, tasks_up = j.tasks_up + c.up,"
            " state = CASE WHEN j.state = 'pending' AND j.tasks_running + c.running > 0 THEN 'running'"
            " ELSE j.state END,"
            # Only if as many tasks ran as may run, a further one could not start before.
            " may_start_since = CASE WHEN j.max_running > 0 AND c.running < 0 AND j.tasks_running >= j.max_running"
            " THEN %s ELSE j.may_start_since END"
            " FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])"
            " AS c(id, total, pending, running, dead, up) WHERE j.id = c.id"
            " RETURNING j.id, j.state, j.tasks_total = j.tasks_dead",
            [entry.time, column(ids), *columns],
        )
        over = [job for job, state, all_dead in rows if all_dead and state != JobState.DEAD]
        jobs_end_if_over(entry, over)

    def _row(self, job_id: int) -> list[int]:
        return self._jobs.setdefault(job_id, [0, 0, 0, 0, 0])


def jobs_end_if_over(entry: JournalEntry, job_ids: Sequence[int]) -> None:
    """End those of the jobs whose tasks are all dead. A job to which an open update will add tasks does not end."""
    if not job_ids:
        return
    rows = query(
        "SELECT j.id FROM scheduling_job AS j WHERE j.id = ANY(%s) AND j.state <> 'dead'"
        " AND j.tasks_total = j.tasks_dead AND NOT EXISTS (SELECT FROM scheduling_update AS u"
        " JOIN scheduling_jobspec AS s ON s.job_id = u.job_id AND s.version = u.to_version"
        " WHERE u.job_id = j.id AND u.state = 'open' AND (s.spec->>'tasks')::int > j.tasks_total)"
        " ORDER BY j.id",
        [list(job_ids)],
    )
    over = [job for (job,) in rows]
    if over:
        jobs_end(entry, over)


def jobs_end(entry: JournalEntry, job_ids: Sequence[int]) -> None:
    """End jobs whose tasks are all dead: their names can be used again, their quota is released, and their updates
    end.
    """
    ended = query(
        "WITH worst AS (SELECT job_id, CASE WHEN bool_or(outcome = 'killed' AND detail <> %s) THEN 'killed'"
        " WHEN bool_or(outcome = 'failed') THEN 'failed' ELSE 'finished' END AS how"
        " FROM scheduling_task WHERE job_id = ANY(%s) GROUP BY job_id)"
        " UPDATE scheduling_job AS j SET state = 'dead', outcome = worst.how, ended_at = %s"
        " FROM worst, quota_tenant AS o WHERE j.id = worst.job_id AND o.id = j.tenant_id"
        " RETURNING j.id, worst.how, j.tenant_id, o.name, j.priority, j.requested, j.waiting",
        [SHRUNK, list(job_ids), entry.time],
    )
    updates = query(
        "UPDATE scheduling_update SET state = 'superseded', detail = 'the job ended', ended_at = %s"
        " WHERE job_id = ANY(%s) AND state = 'open' RETURNING id, job_id",
        [entry.time, list(job_ids)],
    )
    if waiting := [job_id for job_id, *_, waits in ended if waits]:
        execute("UPDATE scheduling_jobdependency SET open = false WHERE job_id = ANY(%s) AND open", [waiting])
    execute("DELETE FROM scheduling_pendingverdict WHERE job_id = ANY(%s)", [list(job_ids)])
    for update_id, job_id in sorted(updates):
        entry.append(events.UpdateEnded(job_id=job_id, update_id=update_id, how="superseded", detail="the job ended"))
    for job_id, how, *_ in sorted(ended):
        entry.append(events.JobEnded(job_id=job_id, how=how))
    admission.release(
        cell=Cell.objects.values_list("name", flat=True).get(pk=entry.cell_id),
        asks=[
            admission.AdmissionRequest(tenant_id, tenant, priority, tuple(requested))
            for _, _, tenant_id, tenant, priority, requested, _ in ended
        ],
    )
