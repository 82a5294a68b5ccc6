"""Deletes cells. A deletion hides a cell and frees its name. The retention of its history goes on as before.

    cell_deletion ─► what would be lost, and what is in the way
    cell_delete ─► sales wait ─► the cell is locked ─► nothing in the way ─► machines removed, cell.deleted, new name
                                                                                    │
      SREs read the history under the new name  ◄── the row stays ◄────────────────┘
      masters, link shards, resolvers and workers leave out deleted cells; archiver and metering finish its last day

Money is kept for ever: orders, postings, invoices and metered hours refer to the cell by the name that it had.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Count, Exists, F, OuterRef, Q, Sum

from quota import records
from quota.market.cell_end import HeldQuota, cell_end, cell_lock_sales, quota_held
from quota.models import Capability, Tenant
from quota.vocabulary.errors import Conflict, invalid
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.access.selectors import only_archived
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.states import JobState, MachineStatus
from scheduling.cron.cron_jobs import cron_jobs_remove
from scheduling.job_templates.templates import templates_remove
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.journal.row_events import maintenance_event, pool_event
from scheduling.machines import last_contact
from scheduling.models import (
    ArchiveFile,
    ArchiveState,
    Cell,
    CronJob,
    Departure,
    Drain,
    Job,
    JobTemplate,
    JoinToken,
    KeptAlloc,
    LockFile,
    LockSession,
    Machine,
    MaintenanceWindow,
    Package,
    Pool,
    PromisedEviction,
    PromiseReader,
    Workflow,
)
from scheduling.models.machines import REMOVED
from scheduling.services.stopped_rows import services_remove
from scheduling.tasks import departures
from scheduling.workflows.retention import all_remove

log = structlog.get_logger(__name__)

JOB, ALLOC_SET = "job", "alloc-set"
_NAME_LENGTH = 63
_NAMED = 10  # tenants in a message
_REASON = "the cell was deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class CellDeletion:
    """What the deletion of a cell would end, and what is in the way.

    `jobs`, `alloc_sets`, `tasks`: those that are live. `machines`: how many are in each state. `quota`: what tenants
    hold from now on. `packages`, `cron_jobs`, `templates`, `workflows`, `capabilities`: those of this cell. `dns_zone`,
    `dns_names`: the zone of the cell, and how many jobs, tasks and machines have names in it. `tenants`: the names of
    the tenants that have quota, packages, jobs, cron jobs, templates or workflows in the cell. `jobs_ended`,
    `archive_files`, `archive_bytes`: the history, which stays readable for SREs.
    `problems`: by field, what is in the way and what to do; empty if the cell can be deleted.
    """

    cell: str
    jobs: int
    alloc_sets: int
    tasks: int
    machines: Mapping[str, int]
    quota: HeldQuota
    packages: int
    cron_jobs: int
    templates: int
    workflows: int
    capabilities: int
    dns_zone: str
    dns_names: int
    tenants: list[str]
    jobs_ended: int
    archive_files: int
    archive_bytes: int
    problems: Mapping[str, str]


def cell_deletion(*, principal: Principal, cell: Cell) -> CellDeletion:
    """Return what the deletion of a cell would end, and what is in the way. The number of queries does not depend on
    the cell. Raises `Forbidden` unless the caller is an SRE, and `Conflict` for a study cell or a deleted cell.
    """
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    _check_operated(cell)
    found = _in_use(cell)
    packages = Package.objects.filter(cell=cell)
    files = ArchiveFile.objects.filter(cell=cell).exclude(state=ArchiveState.DELETED)
    stored = files.aggregate(files=Count("id"), bytes=Sum("bytes"))
    ended = Job.objects.filter(cell=cell, state=JobState.DEAD.value).count() + only_archived().filter(cell=cell).count()
    owning = Q(name__in=found.quota.tenants)
    for model in (Job, CronJob, JobTemplate, Workflow, Package):
        owning |= Q(Exists(model.objects.filter(cell=cell, tenant=OuterRef("pk"))))
    owners = Tenant.objects.filter(owning)
    return CellDeletion(
        cell=cell.name,
        jobs=found.jobs[JOB],
        alloc_sets=found.jobs[ALLOC_SET],
        tasks=found.tasks,
        machines=found.machines,
        quota=found.quota,
        packages=packages.count(),
        cron_jobs=CronJob.objects.filter(cell=cell).count(),
        templates=JobTemplate.objects.filter(cell=cell).count(),
        workflows=Workflow.objects.filter(cell=cell).count(),
        capabilities=Capability.objects.filter(cell=cell.name).count(),
        dns_zone=f"{cell.name}.{settings.BORG_ZONE}",
        dns_names=found.jobs[JOB] + found.placed + sum(found.machines.values()),
        tenants=list(owners.order_by("name").values_list("name", flat=True)),
        jobs_ended=ended,
        archive_files=stored["files"],
        archive_bytes=stored["bytes"] or 0,
        problems=found.problems,
    )


def cell_delete(*, principal: Principal, cell: Cell, confirm: str) -> Cell:
    """Delete a cell, and return its row with the name under which SREs can read its history.

    The name of the cell is free for a new cell, which shares nothing with this history. Machines that are down are
    removed. `confirm`: the name of the cell. Raises `Rejected` if `confirm` is another text, and `Conflict` with a
    field for each thing that is in the way: live `jobs`, `cron_jobs` that are not suspended, live `workflows`,
    `machines` that are up, `quota` that tenants hold. If nothing is in the way, suspended cron jobs beyond
    `journal.CHUNK` and ended workflows are deleted first, in transactions of their own. Locks: the sales of the cell,
    the cell's row, then the rows of its machines.
    """
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    name = cell.name
    if confirm != name:
        raise invalid("confirm", f"{confirm[:63]!r} is not the name of the cell; give {name!r} to delete cell {name}")
    _check_operated(cell)
    _check_unused(cell, name)
    _remove_most_cron_jobs(cell, principal)
    all_remove(cell.id)
    with records.write(principal) as record:
        cell_lock_sales(name)
        with journal.write(cell.id, principal) as entry:
            _check_unused(cell, name)
            removed = _remove_machines(entry)
            for model in (JoinToken, LockFile, LockSession, PromiseReader, PromisedEviction):
                model.objects.filter(cell=cell).delete()
            left = CronJob.objects.select_related("tenant").filter(cell=cell).defer("template")
            cron_jobs_remove(entry, list(left), _REASON)
            templates_remove(entry, cell, _REASON)
            services_remove(cell)
            entry.append(events.CellDeleted(cell=name))
            suffix = f".deleted-{cell.id}"  # no other cell can have such a name: a name of a new cell has no dot
            Cell.objects.filter(pk=cell.id).update(
                name=name[: _NAME_LENGTH - len(suffix)] + suffix, deleted_name=name, deleted_at=entry.time
            )
        cell_end(record, name)
        transaction.on_commit(lambda: _forget(cell.id, name, removed))
    cell.refresh_from_db()
    return cell


def _check_unused(cell: Cell, name: str) -> None:
    if problems := _in_use(cell).problems:
        detail = f"cell {name} cannot be deleted: {'; '.join(problems.values())}"
        raise Conflict("cell-in-use", detail, fields=problems)


def _remove_most_cron_jobs(cell: Cell, principal: Principal) -> None:
    """Delete suspended cron jobs of the cell, many per transaction, until at most `journal.CHUNK` are left."""
    suspended = CronJob.objects.select_related("tenant").filter(cell=cell, suspended_at__isnull=False).order_by("id")
    while CronJob.objects.filter(cell=cell).count() > journal.CHUNK:
        with journal.write(cell.id, principal) as entry:
            if not (rows := list(suspended.defer("template")[: journal.CHUNK])):
                return  # others were resumed meanwhile
            cron_jobs_remove(entry, rows, _REASON)


def _forget(cell_id: int, name: str, removed: int) -> None:
    last_contact.forget_cell(cell_id)
    log.info("cell deleted", cell=name, cell_id=cell_id, machines_removed=removed)


def _check_operated(cell: Cell) -> None:
    if cell.study_of is not None:
        detail = f"cell {cell.name} is a study cell; delete it with `DELETE studies/{cell.name}/`"
        raise Conflict("study-cell", detail)
    if cell.deleted_at is not None:
        raise Conflict("cell-deleted", f"cell {cell.name} is already deleted; give the name of another cell")


@dataclass(frozen=True, slots=True, kw_only=True)
class _InUse:
    """What is in use in a cell: the number of live `jobs` by kind and of their `tasks`, of which `placed` are on
    machines, of `cron_jobs` that are not suspended, of live `workflows`, of `machines` by state, and the
    `quota` that tenants hold.
    """

    jobs: Mapping[str, int]
    tasks: int
    placed: int
    cron_jobs: int
    workflows: int
    machines: Mapping[str, int]
    quota: HeldQuota

    @property
    def problems(self) -> dict[str, str]:
        """Return, by field, what is in the way of a deletion, and what to do."""
        problems, held = {}, self.quota
        if live := sum(self.jobs.values()):
            sets = f", of which {_counted(self.jobs[ALLOC_SET], 'alloc set')}" if self.jobs[ALLOC_SET] else ""
            problems["jobs"] = f"the cell has {_counted(live, 'live job')}{sets}; kill all jobs first"
        if self.cron_jobs:
            problems["cron_jobs"] = (
                f"the cell has {_counted(self.cron_jobs, 'cron job')} that would submit further jobs; suspend or delete"
                " them first (`borgctl cron list` and `borgctl cron suspend NAME`)"
            )
        if self.workflows:
            problems["workflows"] = (
                f"the cell has {_counted(self.workflows, 'live workflow')} that would submit further jobs; cancel them"
                " first (`borgctl workflow list` and `borgctl workflow cancel NAME`)"
            )
        if up := sum(number for state, number in self.machines.items() if state != MachineStatus.DOWN.value):
            problems["machines"] = (
                f"the cell has {_counted(up, 'machine')} in state up or draining; drain and remove all machines first"
            )
        if held.grants or held.orders:
            until = f"until {held.until:%Y-%m-%d %H:%M} UTC" if held.until is not None else "without an end"
            named = ", ".join(held.tenants[:_NAMED]) + (" and others" if len(held.tenants) > _NAMED else "")
            sold = f"{_counted(held.grants, 'grant')} and {_counted(held.orders, 'waiting order')} {until}, of {named}"
            problems["quota"] = (
                f"the cell has sold quota ({sold}); cancel the orders, which refunds them, and end other grants first"
            )
        return problems


def _in_use(cell: Cell) -> _InUse:
    live = Job.objects.filter(cell=cell).exclude(state=JobState.DEAD.value).order_by()
    jobs = dict.fromkeys((JOB, ALLOC_SET), 0)
    tasks = placed = 0
    for kind, number, pending, running in live.values_list("kind").annotate(
        Count("id"), Sum("tasks_pending"), Sum("tasks_running")
    ):
        jobs[kind] += number
        tasks, placed = tasks + pending + running, placed + running
    machines = dict.fromkeys([state.value for state in MachineStatus], 0)
    of_state = Machine.objects.filter(cell=cell).exclude(state=REMOVED).order_by()
    machines |= dict(of_state.values_list("state").annotate(Count("id")))
    return _InUse(
        jobs=jobs,
        tasks=tasks,
        placed=placed,
        cron_jobs=CronJob.objects.filter(cell=cell, suspended_at__isnull=True).count(),
        workflows=Workflow.objects.filter(cell=cell, ended_at__isnull=True).count(),
        machines=machines,
        quota=quota_held(cell.name),
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _remove_machines(entry: JournalEntry) -> int:
    """Remove all machines of the entry's cell, and make their secrets invalid. No task runs on them. Return how many
    were removed.
    """
    rows = Machine.objects.select_for_update().filter(cell_id=entry.cell_id).exclude(state=REMOVED)
    ids = list(rows.order_by("id").values_list("id", flat=True))
    left = Departure.objects.filter(machine__in=ids).values_list("task_id", "incarnation")
    departures.tasks_gone(entry, [(task_id, incarnation, None) for task_id, incarnation in left])
    windows = MaintenanceWindow.objects.filter(cell_id=entry.cell_id, state__in=MaintenanceWindow.OPEN)
    still_open = list(windows.order_by("id"))
    windows.update(state=MaintenanceWindow.CANCELLED, detail=_REASON, ended_at=entry.time)
    for window in still_open:
        window.state = MaintenanceWindow.CANCELLED
        entry.append(maintenance_event(window))
    for pool in Pool.objects.filter(cell_id=entry.cell_id).order_by("name"):
        entry.append(pool_event(pool, deleted=True))
    Pool.objects.filter(cell_id=entry.cell_id).delete()
    for model in (KeptAlloc, Drain):
        model.objects.filter(machine__in=ids).delete()
    Machine.objects.filter(pk__in=ids).update(
        state=REMOVED,
        reason=_REASON,
        state_since=entry.time,
        session=F("session") + 1,
        secret_digest="",
        next_digest="",
        secret_at=None,
        rotation_asked=False,
        quarantined=[],
        kept=[],
        packages=[],
    )
    entry.extend(events.MachineRemoved(machine_id=machine_id, reason=_REASON) for machine_id in ids)
    return len(ids)
