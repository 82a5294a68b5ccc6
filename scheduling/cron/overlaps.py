"""What happens at a due time if an earlier run of the cron job is still live: `allow`, `forbid` or `replace`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from quota.vocabulary.errors import Conflict, Rejected
from quota.vocabulary.permissions import system
from scheduling.core.vocabulary.states import JobState, TaskState
from scheduling.core.vocabulary.task_events import Ending
from scheduling.cron.cron_spec import ALLOW, REPLACE
from scheduling.cron.run_history import DueRun
from scheduling.jobs import updates
from scheduling.journal import journal
from scheduling.journal.sql import query
from scheduling.tasks import counters, transitions

# Of each cron job, so many of the newest runs are looked at.
_RUNS = 20


def settle(cell_id: int, runs: Sequence[DueRun]) -> tuple[list[DueRun], list[tuple[DueRun, Rejected]]]:
    """Return the runs that can be submitted now, and the runs that are skipped, each with the reason.

    Ends the tasks of live runs that are replaced. A run is in neither list if the run that it replaces has more than
    `journal.CHUNK` tasks, so that some are still live; it stays due. The caller's transaction has locked the cell.
    """
    asking = [run.cron_id for run in runs if run.overlap != ALLOW]
    live = _live_jobs(asking) if asking else {}
    replaced = [(job_id, run) for run in runs if run.overlap == REPLACE for job_id, _ in live.get(run.cron_id, ())]
    unfinished = _end(cell_id, dict(replaced)) if replaced else set()
    ready: list[DueRun] = []
    skipped: list[tuple[DueRun, Rejected]] = []
    for run in runs:
        before = live.get(run.cron_id, [])
        if not before:
            ready.append(run)
        elif run.overlap != REPLACE:
            skipped.append((run, _still_live(run, before[0][1])))
        elif unfinished.isdisjoint(job_id for job_id, _ in before):
            ready.append(run)
    return ready, skipped


def _live_jobs(cron_ids: Sequence[int]) -> dict[int, list[tuple[int, str]]]:
    """Return (job id, name) of the live runs of each cron job, newest first."""
    rows = query(
        "SELECT r.cron_job_id, j.id, j.name FROM unnest(%s::bigint[]) AS c(id) CROSS JOIN LATERAL"
        " (SELECT cron_job_id, job_uid, due_at FROM scheduling_cronrun WHERE cron_job_id = c.id"
        " AND outcome = 'submitted' ORDER BY due_at DESC LIMIT %s) AS r"
        " JOIN scheduling_job AS j ON j.uid = r.job_uid AND j.state <> %s ORDER BY r.due_at DESC",
        [list(cron_ids), _RUNS, JobState.DEAD.value],
    )
    found = defaultdict(list)
    for cron_id, job_id, name in rows:
        found[cron_id].append((job_id, name))
    return found


def _end(cell_id: int, replaced: dict[int, DueRun]) -> set[int]:
    """End the tasks of jobs that are replaced, at most `journal.CHUNK` tasks. Return the ids of jobs that have further
    live tasks. `replaced`: the run that replaces each job, by job id.
    """
    jobs = sorted(replaced)
    rows = query(
        "SELECT id, job_id FROM scheduling_task WHERE job_id = ANY(%s) AND state <> %s ORDER BY id LIMIT %s",
        [jobs, TaskState.DEAD.value, journal.CHUNK],
    )
    with journal.write(cell_id, system("cron")) as entry:
        updates.updates_close(entry, jobs, "the job is being replaced by the next run of its cron job")
        endings = [Ending(task, "killed", detail=f"replaced by run {replaced[job].job_name}") for task, job in rows]
        transitions.tasks_end(entry, endings)
        counters.jobs_end_if_over(entry, jobs)
    left = query(
        "SELECT DISTINCT job_id FROM scheduling_task WHERE job_id = ANY(%s) AND state <> %s",
        [jobs, TaskState.DEAD.value],
    )
    return {job_id for (job_id,) in left}


def _still_live(run: DueRun, name: str) -> Rejected:
    detail = (
        f"the run {name} is still live, and the overlap policy of cron job {run.name} is forbid; kill that run, or"
        " choose allow or replace"
    )
    return Conflict("cron-overlap", detail)
