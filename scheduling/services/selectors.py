"""Reads services. A service is not a row: it is the live jobs of a tenant in a cell with the same label `service`, and
the jobs that its last stop has ended (`StoppedJob`).

The number of queries does not depend on the number of jobs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import Count, Exists, F, IntegerField, OuterRef, Q, QuerySet, Sum, Value
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Collate, Least, NullIf

from quota.vocabulary.bands import FREE_PRIORITY
from quota.vocabulary.errors import NotFound, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, may
from quota.vocabulary.resources import SIZE, ZERO, Vector, add
from scheduling.access.selectors import of_tenants, with_details
from scheduling.core.vocabulary.job_health import JobHealth
from scheduling.core.vocabulary.states import JobState
from scheduling.cron.cron_spec import LABEL as CRON_LABEL
from scheduling.jobs.health import health_of, may_be_up, with_health
from scheduling.models import Cell, CronJob, Job, StoppedJob, Update, WorkflowNode
from scheduling.models.jobs import RUN_NAME
from scheduling.services.outcomes import Change, JobChange, ServiceState, service_state
from scheduling.spec.schema import SERVICE_LABEL
from scheduling.workflows.workflow_spec import LABEL as WORKFLOW_LABEL

# The most jobs of a service that its page shows, and that a verb changes.
MOST_JOBS = 200
NAME = re.compile(r"^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$")
_RUN = re.compile(RUN_NAME)
# Problems first.
_ORDER = (
    *(JobHealth.FAILING, JobHealth.DEGRADED, JobHealth.PENDING, JobHealth.STARTING, JobHealth.UPDATING),
    *(JobHealth.HEALTHY, JobHealth.ENDED),
)


@dataclass(frozen=True, slots=True)
class ServiceRow:
    """A service in a list. `jobs`, `stopped`: its live jobs, and its jobs that a start brings back. `wanted`, `up`: how
    many tasks of the live jobs should be up, and are up.
    """

    tenant: str
    name: str
    jobs: int = 0
    stopped: int = 0
    wanted: int = 0
    placed: int = 0
    up: int = 0

    @property
    def state(self) -> ServiceState:
        return service_state(jobs=self.jobs, stopped=self.stopped, wanted=self.wanted, up=self.up)


@dataclass(frozen=True, slots=True)
class Service:
    """A service with its jobs. `jobs`: the live jobs with their health, problems first. `stopped`: the jobs that a
    start brings back, oldest first. `more`: whether it has more live jobs than these. `last`: the last job that was
    read.
    """

    cell: Cell
    tenant: str
    name: str
    jobs: tuple[Job, ...]
    stopped: tuple[StoppedJob, ...]
    more: bool = False
    last: Job | None = None

    @property
    def wanted(self) -> int:
        return sum(may_be_up(job) for job in self.jobs)

    @property
    def up(self) -> int:
        return sum(job.tasks_up for job in self.jobs)

    @property
    def pending(self) -> int:
        return sum(job.tasks_pending for job in self.jobs)

    @property
    def dead(self) -> int:
        return sum(job.tasks_dead for job in self.jobs)

    @property
    def state(self) -> ServiceState:
        return service_state(jobs=len(self.jobs), stopped=len(self.stopped), wanted=self.wanted, up=self.up)

    @property
    def updates(self) -> list[tuple[Job, Update]]:
        """Return the jobs with an update or a restart in progress, each with this update."""
        return [(job, update) for job in self.jobs if (update := health_of(job).update) is not None]

    @property
    def requested(self) -> dict[str, Vector]:
        """Return how much quota the live jobs use, by the name of the band."""
        found: dict[str, Vector] = {}
        for job in self.jobs:
            if job.priority != FREE_PRIORITY and any(job.requested):
                found[job.band] = add(found.get(job.band, ZERO), job.requested[:SIZE])
        return found

    def chosen(self, names: Iterable[str]) -> set[str]:
        """Return `names`, or the names of all jobs if there are none. Raises `Rejected` for the name of another job."""
        known = {job.name for job in self.jobs} | {row.job.name for row in self.stopped}
        wanted = set(names)
        if unknown := sorted(wanted - known):
            theirs = ", ".join(sorted(known)[:20])
            detail = f"service {self.name} has no job {', '.join(unknown[:5])}; its jobs are {theirs}"
            raise invalid("jobs", detail)
        return wanted or known

    @property
    def full_name(self) -> str:
        return f"{self.cell.name}/{self.tenant}/{self.name}"


def is_owned(job: Job) -> bool:
    """Return whether a cron job or a workflow starts and ends the job, so that verbs of its service leave it alone."""
    return bool(job.owner)  # type: ignore[attr-defined]


def with_owners(jobs: list[Job], cell: Cell, tenant: str) -> list[Job]:
    """Set the attribute `owner` of each job: what starts and ends it, as text, or "". Makes at most two queries, and
    none if no job has the label of a cron job or a workflow.
    """
    runs = {job.pk: found[1] for job in jobs if CRON_LABEL in job.labels and (found := _RUN.match(job.name))}
    nodes = [job.pk for job in jobs if WORKFLOW_LABEL in job.labels]
    crons = CronJob.objects.filter(cell=cell, tenant__name=tenant, name__in=runs.values()) if runs else ()
    names = {row.name for row in crons}
    running = WorkflowNode.objects.filter(job_id__in=nodes, state="running") if nodes else None
    of_workflows = set(running.values_list("job_id", flat=True)) if running is not None else set()
    for job in jobs:
        owner = "workflow" if job.pk in of_workflows else "cron job" if runs.get(job.pk) in names else ""
        job.owner = owner  # type: ignore[attr-defined]
    return jobs


def left_alone(job: Job) -> JobChange:
    """Return what a verb does with a job that a cron job or a workflow owns."""
    owner = job.owner  # type: ignore[attr-defined]
    return JobChange(job=job.name, change=Change.UNCHANGED, detail=f"its {owner} starts and ends it")


def stopped_jobs(cell: Cell) -> QuerySet[StoppedJob]:
    """Return the jobs of the cell that a start of their service brings back. A job that lives, or whose name a later
    job has, is not one of them.
    """
    later = Job.objects.filter(tenant=OuterRef("job__tenant"), name=OuterRef("job__name"), pk__gt=OuterRef("job_id"))
    rows = StoppedJob.objects.filter(job__cell=cell, job__state=JobState.DEAD.value)
    return rows.exclude(Exists(later.filter(cell=cell).order_by()))


def service_named(principal: Principal, cell: Cell, tenant: str, name: str) -> Service:
    """Return a service. Raises `NotFound` if it has neither a live nor a stopped job, or if the caller may not see it.
    Makes at most eight queries.
    """
    visible = may(principal, Action.JOB_VIEW, tenant=tenant, cell=cell.name)
    found = service_at(cell, tenant, name) if visible else None
    if found is None:
        raise NotFound("service", f"{cell.name}/{tenant}/{name}")
    return found


def service_to_change(principal: Principal, cell: Cell, tenant: str, name: str) -> Service:
    """Return a service for one of its verbs. Raises `Rejected` if they would change more than `MOST_JOBS` jobs, and the
    errors of `service_named`.
    """
    found = service_named(principal, cell, tenant, name)
    # The jobs with an owner come last, so all others are among the jobs if one of these was left out.
    if found.more and found.last is not None and not is_owned(found.last):
        detail = (
            f"service {name} has more than {MOST_JOBS} jobs, and its verbs change at most so many; choose a part of"
            f" them with a selector, such as `borgctl restart -l service={name},track=canary`"
        )
        raise Rejected("too-many-jobs", detail, figures={"most": MOST_JOBS}, status=413)
    return found


def service_at(cell: Cell, tenant: str, name: str) -> Service | None:
    """Return a service with at most `MOST_JOBS` live jobs, or None if it has no job or its name is not a DNS label. The
    caller has checked the permission.
    """
    if not NAME.fullmatch(name):
        return None
    rows = Job.objects.filter(cell=cell, tenant__name=tenant, labels__contains={SERVICE_LABEL: name})
    live = rows.exclude(state=JobState.DEAD.value).alias(last=Q(labels__has_any_keys=[CRON_LABEL, WORKFLOW_LABEL]))
    jobs = with_owners(with_health(with_details(live.order_by("last", "id"))[: MOST_JOBS + 1]), cell, tenant)
    of_service = stopped_jobs(cell).filter(job__tenant__name=tenant, service=name)
    # A tenant has few stopped jobs (`stopped_rows.MOST_STOPPED`).
    stopped = list(of_service.select_related("job__tenant", "job__cell").order_by("job_id"))
    if not jobs and not stopped:
        return None
    last, more = (jobs[-1] if jobs else None), len(jobs) > MOST_JOBS
    shown = sorted(jobs[:MOST_JOBS], key=lambda job: (_ORDER.index(health_of(job).state), job.name))
    return Service(cell, tenant, name, tuple(shown), tuple(stopped), more, last)


def services_visible(
    principal: Principal, cell: Cell, *, tenant: str = "", after: tuple[str, str] = ("", ""), most: int
) -> list[ServiceRow]:
    """Return the services of a cell that the caller may see, in the order of tenant and name. `after`: begin behind
    this tenant and name. `most`: the largest number to return. Makes two queries.
    """
    jobs = of_tenants(Job.objects.all(), principal, cell).order_by()
    live = jobs.exclude(state=JobState.DEAD.value).filter(labels__has_key=SERVICE_LABEL)
    # Older versions accepted any text as the label. A text that is not a DNS label is not a service.
    live = live.alias(label=KeyTextTransform(SERVICE_LABEL, "labels")).filter(label__regex=NAME.pattern)
    stopped = stopped_jobs(cell).filter(job__in=jobs.values("pk"))
    if tenant:
        live, stopped = live.filter(tenant__name=tenant), stopped.filter(job__tenant__name=tenant)
    # The order of the bytes, as Python sorts, so that pages do not depend on the language of the database.
    live = live.annotate(
        of=Collate("tenant__name", "C"), called=Collate(KeyTextTransform(SERVICE_LABEL, "labels"), "C")
    )
    ended = stopped.annotate(of=Collate("job__tenant__name", "C"), called=Collate("service", "C"))
    behind = Q(of__gt=after[0]) | Q(of=after[0], called__gt=after[1])
    living = F("tasks_total") - F("tasks_dead")
    counts = (
        live.filter(behind)
        .values_list("of", "called")
        .annotate(
            number=Count("id"),
            wanted=Sum(Least(living, NullIf(F("max_running"), Value(0)), output_field=IntegerField())),
            placed=Sum("tasks_running"),
            serving=Sum("tasks_up"),
        )
    )
    found: dict[tuple[str, str], dict[str, int]] = {}
    for of, name, number, wanted, placed, up in counts.order_by("of", "called")[:most]:
        found[of, name] = {"jobs": number, "wanted": wanted, "placed": placed, "up": up}
    numbers = ended.filter(behind).order_by().values_list("of", "called").annotate(number=Count("pk"))
    for of, name, number in numbers.order_by("of", "called")[:most]:
        found.setdefault((of, name), {})["stopped"] = number
    return [ServiceRow(of, name, **found[of, name]) for of, name in sorted(found)[:most]]
