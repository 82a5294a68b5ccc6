"""Stops a service: all of its jobs, or some of them.

    batches of jobs, jobs inside alloc sets first ─► rows of `StoppedJob`, ended tasks and an event, in one transaction

The rules are those of a kill of each job: permissions, confirmation and alloc sets. If some jobs cannot be stopped, the
others are, and the answer says why. A repeated stop finishes the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from quota.admission.admission import AdmissionRequest
from quota.vocabulary.errors import NotFound, Rejected
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import require_tenant
from scheduling.allocs import alloc_sets
from scheduling.brakes import confirmation
from scheduling.core.vocabulary.states import JobState
from scheduling.jobs.plan_quota import quota_sentences
from scheduling.jobs.submit_and_kill import job_kill, jobs_end
from scheduling.journal import journal
from scheduling.models import Cell, Job
from scheduling.services import stopped_rows
from scheduling.services.outcomes import Change, JobChange, ServiceChange
from scheduling.services.selectors import Service, is_owned, left_alone, service_named, service_to_change
from scheduling.services.weights import weights_forget


def service_stop(
    *,
    principal: Principal,
    cell: Cell,
    tenant: str,
    name: str,
    jobs: Iterable[str] = (),
    reason: str = "",
    confirm: int | None = None,
    dry_run: bool = False,
) -> ServiceChange:
    """Kill the live jobs of a service, and keep which versions of their specs a start brings back. Idempotent.

    An update in progress ends. A start brings back its new version, or the old version if canary tasks were still to be
    promoted. Runs of cron jobs and jobs of workflows stay. `jobs`: only the jobs of these names; empty: all. `confirm`:
    as in `job_kill`, for all jobs together.

    Raises `NotFound` if the service does not exist, `Rejected` if it has too many jobs, and `Conflict` with the code
    `confirm`. One transaction ends at most 5,000 tasks. It locks the cell's row, then the tasks in order of id.
    """
    require_tenant(principal, Action.JOB_WRITE, tenant, cell.name)
    service = service_to_change(principal, cell, tenant, name)
    chosen = service.chosen(jobs)
    # An alloc set can be killed only after the jobs inside it.
    live = sorted(
        (job for job in service.jobs if job.name in chosen), key=lambda job: (job.kind == alloc_sets.KIND, job.id)
    )
    going = [job for job in live if not is_owned(job)]
    running = sum(job.tasks_running for job in going)
    confirmation.require(cell, running, confirm, what=f"stop service {name}")
    changes = [left_alone(job) for job in live if is_owned(job)]
    changes += [
        JobChange(job=row.job.name, change=Change.UNCHANGED, detail="the job is stopped")
        for row in service.stopped
        if row.job.name in chosen
    ]
    asks = [
        AdmissionRequest(job.tenant_id, tenant, job.priority, tuple(-one for one in job.requested)) for job in going
    ]
    quota = quota_sentences(cell.name, asks)
    stopped_rows.check_number(service, len(going))
    if dry_run:
        changes += [_would_stop(job, going) for job in going]
        return ServiceChange.of(service.full_name, changes, quota)
    detail = reason or f"service {name} was stopped by {principal.name}"
    for batch in _batches(going):
        changes += _stopped_together(principal, service, batch, detail, reason)
    return ServiceChange.of(service.full_name, changes, quota)


def service_forget(*, principal: Principal, cell: Cell, tenant: str, name: str) -> int:
    """Forget the stopped jobs of a service, so that a start no longer brings them back. Return how many jobs these
    were. Live jobs stay, and a stop of them that was interrupted is forgotten. Without live jobs, the weights of the
    service are forgotten too. Idempotent as long as the service has live jobs.
    """
    require_tenant(principal, Action.JOB_WRITE, tenant, cell.name)
    try:
        service = service_named(principal, cell, tenant, name)
    except NotFound:
        if not weights_forget(principal, Service(cell, tenant, name, (), ())):
            raise
        return 0
    weights_forget(principal, service)
    jobs = [*(row.pk for row in service.stopped), *(job.pk for job in service.jobs)]
    return stopped_rows.remove(principal, service, jobs, "forgotten")


def _would_stop(job: Job, going: Sequence[Job]) -> JobChange:
    """Return what a stop would do with a job. The jobs inside an alloc set end first, if they are going too."""
    inside = alloc_sets.inner_jobs(job) if job.kind == alloc_sets.KIND else []
    if not {one.pk for one in inside} <= {one.pk for one in going}:
        try:
            alloc_sets.check_kill(job, None)
        except Rejected as problem:
            return JobChange(job=job.name, change=Change.REFUSED, problem=problem)
    tasks = job.tasks_total - job.tasks_dead
    return JobChange(job=job.name, change=Change.STOPPED, tasks=tasks, detail=_finished(job))


def _batches(going: Sequence[Job]) -> Iterator[list[Job]]:
    """Yield the jobs in batches of at most `journal.CHUNK` tasks. A large job and an alloc set have their own batch."""
    batch: list[Job] = []
    for job in going:
        tasks = sum(one.tasks_total for one in batch) + job.tasks_total
        if batch and (tasks > journal.CHUNK or alloc_sets.KIND in (job.kind, batch[-1].kind)):
            yield batch
            batch = []
        batch.append(job)
    if batch:
        yield batch


def _stopped_together(
    principal: Principal, service: Service, batch: Sequence[Job], detail: str, reason: str
) -> list[JobChange]:
    """Store that jobs were stopped, and end them, in one transaction. A job with more than `journal.CHUNK` tasks ends
    in further transactions. Jobs that have ended since they were read are left out.
    """
    try:
        with journal.write(service.cell.pk, principal) as entry:
            rows = Job.objects.filter(pk__in=[job.pk for job in batch]).exclude(state=JobState.DEAD.value)
            versions = dict(rows.values_list("pk", "spec_version"))
            live = [job for job in batch if job.pk in versions]
            for job in live:
                alloc_sets.check_kill(job, None)
            stopped_rows.store(entry, service, live, versions, reason)
            killed = jobs_end(entry, list(versions), detail=detail)
    except Rejected as problem:  # only an alloc set, which is alone in its batch, is rejected
        return [JobChange(job=job.name, change=Change.REFUSED, problem=problem) for job in batch]
    changes = []
    for job in live:
        tasks = killed.get(job.pk, 0)
        if sum(killed.values()) >= journal.CHUNK:
            try:
                tasks += job_kill(principal=principal, job=job, reason=detail, confirm=job.tasks_total, comes_back=True)
            except Rejected as problem:
                changes.append(JobChange(job=job.name, change=Change.REFUSED, problem=problem))
                continue
        changes.append(JobChange(job=job.name, change=Change.STOPPED, tasks=tasks, detail=_finished(job)))
    return changes


def _finished(job: Job) -> str:
    """Return a warning if tasks of the job have ended already, because a start runs all of its tasks."""
    if not job.tasks_dead:
        return ""
    return f"{job.tasks_dead} of its tasks have ended before; a start runs them again"
