"""Erases a person or a tenant from the history: a random pseudonym replaces it in the journal, the archive and
checkpoints.

    events of PostgreSQL ─► changed in place
    file ─► draft without the identity ─► read back ─► stored under a new name ─► hashed ─► manifest ─► old file deleted
    checkpoint ─► replaced

The pseudonym is stored before the first change, and the identity is forgotten after the last one. An erasure that was
interrupted continues when it is requested again. Sums and counts stay right, because each row stays, and equal names
get equal pseudonyms.
"""

from __future__ import annotations

import datetime as dt
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import structlog
from django.db import transaction

from quota import records
from quota.models import Tenant
from quota.vocabulary.errors import Conflict, NotFound
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.core.vocabulary.states import JobState
from scheduling.history.archive import parquet
from scheduling.history.archive.archiver import USAGE_LOCK, ArchiveFailed, archive_lock
from scheduling.history.archive.store import sha256_of
from scheduling.history.archive.tables import ARCHIVE_TABLES
from scheduling.history.checkpoints import file as checkpoint_file
from scheduling.history.checkpoints.folder import StoredCheckpoint, checkpoints_of, checkpoints_under
from scheduling.history.erasure.identities import Identity, IdentityKind
from scheduling.journal import journal
from scheduling.journal.row_events import pool_event
from scheduling.journal.sql import execute, query
from scheduling.models import ArchiveFile, ArchiveState, Cell, Departure, Erasure, Job, Pool
from scheduling.storage.files import DamagedFile, FileStore, NotThere

log = structlog.get_logger(__name__)

_EVENTS_AT_ONCE = 5_000
# Rows of PostgreSQL that name the person who made them.
_ACTORS = (
    ("scheduling_job", "submitted_by"),
    ("scheduling_jobspec", "actor"),
    ("scheduling_update", "actor"),
    ("scheduling_shellsession", "actor"),
    ("scheduling_cronjob", "owner_name"),
    ("scheduling_cronrun", "by"),
    ("scheduling_jobtemplate", "changed_by"),
    ("scheduling_jobtemplateversion", "actor"),
    ("scheduling_stoppedjob", "by"),
    ("scheduling_serviceweighting", "by"),
    ("scheduling_workflow", "owner_name"),
    ("scheduling_secret", "created_by"),
    ("scheduling_secretversion", "created_by"),
    ("scheduling_secretgrant", "created_by"),
    ("scheduling_configfile", "created_by"),
    ("scheduling_configversion", "created_by"),
    ("scheduling_pool", "changed_by"),
    ("scheduling_drain", "asked_by"),
    ("scheduling_maintenancewindow", "asked_by"),
    ("scheduling_maintenancewindow", "changed_by"),
    ("scheduling_repacking", "asked_by"),
    ("scheduling_repacking", "started_by"),
)
# Rows whose column `detail` may contain a name.
_DETAILS = ("scheduling_update", "scheduling_cronrun", "scheduling_workflow", "scheduling_workflownode")


@dataclass(slots=True)
class Erased:
    """The result of an erasure: how many items contained the identity (a person or a tenant). `events`, `others`:
    events and other rows in PostgreSQL. `rows`, `files`: rows and files of the archive. `checkpoints`: checkpoints.
    """

    events: int = 0
    others: int = 0
    rows: int = 0
    files: int = 0
    checkpoints: int = 0


