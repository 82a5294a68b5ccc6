"""Functions that read cells, machines, jobs, tasks and events from the database, for REST, pages and the console.

They return only rows that the caller may see. The number of queries does not depend on the number of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from django.db import connection
from django.db.models import Count, Exists, IntegerField, Model, OuterRef, Prefetch, Q, QuerySet, Subquery, Sum
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Coalesce

from quota.model_rows import read_models
from quota.models import Tenant
from quota.selectors import tenants_visible
from quota.vocabulary.errors import NotFound, invalid
from quota.vocabulary.permissions import Action, CapabilityKind, Principal, Scope, may, require
from scheduling.access.label_filters import machines_selected, with_labels
from scheduling.access.restarting_tasks import tasks_to_restart
from scheduling.core.vocabulary.states import JobState, MachineStatus, TaskState
from scheduling.models import ArchivedJob, Brake, Cell, Departure, Event, Job, JobSpec, Machine, Task, Update
from scheduling.models.machines import REMOVED
from scheduling.policy.brake_rules import BrakeKind
from scheduling.spec.masking import masked

M = TypeVar("M", bound=Model)


def may_study(principal: Principal) -> bool:
    """Return whether the principal may see study cells (copies of cells at one moment) and deleted cells. Only SREs
    may, because such a cell contains jobs of all tenants.
    """
    return principal.sre and principal.tenant is None


def cells_visible(principal: Principal) -> QuerySet[Cell]:
    """Return the cells that the principal may see, in the order of their ids. Deleted cells are left out."""
    rows = (Cell.objects if may_study(principal) else Cell.operated).filter(deleted_at=None).order_by("id")
    if principal.cell is not None:
        rows = rows.filter(name=principal.cell)
    return rows if may(principal, Action.CELL_VIEW) else rows.none()


def cells_deleted(principal: Principal) -> QuerySet[Cell]:
    """Return the deleted cells, in the order of their ids. Raises `Forbidden` unless the principal is an SRE."""
    require(principal, Action.CELL_ADMIN)
    return Cell.objects.exclude(deleted_at=None).order_by("id")


def cell_named(principal: Principal, name: str) -> Cell:
    """Return the cell of this name. Raises `NotFound` if the cell does not exist or the principal may not see it; the
    error lists the cells that the principal may see.
    """
    if may(principal, Action.CELL_VIEW) and principal.cell in (None, name):
        for cell in read_models(Cell, "SELECT {columns} FROM scheduling_cell AS t WHERE name = %s", [name]):
            if (cell.study_of is None and cell.deleted_at is None) or may_study(principal):
                return cell
    raise NotFound("cell", name, known=list(cells_visible(principal).values_list("name", flat=True)[:10]))


def cell_counts(principal: Principal, cell: Cell) -> dict[str, dict[str, int]]:
    """Return how many `machines`, `jobs` and live `tasks` of the cell are in each state. Jobs that the principal may
    not see are not counted, and neither are their tasks.
    """
    machines = dict.fromkeys([state.value for state in MachineStatus], 0)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT state, count(*) FROM scheduling_machine WHERE cell_id = %s AND state <> %s GROUP BY state",
            [cell.id, REMOVED],
        )
        machines |= dict(cursor.fetchall())
    jobs = dict.fromkeys([state.value for state in JobState], 0)
    tasks = dict.fromkeys(("pending", "running", "up"), 0)
    sums = [Sum(f"tasks_{name}") for name in tasks]
    for state, number, *of_tasks in (
        jobs_of_tenants(principal, cell).order_by().values_list("state").annotate(Count("id"), *sums)
    ):
        jobs[state] = number
        if state != JobState.DEAD:
            tasks = {name: tasks[name] + one for name, one in zip(tasks, of_tasks, strict=True)}
    return {"machines": machines, "tasks": tasks, "jobs": jobs}


def machines_of(cell: Cell, *, state: str = "", selector: str = "", prefix: str = "") -> QuerySet[Machine]:
    """Return the machines in `state`, or all machines that have not been removed if `state` is empty. `selector`: a
    label selector over their attributes. `prefix`: how their names begin. Raises `Rejected` for an unknown state or a
    wrong selector.
    """
    rows = machines_selected(Machine.objects.filter(cell=cell), selector).annotate(tasks_running=tasks_there())
    if prefix:
        rows = rows.filter(hostname__startswith=prefix)
    if not state:
        return rows.exclude(state=REMOVED).order_by("id")
    _check_state(state, [*(status.value for status in MachineStatus), REMOVED])
    return rows.filter(state=state).order_by("id")


def machine_named(cell: Cell, hostname: str) -> Machine:
    """Return the machine of this name. Raises `NotFound` if the machine does not exist."""
    for machine in read_models(Machine, _MACHINE, [cell.id, hostname], alias="m", also=("tasks_running",)):
        machine.cell = cell
        return machine
    raise NotFound("machine", hostname)


def machines_in_quarantine(principal: Principal, cell: Cell) -> QuerySet[Machine]:
    """Return the machines with tasks in quarantine. A task is in quarantine if it runs on a machine but is missing in
    this cell's history.

    Raises `Forbidden` unless the caller may administer machines, because the tasks may belong to any tenant.
    """
    require(principal, Action.MACHINE_ADMIN, cell=cell.name)
    return Machine.objects.filter(cell=cell).exclude(Q(quarantined=[]) | Q(state=REMOVED)).order_by("id")


def brakes_of(cell: Cell) -> list[Brake]:
    """Return all brakes of a cell. A brake limits how many tasks the cell moves or stops automatically. If a brake has
    no row in the database, the function returns an unsaved brake in the state `open`, in which it holds back no tasks.
    """
    known = {brake.kind: brake for brake in Brake.objects.filter(cell=cell)}
    return [known.get(kind.value) or Brake(cell=cell, kind=kind.value) for kind in BrakeKind]


def jobs_of_tenants(principal: Principal, cell: Cell) -> QuerySet[Job]:
    """Return the jobs of the cell that the principal may see, without data of other tables."""
    return of_tenants(Job.objects.all(), principal, cell)


def of_tenants(rows: QuerySet[M], principal: Principal, cell: Cell) -> QuerySet[M]:
    """Return those rows of a cell that belong to tenants whose jobs the principal may see."""
    rows = rows.filter(cell=cell)
    if Scope.READ not in principal.scopes:
        return rows.none()
    if principal.tenant is not None:
        rows = rows.filter(tenant__name=principal.tenant)
    if principal.sre or principal.has(CapabilityKind.ANY_JOB, cell.name):
        return rows
    return rows.filter(tenant__in=tenants_visible(principal))


def jobs_visible(
    principal: Principal,
    cell: Cell,
    *,
    tenant: str = "",
    state: str = "",
    labels: Iterable[str] = (),
    selector: str = "",
    prefix: str = "",
) -> QuerySet[Job]:
    """Return the jobs that the principal may see, each with its desired number of tasks. Call `detailed` to add the
    other data that a list of jobs shows.

    `labels`: labels that the jobs must have, each as `key=value`. `selector`: a label selector, such as
    `app=shop,track!=canary`. `state`: `pending`, `running`, `dead`, or `live` for all jobs that are not dead. `prefix`:
    how their names begin.
    """
    rows = jobs_of_tenants(principal, cell).annotate(tasks_wanted=_tasks_wanted())
    if tenant:
        rows = rows.filter(tenant__name=tenant)
    if state == "live":
        rows = rows.exclude(state=JobState.DEAD.value)
    elif state:
        _check_state(state, [*(known.value for known in JobState), "live"])
        rows = rows.filter(state=state)
    if prefix:
        rows = rows.filter(name__startswith=prefix)
    return with_labels(rows, labels, selector).order_by("id")


def only_archived() -> QuerySet[ArchivedJob]:
    """Return the index entries of the archived jobs whose rows are no longer in the table of jobs."""
    return ArchivedJob.objects.filter(~Exists(Job.objects.filter(pk=OuterRef("pk")).order_by()))


def archived_jobs_visible(
    principal: Principal,
    cell: Cell,
    *,
    tenant: str = "",
    labels: Iterable[str] = (),
    selector: str = "",
    prefix: str = "",
) -> QuerySet[ArchivedJob]:
    """Return the index entries of the archived jobs that the principal may see and whose rows are no longer in the
    table of jobs.

    `tenant`: return only jobs of this tenant; empty: of all tenants. `labels`: labels that the jobs must have, each as
    `key=value`. `selector`: a label selector. `prefix`: how their names begin.
    """
    rows = of_tenants(only_archived(), principal, cell)
    if tenant:
        rows = rows.filter(tenant__name=tenant)
    if prefix:
        rows = rows.filter(name__startswith=prefix)
    return with_labels(rows, labels, selector).order_by("id")


def job_names(ids: Iterable[int]) -> dict[int, tuple[str, str]]:
    """Return tenant and name of jobs by id, also of archived jobs. Makes at most two queries."""
    wanted = set(ids)
    found: dict[int, tuple[str, str]] = {}
    for model in (Job, ArchivedJob):
        if missing := wanted - found.keys():
            # In no order: the models' own order would need more joins.
            rows = model.objects.filter(pk__in=missing).order_by()
            found |= {pk: (tenant, name) for pk, tenant, name in rows.values_list("id", "tenant__name", "name")}
    return found


def _tasks_wanted() -> Subquery:
    """Return a database expression for the number of tasks in the current spec of a job."""
    current = JobSpec.objects.filter(job=OuterRef("pk"), version=OuterRef("spec_version"))
    tasks = Cast(KeyTextTransform("tasks", "spec"), IntegerField())
    return Subquery(current.annotate(wanted=tasks).values("wanted")[:1])


def with_details(rows: QuerySet[Job]) -> QuerySet[Job]:
    """Add to each job the data of other tables that pages show: its cell, tenant, alloc set, desired number of tasks,
    and open update. This takes one more query for any number of jobs.
    """
    return (
        rows.select_related("cell", "tenant", "alloc_set")
        .annotate(tasks_wanted=_tasks_wanted())
        .prefetch_related(Prefetch("updates", Update.objects.filter(state=Update.OPEN), to_attr="open_updates"))
    )


def detailed(cell: Cell, jobs: list[Job]) -> list[Job]:
    """Add to each job of this cell the data of other tables that pages show: its cell, tenant, alloc set, and open
    update. Return the jobs. The alloc set is a `Job` with only an id and a name. Makes at most four queries.
    """
    tenants = Tenant.objects.in_bulk({job.tenant_id for job in jobs})
    names = job_names(job.alloc_set_id for job in jobs if job.alloc_set_id is not None)
    alloc_sets = {pk: Job(id=pk, name=name) for pk, (_, name) in names.items()}
    updates = {}
    for update in read_models(Update, _OPEN_UPDATES, [[job.id for job in jobs]]):
        updates[update.job_id] = update
    for job in jobs:
        job.cell, job.tenant, job.alloc_set = cell, tenants[job.tenant_id], alloc_sets.get(job.alloc_set_id or 0)
        job.open_updates = [updates[job.id]] if job.id in updates else []  # type: ignore[attr-defined]
    return jobs


def job_named(principal: Principal, cell: Cell, tenant: str, name: str) -> Job:
    """Return the live job of this name, with its tenant, desired number of tasks, and open update. If no live job has
    the name, return the last job that had it. Raises `NotFound` if the job does not exist.
    """
    if may(principal, Action.JOB_VIEW, tenant=tenant, cell=cell.name):
        values = {"cell": cell.id, "tenant": tenant, "name": name}
        for which in (_LIVE, _LAST):
            for job in read_models(Job, _NAMED + which, values, alias="j", also=("tasks_wanted", "updating")):
                job.cell = cell
                job.tenant = Tenant.from_db(None, ("id", "name"), (job.tenant_id, tenant))
                # Most jobs have no open update, and then no query is needed.
                updating = job.updating  # type: ignore[attr-defined]
                job.open_updates = read_models(Update, _OPEN_UPDATES, [[job.id]]) if updating else []  # type: ignore[attr-defined]
                return job
    raise NotFound("job", f"{cell.name}/{tenant}/{name}")


# These statements are SQL, because the ORM needs more time than PostgreSQL for a query of few rows.
_MACHINE = """
    SELECT {columns}, (SELECT count(*) FROM scheduling_task AS t WHERE t.machine_id = m.id) AS tasks_running
    FROM scheduling_machine AS m WHERE m.cell_id = %s AND m.hostname = %s"""
_OPEN_UPDATES = "SELECT {columns} FROM scheduling_update AS t WHERE state = 'open' AND job_id = ANY(%s)"
_NAMED = """
    SELECT {columns},
        (SELECT (s.spec->>'tasks')::int FROM scheduling_jobspec AS s
         WHERE s.job_id = j.id AND s.version = j.spec_version) AS tasks_wanted,
        EXISTS (SELECT FROM scheduling_update AS u WHERE u.job_id = j.id AND u.state = 'open') AS updating
    FROM scheduling_job AS j JOIN quota_tenant AS t ON t.id = j.tenant_id
    WHERE j.cell_id = %(cell)s AND t.name = %(tenant)s AND j.name = %(name)s"""
_LIVE = " AND j.state <> 'dead'"
_LAST = " ORDER BY j.id DESC LIMIT 1"


def job_current_spec(job: Job) -> Mapping[str, Any]:
    """Return the current spec of a job as the content of a job file."""
    file: Mapping[str, Any] = JobSpec.objects.values_list("spec", flat=True).get(job=job, version=job.spec_version)
    return file


def spec_shown(principal: Principal, job: Job, file: Mapping[str, object]) -> Mapping[str, object]:
    """Return `file`, a job file of `job`. Values that look secret are masked if `principal` may not change the job."""
    writes = may(principal, Action.JOB_WRITE, tenant=job.tenant.name, cell=job.cell.name)
    return file if writes else masked(file)


def job_update_shown(job: Job) -> Update | None:
    """Return the job's newest update, which may still be open. Return None if the job was never updated."""
    return Update.objects.filter(job=job).order_by("-id").first()


