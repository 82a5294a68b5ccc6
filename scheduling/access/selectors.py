"""Reads of cells, machines, jobs, tasks and events for REST, pages and the console, limited to what the caller may see.

Rows that the caller may not see are not found. The number of queries of each function does not depend on the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from django.db.models import Count, IntegerField, OuterRef, Prefetch, Q, QuerySet, Subquery
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Coalesce

from quota.selectors import tenants_visible
from quota.vocabulary.errors import NotFound, Rejected
from quota.vocabulary.permissions import Action, CapabilityKind, Principal, Scope, may, require
from scheduling.core.vocabulary.states import JobState, MachineStatus, TaskState
from scheduling.models import Brake, Cell, Departure, Event, Job, JobSpec, Machine, Task, Update
from scheduling.models.machines import REMOVED
from scheduling.policy.brakes import BrakeKind
from scheduling.spec.masking import masked


def cells_visible(principal: Principal) -> QuerySet[Cell]:
    rows = Cell.objects.order_by("id")
    if principal.cell is not None:
        rows = rows.filter(name=principal.cell)
    return rows if may(principal, Action.CELL_VIEW) else rows.none()


def cell_named(principal: Principal, name: str) -> Cell:
    """Return the cell. Raises `NotFound`, which names the existing cells."""
    if may(principal, Action.CELL_VIEW) and principal.cell in (None, name):
        for cell in Cell.objects.raw("SELECT * FROM scheduling_cell WHERE name = %s", [name]):
            return cell
    raise NotFound("cell", name, known=list(cells_visible(principal).values_list("name", flat=True)[:10]))


@dataclass(frozen=True, slots=True)
class CellCounts:
    """Machines and tasks of live jobs by state, and jobs by state."""

    machines: Mapping[str, int]
    tasks: Mapping[str, int]
    jobs: Mapping[str, int]


def cell_counts(principal: Principal, cell: Cell) -> CellCounts:
    """Return counts of the machines, and of the jobs that the principal may see."""
    machines = dict.fromkeys([state.value for state in MachineStatus], 0)
    machines |= dict(
        Machine.objects.filter(cell=cell)
        .exclude(state=REMOVED)
        .order_by()
        .values_list("state")
        .annotate(number=Count("id"))
    )
    jobs = dict.fromkeys([state.value for state in JobState], 0)
    visible = jobs_of_tenants(principal, cell)
    jobs |= dict(visible.order_by().values_list("state").annotate(number=Count("id")))
    tasks = {"pending": 0, "running": 0, "up": 0}
    for row in visible.exclude(state=JobState.DEAD.value).values_list("tasks_pending", "tasks_running", "tasks_up"):
        for name, number in zip(tasks, row, strict=True):
            tasks[name] += number
    return CellCounts(machines, tasks, jobs)


def machines_of(cell: Cell, *, state: str = "") -> QuerySet[Machine]:
    """Return the machines in a state, or all that have not been removed. Raises `Rejected` for an unknown state."""
    rows = Machine.objects.filter(cell=cell).annotate(tasks_running=tasks_there())
    if not state:
        return rows.exclude(state=REMOVED).order_by("id")
    _check_state(state, [*(status.value for status in MachineStatus), REMOVED])
    return rows.filter(state=state).order_by("id")


def machine_named(cell: Cell, hostname: str) -> Machine:
    """Raises `NotFound`."""
    rows = Machine.objects.select_related("cell").annotate(tasks_running=tasks_there())
    machine = rows.filter(cell=cell, hostname=hostname).first()
    if machine is None:
        raise NotFound("machine", hostname)
    return machine


def machines_in_quarantine(principal: Principal, cell: Cell) -> QuerySet[Machine]:
    """Return the machines that run tasks which are not in this cell's history. Raises `Forbidden` unless the caller
    may administer machines, because the tasks may belong to any tenant.
    """
    require(principal, Action.MACHINE_ADMIN, cell=cell.name)
    return Machine.objects.filter(cell=cell).exclude(Q(quarantined=[]) | Q(state=REMOVED)).order_by("id")


def brakes_of(cell: Cell) -> list[Brake]:
    """Return all brakes of a cell. One that was never needed is open, without a time."""
    known = {brake.kind: brake for brake in Brake.objects.filter(cell=cell)}
    return [known.get(kind.value) or Brake(cell=cell, kind=kind.value) for kind in BrakeKind]


def jobs_of_tenants(principal: Principal, cell: Cell) -> QuerySet[Job]:
    """The jobs that the principal may see, as plain rows."""
    rows = Job.objects.filter(cell=cell)
    if Scope.READ not in principal.scopes:
        return rows.none()
    if principal.tenant is not None:
        rows = rows.filter(tenant__name=principal.tenant)
    if principal.sre or principal.has(CapabilityKind.ANY_JOB, cell.name):
        return rows
    return rows.filter(tenant__in=tenants_visible(principal))


def jobs_visible(
    principal: Principal, cell: Cell, *, tenant: str = "", state: str = "", labels: Iterable[str] = ()
) -> QuerySet[Job]:
    """Return jobs for lists, with tenant, wanted number of tasks, open update and verdict. `labels`: `key=value`.

    `state`: pending, running, dead, or `live` for all that are not dead.
    """
    rows = with_details(jobs_of_tenants(principal, cell))
    if tenant:
        rows = rows.filter(tenant__name=tenant)
    if state == "live":
        rows = rows.exclude(state=JobState.DEAD.value)
    elif state:
        _check_state(state, [*(known.value for known in JobState), "live"])
        rows = rows.filter(state=state)
    for label in labels:
        key, equals, value = label.partition("=")
        if not equals:
            raise Rejected(
                "invalid",
                f"label: {label!r} is not of the form key=value; write key=value",
                fields={"label": "write key=value"},
            )
        rows = rows.filter(labels__contains={key: value})
    return rows.order_by("id")


def with_details(rows: QuerySet[Job]) -> QuerySet[Job]:
    """Add the related data that pages show of a job: one more query for any number of jobs."""
    current = JobSpec.objects.filter(job=OuterRef("pk"), version=OuterRef("spec_version"))
    tasks = Cast(KeyTextTransform("tasks", "spec"), IntegerField())
    return (
        rows.select_related("cell", "tenant", "verdict", "alloc_set")
        .annotate(tasks_wanted=Subquery(current.annotate(wanted=tasks).values("wanted")[:1]))
        .prefetch_related(Prefetch("updates", Update.objects.filter(state=Update.OPEN), to_attr="open_updates"))
    )


def job_named(principal: Principal, cell: Cell, tenant: str, name: str) -> Job:
    """The live job of that name, or the last that had it. Raises `NotFound`."""
    if may(principal, Action.JOB_VIEW, tenant=tenant, cell=cell.name):
        named = with_details(Job.objects.filter(cell=cell, tenant__name=tenant, name=name))
        job = named.exclude(state=JobState.DEAD.value).first() or named.order_by("-id").first()
        if job is not None:
            return job
    raise NotFound("job", f"{cell.name}/{tenant}/{name}")


def job_current_spec(job: Job) -> Mapping[str, Any]:
    """The spec in force, as its job file."""
    return cast(
        "Mapping[str, Any]", JobSpec.objects.values_list("spec", flat=True).get(job=job, version=job.spec_version)
    )


def spec_shown(principal: Principal, job: Job, file: Mapping[str, object]) -> Mapping[str, object]:
    """A job file of `job` as `principal` may see it: without values that look secret, unless they may change the job.

    `job.cell` and `job.tenant` are read.
    """
    writes = may(principal, Action.JOB_WRITE, tenant=job.tenant.name, cell=job.cell.name)
    return file if writes else masked(file)


def job_update_shown(job: Job) -> Update | None:
    """The open update, or the last one."""
    return Update.objects.filter(job=job).order_by("-id").first()


def update_followers(update: Update) -> int:
    """Return how many tasks follow the update's spec."""
    return Task.objects.filter(job_id=update.job_id, spec_version=update.to_version).count()