class Eraser:
    """Erases one identity (a person or a tenant) from the store `files` and from PostgreSQL. `at`: a function that is
    called at each step, with the name of the step; tests use it.
    """

    def __init__(self, files: FileStore, *, at: Callable[[str], None] = lambda step: None) -> None:
        self._files, self._at = files, at

    def preview(self, kind: IdentityKind, name: str, *, principal: Principal) -> Erased:
        """Return how many events, rows, files and checkpoints contain an identity. Changes nothing."""
        require(principal, Action.PLATFORM_ADMIN)
        identity, found = Identity(kind, name, "nobody"), Erased()
        for cell in Cell.objects.order_by("id"):
            found.events += sum(len(batch) for batch in _events(cell, identity))
            for file in _files(cell):
                if rows := self._rows_with(file, identity):
                    found.rows, found.files = found.rows + rows, found.files + 1
            found.checkpoints += sum(_contains(stored, identity) for stored in checkpoints_of(cell.folder))
        if kind is IdentityKind.TENANT:
            found.others = Pool.objects.filter(tenants__contains=[name]).count()
        if kind is IdentityKind.PERSON:
            found.others = sum(
                query(f"SELECT count(*) FROM {table} WHERE {column} = %s", [name])[0][0] for table, column in _ACTORS
            )
        return found

    def erase(self, kind: IdentityKind, name: str, *, principal: Principal, now: dt.datetime) -> Erased:
        """Erase an identity, and return how many events, rows, files and checkpoints contained it. Raises `Conflict` if
        a tenant has jobs that have not ended, or if the archiver runs, and `NotFound` if nothing contains the name.
        Raises `ArchiveFailed` if a file cannot be replaced; the next call continues there.
        """
        require(principal, Action.PLATFORM_ADMIN)
        if kind is IdentityKind.TENANT:
            _check_ended(name)
        request = self._request(kind, name, principal=principal, now=now)
        identity, done = Identity(kind, name, request.pseudonym), Erased()
        cells = list(Cell.objects.order_by("id"))
        with ExitStack() as locks:
            # All locks are taken first: otherwise the archiver could copy rows of PostgreSQL that still have the name.
            for number, which in [*((cell.id, f" of cell {cell.name}") for cell in cells), (USAGE_LOCK, "")]:
                if not locks.enter_context(archive_lock(number)):
                    raise Conflict("archiver-runs", f"the archiver{which} is running; try again when it has ended")
            if kind is IdentityKind.TENANT:
                # First, so that checkpoints and events that are written meanwhile do not have the name.
                done.others += _leave_pools(identity, principal)
            for cell in cells:
                self._erase_cell(cell, identity, done)
            self._erase_rows(identity, done)
        self._at("rows")
        with records.write(principal) as entry:
            Erasure.objects.filter(pk=request.pk).update(name="", ended_at=now)
            entry.append("history.erased", of=kind.value, events=done.events, rows=done.rows, files=done.files)
        return done

    def _request(self, kind: IdentityKind, name: str, *, principal: Principal, now: dt.datetime) -> Erasure:
        """Return the open request for an identity, or a new one. A tenant always has the same pseudonym."""
        request = Erasure.objects.filter(kind=kind, name=name).first()
        if request is not None:
            return request
        if self.preview(kind, name, principal=principal) == Erased():
            raise NotFound(kind.value, name)
        tenant = Tenant.objects.filter(name=name).first() if kind is IdentityKind.TENANT else None
        request = Erasure.objects.filter(tenant=tenant).first() if tenant else None
        request = request or Erasure(kind=kind, tenant=tenant, pseudonym=f"erased-{secrets.token_hex(8)}")
        request.name, request.started_at, request.ended_at = name, now, None
        request.save()
        return request

    def _erase_rows(self, identity: Identity, done: Erased) -> None:
        """Erase a person from rows of PostgreSQL that are not events. Rows of a tenant keep its name until they are
        archived.
        """
        if identity.kind is not IdentityKind.PERSON:
            return
        for table, column in _ACTORS:
            changed = query(
                f"WITH changed AS (UPDATE {table} SET {column} = %s WHERE {column} = %s RETURNING 1)"
                " SELECT count(*) FROM changed",
                [identity.pseudonym, identity.name],
            )
            done.others += changed[0][0]
        for table in _DETAILS:
            for pk, detail in query(f"SELECT id, detail FROM {table} WHERE strpos(detail, %s) > 0", [identity.name]):
                if (after := identity.value("detail", detail)) != detail:
                    execute(f"UPDATE {table} SET detail = %s WHERE id = %s", [after, pk])
                    done.others += 1

    def _erase_cell(self, cell: Cell, identity: Identity, done: Erased) -> None:
        for batch in _events(cell, identity):
            _update_events(cell, batch)
            done.events += len(batch)
            self._at("events")
        for file in _files(cell):
            if rows := self._rows_with(file, identity):
                self._replace(file, identity)
                done.rows, done.files = done.rows + rows, done.files + 1
        self._sweep(cell)
        readable = {stored.key: stored for stored in checkpoints_of(cell.folder)}
        for found in list(self._files.listing(checkpoints_under(cell.folder))):
            try:
                tables = _rewritten(readable[found.key], identity)
            except (KeyError, checkpoint_file.CheckpointError, DamagedFile) as error:
                log.warning("a damaged checkpoint is deleted", checkpoint=found.key, error=str(error))
                self._files.delete(found.key)
                continue
            if tables is not None:
                self._replace_checkpoint(readable[found.key], tables)
                done.checkpoints += 1

    def _rows_with(self, file: ArchiveFile, identity: Identity) -> int:
        with self._files.local(file.key) as path, parquet.open_file(path, name=file.key) as opened:
            texts = [field.name for field in opened.schema_arrow if pa.types.is_string(field.type)]
            groups = (opened.read_row_group(n, columns=texts, use_threads=False) for n in range(opened.num_row_groups))
            return sum(identity.erased(group)[1] for group in groups)

    def _replace(self, file: ArchiveFile, identity: Identity) -> None:
        """Write a file again without an identity, record the new file in the manifest, and delete the old file."""
        before = file.key
        draft = self._files.spool() / f"erasure-{file.cell.history_id}"  # the lock of the cell protects it
        try:
            with self._files.local(before) as path, parquet.open_file(path, name=before) as opened:
                groups = (opened.read_row_group(n, use_threads=False) for n in range(opened.num_row_groups))
                table = replace(
                    ARCHIVE_TABLES[file.table],
                    version=file.schema_version,
                    types={field.name: field.type for field in opened.schema_arrow},
                )
                cleared = (identity.erased(group)[0] for group in groups)
                written = parquet.write(draft, table, file.cell.recorded_name, cleared)
            if written.rows != file.rows or parquet.read_back(draft) != written:
                raise ArchiveFailed(
                    f"the new copy of the archive file {before} does not contain the rows that were written to it;"
                    " check the disk, and try again"
                )
            self._at("written")
            file.generation += 1
            file.bytes, file.sha256, file.content = draft.stat().st_size, parquet.sha256(draft), written.content
            self._files.put(file.key, draft)
            self._at("stored")
        except OSError as error:
            raise ArchiveFailed(
                f"cannot write the file {before} without the erased name: {error}; check the disk, and try again"
            ) from error
        finally:
            draft.unlink(missing_ok=True)
        if sha256_of(self._files, file.key) != file.sha256:
            raise ArchiveFailed(
                f"{file.key} in the archive is damaged or missing; check the store of BORG_ARCHIVE, and try again"
            )
        file.save(update_fields=["generation", "bytes", "sha256", "content"])
        self._at("recorded")
        self._files.delete(before)
        self._at("deleted")
        log.info(
            "the erasure replaced the name of a person or tenant by a pseudonym in a file of the archive", file=file.key
        )

    def _sweep(self, cell: Cell) -> None:
        """Delete files that the manifest does not contain. An erasure that was interrupted may have left them."""
        tables = ArchiveFile.objects.filter(cell=cell).order_by("table").values_list("table", flat=True).distinct()
        known = {file.key for file in _files(cell)}
        for table in tables:
            for found in list(self._files.listing(f"{cell.folder}/{table}")):
                if found.key not in known:
                    self._files.delete(found.key)

    def _replace_checkpoint(self, stored: StoredCheckpoint, tables: dict[str, pa.Table]) -> None:
        with tempfile.NamedTemporaryFile(dir=self._files.spool(), prefix="checkpoint-", delete=False) as out:
            draft = Path(out.name)
            try:
                checkpoint_file.write(out, stored.header, tables)  # type: ignore[arg-type]
                out.flush()
                self._files.put(stored.key, draft)
            finally:
                draft.unlink(missing_ok=True)
        self._at("checkpoint")


def _leave_pools(identity: Identity, principal: Principal) -> int:
    """Replace the name of a tenant in the machine pools that name it, each with an event, so that masters and the
    replayed journal agree. Return the number of pools. A dedicated pool stays dedicated, so no other tenant gets its
    machines. Locks the rows of the cells, one at a time.
    """
    found = list(Pool.objects.filter(tenants__contains=[identity.name]).order_by("cell", "id"))
    for cell_id, pools in groupby(found, key=lambda pool: pool.cell_id):
        with journal.write(cell_id, principal) as entry:
            for pool in Pool.objects.select_for_update().filter(pk__in=[one.pk for one in pools]).order_by("id"):
                names = (identity.pseudonym if name == identity.name else name for name in pool.tenants)
                pool.tenants = sorted(set(names))
                pool.save(update_fields=["tenants"])
                entry.append(pool_event(pool))
    return len(found)


def _check_ended(name: str) -> None:
    """Raise `Conflict` if a tenant has jobs that have not ended, because their names are in use."""
    live = Job.objects.filter(tenant__name=name).exclude(state=JobState.DEAD).count()
    if live or Departure.objects.filter(task__job__tenant__name=name).exists():
        raise Conflict(
            "tenant-has-jobs",
            f"tenant {name} has {live} live jobs, or tasks that have not left their machines; kill the jobs, and try"
            " again when all tasks have ended",
        )


