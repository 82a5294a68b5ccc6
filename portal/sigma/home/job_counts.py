"""The jobs of the user's tenants by state, and the jobs in trouble."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db.models import Count, Q, Sum

from portal.sigma.reads.jobs import operated_jobs_visible, uneven_jobs
from quota.models import Tenant
from quota.vocabulary.permissions import Principal
from scheduling.core.vocabulary.job_health import JobHealth
from scheduling.jobs.health import health_of
from scheduling.models import Cell, Job


@dataclass(frozen=True, slots=True)
class JobCounts:
    """Numbers of live jobs and of their tasks. The failing jobs are also pending or running."""

    failing: int = 0
    pending: int = 0
    running: int = 0
    tasks_up: int = 0
    tasks_pending: int = 0

    @property
    def live(self) -> int:
        return self.pending + self.running


@dataclass(frozen=True, slots=True)
class JobsInTrouble:
    """Live jobs with a task that is not up, newest first. `failing`: the jobs that are failing. `pending`: the others
    with pending tasks.
    """

    failing: Sequence[Job]
    pending: Sequence[Job]


def jobs_in_trouble(principal: Principal, tenants: Sequence[Tenant], cells: Sequence[Cell]) -> JobsInTrouble:
    """Return the jobs of these tenants that are failing or have pending tasks. Makes at most three queries.

    `cells`: cells that are already read. The jobs share these objects and the tenants.
    """
    cell_by_id, tenant_by_id = {cell.id: cell for cell in cells}, {tenant.id: tenant for tenant in tenants}
    found = uneven_jobs(principal, list(tenant_by_id))
    for job in found:
        job.tenant = tenant_by_id[job.tenant_id]
        if job.cell_id in cell_by_id:
            job.cell = cell_by_id[job.cell_id]
    failing = [job for job in found if health_of(job).state is JobHealth.FAILING]
    ids = {job.id for job in failing}
    return JobsInTrouble(failing, [job for job in found if job.tasks_pending and job.id not in ids])


def counts_by_tenant(principal: Principal, tenant_ids: Sequence[int], failing: Sequence[Job]) -> dict[int, JobCounts]:
    """Return the counts of each tenant by its id. `failing`: the failing jobs. Makes one query."""
    rows = operated_jobs_visible(principal).filter(tenant__in=tenant_ids).exclude(state="dead").order_by()
    sums = rows.values("tenant_id").annotate(
        jobs_pending=Count("id", filter=Q(state="pending")),
        jobs_running=Count("id", filter=Q(state="running")),
        up=Sum("tasks_up"),
        waiting=Sum("tasks_pending"),
    )
    bad = Counter(job.tenant_id for job in failing)
    found = {
        row["tenant_id"]: JobCounts(
            failing=bad[row["tenant_id"]],
            pending=row["jobs_pending"],
            running=row["jobs_running"],
            tasks_up=row["up"],
            tasks_pending=row["waiting"],
        )
        for row in sums
    }
    return {tenant_id: found.get(tenant_id, JobCounts()) for tenant_id in tenant_ids}


def total(parts: Iterable[JobCounts]) -> JobCounts:
    """Return the sums of these counts."""
    every = list(parts)
    names = ("failing", "pending", "running", "tasks_up", "tasks_pending")
    return JobCounts(**{name: sum(getattr(one, name) for one in every) for name in names})