def update_followers(update: Update) -> int:
    """Return how many tasks already have the new spec of `update`, or how many tasks a restart has replaced."""
    if update.restarts:
        return update.tasks_to_replace - tasks_to_restart(update).count()
    return Task.objects.filter(job_id=update.job_id, spec_version=update.to_version).count()


def specs_of(job: Job) -> QuerySet[JobSpec]:
    """Return all versions of a job's spec, oldest first."""
    return JobSpec.objects.filter(job=job).order_by("version")


STILL_STOPPING = Prefetch("departures", Departure.objects.select_related("machine").order_by("incarnation"))


def tasks_of(job: Job, *, state: str = "") -> QuerySet[Task]:
    """Return the tasks of a job by index, each with its machine and its `departures`: earlier runs that still stop on a
    machine.

    `state`: return only tasks in this state; empty: return all tasks. Raises `Rejected` for an unknown state.
    """
    rows = Task.objects.filter(job=job).select_related("machine").prefetch_related(STILL_STOPPING).order_by("id")
    if state:
        _check_state(state, [known.value for known in TaskState])
        rows = rows.filter(state=state)
    return rows


def tasks_visible(
    principal: Principal,
    cell: Cell,
    *,
    tenant: str = "",
    state: str = "",
    labels: Iterable[str] = (),
    selector: str = "",
) -> QuerySet[Task]:
    """Return the tasks of all live jobs that the principal may see, by job and index. The labels of a task are those of
    its job.

    `state`, `labels`, `selector`: as in `tasks_of` and `jobs_visible`. Raises `Rejected` if one of them is wrong.
    """
    jobs = jobs_visible(principal, cell, tenant=tenant, state="live", labels=labels, selector=selector)
    # With a subquery, PostgreSQL may read the tasks of all jobs that have ended in the order of their ids.
    ids = list(jobs.order_by().values_list("id", flat=True))
    rows = Task.objects.filter(job__in=ids).select_related("machine", "job__tenant")
    rows = rows.prefetch_related(STILL_STOPPING).order_by("id")
    if state:
        _check_state(state, [known.value for known in TaskState])
        rows = rows.filter(state=state)
    return rows


