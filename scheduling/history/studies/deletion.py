"""Deletes study cells. Light: imports no heavy library."""

from __future__ import annotations

import contextlib

import structlog
from django.db import DatabaseError, models, transaction

from quota.models import Tenant
from quota.vocabulary.errors import Conflict
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.history.archive.store import store
from scheduling.history.checkpoints.folder import checkpoints_under
from scheduling.journal import partitions
from scheduling.journal.sql import execute, query
from scheduling.models import Cell, Event
from scheduling.storage.files import StoreAway

log = structlog.get_logger(__name__)

_OF_TASKS = ("scheduling_crashedpair", "scheduling_departure")
_OF_JOBS = (
    *("scheduling_update", "scheduling_jobspec", "scheduling_pendingverdict", "scheduling_jobcondition"),
    "scheduling_disruptioncount",
)
# Statements that delete the rows of a cell. Django would read each row first.
_DELETE = (
    *(
        f"DELETE FROM {table} WHERE task_id IN (SELECT id FROM scheduling_task WHERE cell_id = %s)"
        for table in _OF_TASKS
    ),
    "DELETE FROM scheduling_task WHERE cell_id = %s",
    *(f"DELETE FROM {table} WHERE job_id IN (SELECT id FROM scheduling_job WHERE cell_id = %s)" for table in _OF_JOBS),
    "DELETE FROM scheduling_job WHERE cell_id = %s",
    "DELETE FROM scheduling_machine WHERE cell_id = %s",
    "DELETE FROM scheduling_pool WHERE cell_id = %s",
)


def study_delete(*, principal: Principal, cell: Cell, dry_run: bool = False) -> None:
    """Delete a study cell with its journal and checkpoints, and the tenants that were created for it and have nothing
    else. Raises `Conflict` if the cell is not a study cell. Locks the cell's row.
    """
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    with transaction.atomic():
        row = Cell.objects.select_for_update().get(pk=cell.pk)
        if row.study_of is None:
            detail = f"cell {cell.name} is not a study cell, and only study cells can be deleted; give another name"
            raise Conflict("not-a-study", detail)
        for statement in _DELETE:
            execute(statement, [row.pk])
        for tenant in Tenant.objects.filter(name__in=row.study_of["tenants"], memberships=None):
            with contextlib.suppress(models.ProtectedError, models.RestrictedError), transaction.atomic():
                tenant.delete()  # unless it has jobs, quota or teams by now
        row.delete()
        transaction.on_commit(lambda: _forget(cell.pk, cell.name))
        if dry_run:
            transaction.set_rollback(True)


def _forget(cell_id: int, name: str) -> None:
    """Delete the checkpoints of a deleted cell, and drop its journal. A failure is only logged, because the cell does
    not exist any more: files without a cell do no harm, and `journal.partitions.drop_orphans` drops the journal later.
    """
    try:
        files = store()
        for file in list(files.listing(checkpoints_under(name))):
            files.delete(file.key)
    except StoreAway as error:
        log.warning(
            "cannot delete the checkpoints of a deleted cell; they stay in the store", cell=name, error=str(error)
        )
    try:
        for (partition,) in query("SELECT name FROM scheduling_event_partition WHERE cell_id = %s", [cell_id]):
            partitions.detach(Event._meta.db_table, partition)
        partitions.drop_detached(Event._meta.db_table)
    except DatabaseError as error:
        log.warning(
            "cannot drop the journal of a deleted cell; a worker tries again", cell=name, error=str(error).strip()
        )
    log.info("study cell deleted", cell=name)
