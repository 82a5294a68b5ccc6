"""Changes of config files that restart jobs. A new version opens a rolling restart of each job that asks for it with
`on_change: restart`, in the same transaction. Other jobs get the new version without a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from borglet.messages import RESTART
from quota.models import Tenant
from quota.vocabulary.errors import Conflict, Rejected
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.restarting_tasks import tasks_to_restart
from scheduling.access.tenant_permission import require_tenant
from scheduling.config_files import files, spec_uses
from scheduling.jobs import updates
from scheduling.jobs.actions.restart import restart_open
from scheduling.jobs.actions.task_selection import MOST_RANGES, Ranges
from scheduling.journal.journal import JournalEntry
from scheduling.journal.sql import query
from scheduling.models import Job, Update
from scheduling.secrets.job_uses import UsingJob
from scheduling.spec.schema import LATEST

MOST_RESTARTS = 20


def config_put(
    *,
    principal: Principal,
    tenant: Tenant,
    name: str,
    content: bytes,
    comment: str = "",
    if_version: int | None = None,
    plain: bool = False,
    labels: Mapping[str, str] | None = None,
    restart: bool = True,
) -> files.FileChange:
    """Write a new version of a config file, as `files.config_write` does, and restart the jobs that ask for it.
    `restart`: False restarts none; their tasks get the new version when they start next.

    Raises `Conflict` if one of these jobs cannot be restarted now. Then nothing changes.
    """
    return files.config_write(
        principal=principal,
        tenant=tenant,
        name=name,
        content=content,
        comment=comment,
        if_version=if_version,
        plain=plain,
        labels=labels,
        restarts=partial(_restart, principal, tenant, name) if restart else None,
    )


def config_rollback(
    *,
    principal: Principal,
    tenant: Tenant,
    name: str,
    version: int | None = None,
    comment: str = "",
    if_version: int | None = None,
    restart: bool = True,
) -> files.FileChange:
    """Write an old version of a config file again, as the newest one. `version`: None for the one before the newest.
    Otherwise like `config_put`.
    """
    return files.config_restore(
        principal=principal,
        tenant=tenant,
        name=name,
        version=version,
        comment=comment,
        if_version=if_version,
        restarts=partial(_restart, principal, tenant, name) if restart else None,
    )


def _restart(
    principal: Principal, tenant: Tenant, name: str, entries: Mapping[int, JournalEntry], users: Sequence[UsingJob]
) -> list[str]:
    """Open a restart of each job that asks for it. Return the jobs as CELL/JOB. Makes about ten queries per job."""
    ids = _asking(name, [user.job_id for user in users if user.job_id and LATEST in user.versions])
    if len(ids) > MOST_RESTARTS:
        detail = f"{len(ids)} jobs restart when config file {name} changes, and one change restarts at most"
        cure = "write it without restarts (--no-restart), and restart the jobs with `borgctl restart`"
        raise Conflict("too-many-restarts", f"{detail} {MOST_RESTARTS}; {cure}", figures={"jobs": len(ids)})
    restarted = []
    jobs = Job.objects.select_related("cell", "tenant", "alloc_set").filter(pk__in=ids)
    for job in jobs.order_by("cell_id", "pk"):
        require_tenant(principal, Action.JOB_WRITE, tenant.name, job.cell.name)
        try:
            restart_open(entries[job.cell_id], job, actor=principal.name, ranges=_with_open(job, name))
        except Rejected as problem:
            if problem.code == "nothing-to-restart":
                continue
            cure = "or write the file without restarts (--no-restart; REST: restart=false)"
            detail = (
                f"config file {name} was not written, because it would restart job {job.name}: {problem.detail}; {cure}"
            )
            raise Conflict(problem.code, detail, figures=problem.figures) from problem
        restarted.append(f"{job.cell.name}/{job.name}")
    return restarted


def _asking(name: str, job_ids: list[int]) -> list[int]:
    """Return the ids of those jobs whose newest spec asks for restarts when the config file `name` changes."""
    uses = f'configs[*] ? (@.name == $name && @.on_change == "{RESTART}" && @.version == "{LATEST}")'
    rows = query(
        "SELECT s.job_id FROM scheduling_jobspec AS s JOIN scheduling_job AS j"
        " ON j.id = s.job_id AND j.spec_version = s.version"
        " WHERE j.id = ANY(%s) AND (jsonb_path_exists(s.spec, %s::jsonpath, jsonb_build_object('name', %s::text))"
        " OR jsonb_path_exists(s.spec, %s::jsonpath, jsonb_build_object('name', %s::text)))",
        [job_ids, f"$.task.{uses}", name, f"$.overrides.*.{uses}", name],
    )
    return [job_id for (job_id,) in rows]


def _with_open(job: Job, name: str) -> Ranges | None:
    """Return the tasks that restart when the config file `name` changes, and the tasks that an open restart of the job
    has not replaced yet, or None for all tasks. The new restart goes on with these tasks, because it ends the open one.
    Raises `Conflict` if the open restart is paused.
    """
    last = job.tasks_total - 1
    chosen = spec_uses.restarted_by(updates.spec_of(job), name)
    found = [(first, min(end, last)) for first, end in chosen if first <= last]
    update = Update.objects.filter(job=job, state=Update.OPEN).exclude(restarts=[]).first()
    if update is not None:
        if update.paused_at is not None:
            detail = f"a restart of the job is paused; resume it with `borgctl resume {job.name}`"
            raise Conflict("update-open", detail)
        left = tasks_to_restart(update).order_by("index").values_list("index", flat=True)
        found = _joined([*found, *((index, index) for index in left)])
    return None if found == [(0, last)] or len(found) > MOST_RANGES else found


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in their order, without gaps of length 0 between them."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined
