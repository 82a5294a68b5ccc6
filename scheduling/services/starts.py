"""Starts a service: submits its stopped jobs again, or some of them.

    stopped specs, in the order of their dependencies ─► ordinary submissions, in batches ─► rows removed, and an event

If some jobs are rejected, for example for lack of quota, the others start, and the answer says why. A repeated start
finishes the rest. A crash before the rows are removed does no harm: a row does not count if a later job has the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from django.db.models import Q
from django.utils import timezone

from quota.admission.admission import AdmissionRequest
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.tenant_permission import require_tenant
from scheduling.jobs.plan_quota import quota_sentences
from scheduling.jobs.submission.outcomes import Submission
from scheduling.jobs.submit_and_kill import jobs_submit_specs
from scheduling.models import Cell, JobAutoscaling, JobSpec
from scheduling.services import stopped_rows
from scheduling.services.outcomes import Change, JobChange, ServiceChange
from scheduling.services.selectors import Service, service_to_change
from scheduling.spec import job_spec as spec
from scheduling.spec import parser


def service_start(
    *, principal: Principal, cell: Cell, tenant: str, name: str, jobs: Iterable[str] = (), dry_run: bool = False
) -> ServiceChange:
    """Submit the stopped jobs of a service again, with the versions that they had. Idempotent.

    They need quota as new jobs do. A job waits for another job of its `after` only if it was still waiting, or if the
    other one is also a stopped job of the service. `jobs`: as in `service_stop`.

    Raises `NotFound` if the service does not exist, and `Rejected` if it has too many jobs. Locks: the cell's row, then
    the tenant's use of quota.
    """
    require_tenant(principal, Action.JOB_WRITE, tenant, cell.name)
    service = service_to_change(principal, cell, tenant, name)
    chosen = service.chosen(jobs)
    changes = [
        JobChange(job=job.name, change=Change.UNCHANGED, detail="the job is live")
        for job in service.jobs
        if job.name in chosen
    ]
    specs, unreadable = _specs(service, chosen)
    changes += unreadable
    verdicts = jobs_submit_specs(principal=principal, cell=cell, specs=specs, dry_run=dry_run) if specs else []
    changes += map(_started, verdicts, specs)
    rows = {row.job.name: row.pk for row in service.stopped}
    settled = [rows[one.name] for one in verdicts if one.problem is None]
    if settled and not dry_run:
        _keep_own_values(rows, verdicts)
        stopped_rows.remove(principal, service, settled, "started")
    return ServiceChange.of(
        service.full_name, changes, quota_sentences(cell.name, _asks(service, specs, verdicts)) if dry_run else ()
    )


def _keep_own_values(rows: Mapping[str, int], verdicts: Sequence[Submission]) -> None:
    """Let the values that a user set last stay the user's, where the autoscaler had set others. Otherwise, the next
    apply of an unchanged job file would look like a change of a user. `rows`: the ids of the stopped jobs by name.
    """
    new = {rows[one.name]: one.job.pk for one in verdicts if one.job is not None and one.outcome == "submitted"}
    old = {row.pk: row for row in JobAutoscaling.objects.filter(job__in=new)}
    made = {row.pk: row for row in JobAutoscaling.objects.filter(job__in=[new[pk] for pk in old])} if old else {}
    changed = []
    for pk, row in old.items():
        if (now := made.get(new[pk])) is not None:
            now.own_tasks, now.own_cpu, now.own_ram = row.own_tasks, row.own_cpu, row.own_ram
            changed.append(now)
    if changed:
        JobAutoscaling.objects.bulk_update(changed, ["own_tasks", "own_cpu", "own_ram"])


def _specs(service: Service, chosen: set[str]) -> tuple[list[spec.JobSpecification], list[JobChange]]:
    """Return the specs of the stopped jobs in the order in which they are submitted, and the jobs whose spec cannot be
    submitted any more. Makes one query.
    """
    rows = {row.pk: row for row in service.stopped if row.job.name in chosen}
    wanted = Q()
    for row in rows.values():
        wanted |= Q(job_id=row.pk, version=row.version)
    stored = JobSpec.objects.filter(wanted).order_by("job_id").values_list("job_id", "spec") if rows else ()
    names = {row.job.name for row in service.stopped}
    limits = parser.CellLimits(bands=None, extra=tuple(service.cell.extra_resources))
    found: dict[str, spec.JobSpecification] = {}
    unreadable = []
    for job_id, file in stored:
        job = rows[job_id].job
        if job.start_after is not None and job.start_after <= timezone.now():
            file.pop("start_after", None)
        if not job.waiting and "after" in file:
            file["after"] = {other: goal for other, goal in file["after"].items() if other in names}
        place = {"tenant": service.tenant, "cell": service.cell.name, "name": job.name}
        try:
            found[job.name] = parser.parse(file | place, limits=limits)
        except Rejected as problem:
            unreadable.append(JobChange(job=job.name, change=Change.REFUSED, problem=problem))
    return [found[name] for name in _in_order(found)], unreadable


def _in_order(specs: dict[str, spec.JobSpecification]) -> list[str]:
    """Return the names of jobs in the order in which they can be submitted: each behind its alloc set, and behind the
    jobs that it waits for. Without such an order, each job keeps its place.
    """
    before = {name: [one for one in (*given.after, given.alloc_set) if one in specs] for name, given in specs.items()}
    try:
        return list(TopologicalSorter(before).static_order())
    except CycleError:
        return list(specs)


def _started(verdict: Submission, job_spec: spec.JobSpecification) -> JobChange:
    if verdict.problem is not None:
        return JobChange(job=verdict.name, change=Change.REFUSED, problem=verdict.problem)
    if verdict.outcome == "unchanged":
        return JobChange(job=verdict.name, change=Change.UNCHANGED, detail="the job is live")
    return JobChange(job=verdict.name, change=Change.STARTED, tasks=job_spec.tasks)


def _asks(
    service: Service, specs: Sequence[spec.JobSpecification], verdicts: Sequence[Submission]
) -> list[AdmissionRequest]:
    return [
        AdmissionRequest(service.stopped[0].job.tenant_id, service.tenant, one.priority, one.charged())
        for one, verdict in zip(specs, verdicts, strict=True)
        if verdict.problem is None
    ]