def specs_of(job: Job) -> QuerySet[JobSpec]:
    return JobSpec.objects.filter(job=job).order_by("version")


STILL_STOPPING = Prefetch("departures", Departure.objects.select_related("machine").order_by("incarnation"))


def tasks_of(job: Job, *, state: str = "") -> QuerySet[Task]:
    """Return tasks by index, with `departures`: earlier incarnations that are still being stopped. Raises `Rejected`
    for an unknown state.
    """
    rows = Task.objects.filter(job=job).select_related("machine").prefetch_related(STILL_STOPPING).order_by("id")
    if state:
        _check_state(state, [known.value for known in TaskState])
        rows = rows.filter(state=state)
    return rows


def task_at(job: Job, index: int) -> Task:
    """Raises `NotFound`."""
    task = Task.objects.filter(job=job, index=index).select_related("machine", "alloc__job").first()
    if task is None:
        raise NotFound("task", f"{job.name}/{index}")
    return task


def alloc_names(tasks: Iterable[Task]) -> dict[int, str]:
    """The allocs that tasks live in (§2.4), by id, as `set/index`. One query, none where there is no alloc."""
    ids = {task.alloc_id for task in tasks if task.alloc_id is not None}
    if not ids:
        return {}
    rows = Task.objects.filter(pk__in=ids).order_by().values_list("id", "job__name", "index")
    return {identity: f"{name}/{index}" for identity, name, index in rows}


def port_names(job: Job, tasks: Iterable[Task]) -> dict[int, list[str]]:
    """Return the port names by version of the spec, because tasks may still run an earlier version."""
    older = {task.spec_version for task in tasks} - {job.spec_version}
    names = {job.spec_version: list(job.port_names)}
    if older:
        rows = JobSpec.objects.filter(job=job, version__in=older)
        names |= dict(rows.values_list("version", "spec__task__ports"))
    return names


def events_of_job(job: Job) -> QuerySet[Event]:
    """Return the events of a job, newest first."""
    return Event.objects.filter(cell_id=job.cell_id, job_id=job.id).order_by("-revision", "-seq")


def events_of_cell(principal: Principal, cell: Cell) -> QuerySet[Event]:
    """Return the events of machines and of visible jobs, newest first."""
    rows = Event.objects.filter(cell_id=cell.id).order_by("-revision", "-seq")
    if principal.sre and principal.tenant is None:
        return rows
    visible = jobs_of_tenants(principal, cell).order_by().values("id")
    return rows.filter(Q(job_id__in=visible) | Q(kind__startswith="machine.", job_id__isnull=True))


def tasks_there() -> Coalesce:
    """Return the number of tasks on a machine, counted per row, because a page must not count those of the whole
    cell.
    """
    there = Task.objects.filter(machine=OuterRef("pk")).order_by().values("machine")
    return Coalesce(Subquery(there.annotate(number=Count("id")).values("number")), 0)


def _check_state(state: str, known: list[str]) -> None:
    if state not in known:
        raise Rejected(
            "invalid", f"state: {state!r} is unknown; give one of {', '.join(known)}", fields={"state": "unknown"}
        )
