"""What happens at a due time if an earlier run of the cron job is still live: `allow`, `forbid` or `replace`."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence

from quota.vocabulary.errors import Conflict, Rejected
from quota.vocabulary.permissions import system
from scheduling.core.vocabulary.states import JobState, TaskState
from scheduling.core.vocabulary.task_events import Ending
from scheduling.cron.cron_spec import ALLOW, FORBID
from scheduling.cron.run_history import DueRun
from scheduling.jobs import updates
from scheduling.journal import journal
from scheduling.journal.sql import query
from scheduling.models.jobs import RUN_NAME
from scheduling.tasks import counters, transitions


def replaced_by(run: DueRun, live: Sequence[tuple[int, str]]) -> Sequence[tuple[int, str]] | Rejected:
    """Return the live runs that `run` replaces, none of them if the policy is `allow`. Return why `run` is skipped if a
    run is live and the policy is `forbid`. `live`: (job id, name) of the live runs of the same cron job.
    """
    if run.overlap == ALLOW or not live:
        return ()
    return _still_live(run, live[0][1]) if run.overlap == FORBID else live


def live_runs(cron_ids: Sequence[int]) -> dict[int, list[tuple[int, str]]]:
    """Return (job id, name) of the live runs of each cron job, newest first.

    A live job is a run if it has the name of one. So a run that was retried or updated is found, and a run that the
    history has lost is found too. The index `job_by_cron_job` serves this.
    """
    if not cron_ids:
        return {}
    rows = query(
        "SELECT c.id, j.id, j.name FROM scheduling_cronjob AS c JOIN scheduling_job AS j ON j.cell_id = c.cell_id"
        f" AND j.tenant_id = c.tenant_id AND j.kind = 'job' AND substring(j.name, '{RUN_NAME}') = c.name"
        f" WHERE c.id = ANY(%s) AND j.name::text ~ '{RUN_NAME}' AND j.state <> '{JobState.DEAD.value}'"
        " ORDER BY j.id DESC",
        [list(cron_ids)],
    )
    found = defaultdict(list)
    for cron_id, job_id, name in rows:
        found[cron_id].append((job_id, name))
    return found


def runs_end(cell_id: int, replaced: Mapping[int, DueRun]) -> set[int]:
    """End jobs that are replaced, the smallest first, with at most `journal.CHUNK` live tasks together. If the smallest
    one has more, end only `journal.CHUNK` of its tasks. Return the ids of jobs that still have live tasks.
    `replaced`: the run that replaces each job, by job id. The caller's transaction has locked the cell.
    """
    if not replaced:
        return set()
    sizes = query(
        "SELECT j.id, (SELECT count(*) FROM scheduling_task AS t WHERE t.job_id = j.id AND t.state <> %s)"
        " FROM scheduling_job AS j WHERE j.id = ANY(%s) ORDER BY 2, 1",
        [TaskState.DEAD.value, list(replaced)],
    )
    totals = itertools.accumulate(size for _, size in sizes)
    jobs = [job_id for (job_id, _), total in zip(sizes, totals, strict=True) if total <= journal.CHUNK]
    jobs = jobs or [sizes[0][0]]
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
        [list(replaced), TaskState.DEAD.value],
    )
    return {job_id for (job_id,) in left}


def _still_live(run: DueRun, name: str) -> Rejected:
    """Return why a run is skipped. `name`: the job of a live run."""
    detail = (
        f"cannot start run {run.job_name}: the run {name} is still live, and the overlap policy of cron job {run.name}"
        " is forbid; kill that run, or choose allow or replace"
    )
    return Conflict("cron-overlap", detail)


def too_large(run: DueRun, name: str) -> Rejected:
    """Return why a run by hand cannot replace the live runs. `name`: the job of one of them."""
    detail = (
        f"cannot start run {run.job_name}: it would replace live runs with more than {journal.CHUNK:,} tasks, such as"
        f" {name}; kill job {name} first, and then start the run again"
    )
    return Conflict("cron-overlap", detail)
