"""Services that create study cells from checkpoints.

    state at a revision ─┐                            ┌─► rows ─► read back, compared ─► journal: cell.copied
    file of a checkpoint ┴─► tables ─► new ids, specs ┘                              └─► checkpoint of the new cell

A study cell has the machines, jobs and tasks of another cell at one moment. Nobody can change it
(`scheduling.journal.journal.write`), and only SREs see it. Its revisions continue those of the other cell.
"""

from __future__ import annotations

import datetime as dt
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np
import psycopg
import structlog
from django.db import DataError, IntegrityError, models, transaction

from quota.admission import admission
from quota.models import Tenant
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.cells.cells import check_new
from scheduling.core.vocabulary import events
from scheduling.history.checkpoints import rows, saving
from scheduling.history.checkpoints.tables import Tables, state_of
from scheduling.history.studies.renumbering import NewIds, renumbered
from scheduling.history.studies.rows import rows_write
from scheduling.history.studies.sources import Original, original_at, original_in
from scheduling.history.studies.specs import specs_completed
from scheduling.journal import journal
from scheduling.journal.sql import query
from scheduling.models import Cell, Job, Machine

if TYPE_CHECKING:
    import pyarrow

log = structlog.get_logger(__name__)

# The errors of a file whose sections contradict each other. COPY raises those of the driver.
_CONTRADICTIONS = (
    *(DataError, IntegrityError, psycopg.DataError, psycopg.IntegrityError),
    *(LookupError, ValueError, OverflowError, msgspec.MsgspecError),
)


@dataclass(frozen=True, slots=True)
class Study:
    """A study cell. `machines`, `jobs`, `tasks`: their numbers. `made_specs`: how many specs were made from
    requirements, because the original specs are unknown.
    """

    cell: Cell
    machines: int
    jobs: int
    tasks: int
    made_specs: int


def study_restore(
    *,
    principal: Principal,
    cell: Cell,
    into: str,
    revision: int | None = None,
    time: dt.datetime | None = None,
    dry_run: bool = False,
) -> Study:
    """Create the study cell `into` with the state that a cell had at a revision, or after the last change before a
    time. The other cell is not locked.

    `dry_run`: do everything, and roll it back. Raises `Rejected` if the state cannot be rebuilt, or if the name is not
    valid, and `Conflict` if the name is in use. Imports heavy libraries, so web processes call
    `scheduling.history.studies.requests`.
    """
    require(principal, Action.CELL_ADMIN, cell=cell.name)
    check_new(Cell(name=into))
    original = original_at(cell, revision=revision, time=time)
    return _create(principal, into, original, settings=cell.settings, dry_run=dry_run)


def study_import(*, principal: Principal, source: BinaryIO, into: str, dry_run: bool = False) -> Study:
    """Create the study cell `into` from the file of a checkpoint, for example a redacted copy from another
    installation. Tenants that do not exist are created without members.

    `dry_run`: do everything, and roll it back. Raises `Rejected` if the file is damaged, which names the section, or if
    the name is not valid, and `Conflict` if the name is in use.
    """
    require(principal, Action.CELL_ADMIN)
    check_new(Cell(name=into))
    original = original_in(source)
    try:
        return _create(principal, into, original, settings={}, dry_run=dry_run)
    except _CONTRADICTIONS as error:
        detail = f"Cannot import the checkpoint: its sections contradict each other ({error}); export it again"
        raise Rejected("checkpoint-damaged", detail, fields={"section": "tasks"}) from error


def _create(principal: Principal, name: str, original: Original, *, settings: dict[str, Any], dry_run: bool) -> Study:
    header, tables = original.header, original.tables
    extra = header.extra_resources
    specs = specs_completed(tables, original.specs, extra=extra)
    with transaction.atomic():
        cell = Cell(name=name, settings=settings, revision=header.revision, extra_resources=list(extra))
        check_new(cell)
        cell.save()
        query("SELECT scheduling_event_partition_make(%s, %s)", [cell.id, cell.revision + 1])
        new_tenants, tenants = _tenants(tables["jobs"])
        jobs = _new_ids(Job, tables["jobs"]["job_id"])
        machines = _new_ids(Machine, tables["machines"]["machine_id"])
        uids = [uuid.uuid4().hex for _ in range(tables["jobs"].num_rows)]
        tables = renumbered(tables, jobs=jobs, machines=machines, tenants=tenants, uids=uids)
        new_job = dict(zip(jobs.before.tolist(), jobs.after.tolist(), strict=True))
        stored = {(new_job[job], version): one for (job, version), one in specs.items()}
        for one in stored.values():
            one.spec["cell"] = name
        with journal.write(cell.id, principal) as entry:
            rows_write(cell, tables, stored, bands=admission.bands(), actor=principal.name, now=entry.time)
            entry.append(
                events.CellCopied(
                    cell=header.cell, revision=header.revision, history=header.history, redacted=header.redacted
                )
            )
        cell.study_of = {
            "cell": header.cell,
            "revision": header.revision,
            "history": header.history,
            "redacted": header.redacted,
            "tenants": new_tenants,
        }
        cell.save(update_fields=["study_of"])
        copied = rows.read_here(cell.id)
        _check_equal(cell, tables, copied[1])
        if dry_run:
            transaction.set_rollback(True)
        else:
            # A file without its cell does no harm: nothing uses files of another history.
            saving.checkpoint_store(*copied)
    cell.revision += 1
    made = sum(specs[key] is not original.specs.get(key) for key in specs)
    numbers = {section: tables[section].num_rows for section in ("machines", "jobs", "tasks")}
    log.info("study cell created", cell=name, of=header.cell, revision=header.revision, **numbers)
    return Study(cell=cell, made_specs=made, **numbers)


def _tenants(jobs: pyarrow.Table) -> tuple[list[str], dict[str, int]]:
    """Create the tenants that do not exist. Return their names, and the ids of all tenants of the jobs by name."""
    names = sorted(set(jobs["tenant"].to_pylist()))
    known = set(Tenant.objects.filter(name__in=names).values_list("name", flat=True))
    new = [name for name in names if name not in known]
    Tenant.objects.bulk_create([Tenant(name=name, title="from an imported checkpoint", max_jobs=0) for name in new])
    return new, dict(Tenant.objects.filter(name__in=names).values_list("name", "id"))


def _new_ids(model: type[models.Model], column: pyarrow.ChunkedArray) -> NewIds:
    before = column.to_numpy()
    found = query(
        "SELECT nextval(pg_get_serial_sequence(%s, 'id')) FROM generate_series(1, %s)",
        [model._meta.db_table, len(before)],
    )
    return NewIds(np.sort(before), np.sort(np.array([identity for (identity,) in found], dtype=np.int64)))


def _check_equal(cell: Cell, wanted: Tables, found: Tables) -> None:
    """Compare the state that the new rows describe with the original. Raises `ValueError` if they differ."""
    extra = cell.extra_resources
    states = [state_of(tables, extra_resources=extra, revision=cell.revision) for tables in (wanted, found)]
    if differences := states[0].diff(states[1]):
        raise ValueError(
            f"the new study cell would differ from the checkpoint: {'; '.join(differences[:3])}; report this as a bug"
        )