def task_at(job: Job, index: int) -> Task:
    """Return the task of this index. Raises `NotFound` if the task does not exist."""
    # The alloc is not joined, because few tasks run in one.
    task = Task.objects.filter(job=job, index=index).select_related("machine").order_by().first()
    if task is None:
        raise NotFound("task", f"{job.name}/{index}")
    return task


def alloc_names(tasks: Iterable[Task]) -> dict[int, str]:
    """Return the name of each alloc in which one of `tasks` runs (§2.4), such as `set/3`, by the id of the alloc. Makes
    one query, or none if no task runs in an alloc.
    """
    ids = {task.alloc_id for task in tasks if task.alloc_id is not None}
    if not ids:
        return {}
    rows = Task.objects.filter(pk__in=ids).order_by().values_list("id", "job__name", "index")
    return {identity: f"{name}/{index}" for identity, name, index in rows}


def port_names(job: Job, tasks: Iterable[Task]) -> dict[int, list[str]]:
    """Return the names of the ports in the job's spec, by version of the spec. The versions are the current one and
    those that one of `tasks` runs.
    """
    older = {task.spec_version for task in tasks} - {job.spec_version}
    names = {job.spec_version: list(job.port_names)}
    if older:
        rows = JobSpec.objects.filter(job=job, version__in=older)
        names |= dict(rows.values_list("version", "spec__task__ports"))
    return names