def _files(cell: Cell) -> list[ArchiveFile]:
    files = ArchiveFile.objects.filter(cell=cell).exclude(state=ArchiveState.DELETED)
    return list(files.select_related("cell").order_by("table", "first"))


_Changed = tuple[int, int, str, str]  # revision, seq, actor, data


def _events(cell: Cell, identity: Identity) -> Iterator[list[_Changed]]:
    """Yield the events of a cell in PostgreSQL that contain an identity, without it, in batches."""
    place = (-1, -1)
    while True:
        rows = query(
            "SELECT revision, seq, actor, data::text FROM scheduling_event WHERE cell_id = %s"
            " AND (revision, seq) > (%s, %s) AND (strpos(actor, %s) > 0 OR strpos(data::text, %s) > 0)"
            " ORDER BY revision, seq LIMIT %s",
            [cell.id, *place, identity.name, identity.in_json, _EVENTS_AT_ONCE],
        )
        changed = []
        for revision, seq, actor, data in rows:
            after = (
                identity.value("actor", actor),
                identity.data(data, by=identity.kind is IdentityKind.PERSON and actor == identity.name),
            )
            if after != (actor, data):
                changed.append((revision, seq, *after))
        if changed:
            yield changed
        if len(rows) < _EVENTS_AT_ONCE:
            return
        place = rows[-1][:2]


def _update_events(cell: Cell, batch: list[_Changed]) -> None:
    with transaction.atomic():
        execute("SET LOCAL scheduling.erasing = 'on'")  # the journal is append-only otherwise
        execute(
            "UPDATE scheduling_event AS e SET actor = c.actor, data = c.data::jsonb FROM unnest(%s::bigint[],"
            " %s::integer[], %s::text[], %s::text[]) AS c(revision, seq, actor, data) WHERE e.cell_id = %s"
            " AND e.revision = c.revision AND e.seq = c.seq",
            [*(list(column) for column in zip(*batch, strict=True)), cell.id],
        )


def _rewritten(stored: StoredCheckpoint, identity: Identity) -> dict[str, pa.Table] | None:
    """Return the tables of a checkpoint without an identity, or None if they do not contain it, or if the checkpoint
    was deleted meanwhile. Raises `CheckpointError` if it is damaged.
    """
    try:
        with stored.open() as source:
            _, tables = checkpoint_file.read(source)
    except NotThere:
        return None
    changed = {name: identity.erased(table) for name, table in tables.items()}
    return {name: table for name, (table, _) in changed.items()} if any(n for _, n in changed.values()) else None


def _contains(stored: StoredCheckpoint, identity: Identity) -> bool:
    try:
        return _rewritten(stored, identity) is not None
    except (checkpoint_file.CheckpointError, DamagedFile):
        return False