def port_names_of_tasks(tasks: Iterable[Task]) -> dict[tuple[int, int], list[str]]:
    """Return the names of the ports of tasks of many jobs, by the id of the job and the version of its spec. The jobs
    of the tasks are loaded. Makes one query, or none if all tasks have the current version.
    """
    rows = list(tasks)
    names = {(task.job_id, task.job.spec_version): list(task.job.port_names) for task in rows}
    if older := {(task.job_id, task.spec_version) for task in rows} - names.keys():
        jobs, versions = zip(*older, strict=True)
        found = JobSpec.objects.filter(job__in=jobs, version__in=versions)
        names |= {
            (job, version): ports for job, version, ports in found.values_list("job", "version", "spec__task__ports")
        }
    return names


def events_of_job(job: Job) -> QuerySet[Event]:
    """Return the events of a job, newest first."""
    return Event.objects.filter(cell_id=job.cell_id, job_id=job.id).order_by("-revision", "-seq")


def events_of_cell(principal: Principal, cell: Cell) -> QuerySet[Event]:
    """Return the events of the cell's machines, and of the jobs that the principal may see, newest first."""
    rows = Event.objects.filter(cell_id=cell.id).order_by("-revision", "-seq")
    if principal.sre and principal.tenant is None:
        return rows
    visible = jobs_of_tenants(principal, cell).order_by().values("id")
    return rows.filter(Q(job_id__in=visible) | Q(kind__startswith="machine.", job_id__isnull=True))


def tasks_there() -> Coalesce:
    """Return a database expression for a query of machines: the number of tasks on each machine."""
    there = Task.objects.filter(machine=OuterRef("pk")).order_by().values("machine")
    return Coalesce(Subquery(there.annotate(number=Count("id")).values("number")), 0)


def _check_state(state: str, known: list[str]) -> None:
    if state not in known:
        raise invalid("state", f"the state {state!r} is unknown; give one of {', '.join(known)}")
