"""Reads jobs that are only in the archive, for pages, REST and lists.

    job not in PostgreSQL ─► index ─► file ─► rows copied back ─► the same readers as for any other job
    list of ended jobs ─► PostgreSQL and index, merged by id ─► rows of jobs from the files

The archiver deletes the copied rows again an hour later. The job stays in the archive and in the index.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from django.db import transaction
from django.utils import timezone

from quota.model_rows import read_models
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.history.archive.job_rows import TABLES, read_rows
from scheduling.journal.sql import execute, query
from scheduling.models import ArchivedJob, ArchiveFile, Cell, Job


def recall(principal: Principal, cell: Cell, tenant: str, name: str, *, uid: str = "") -> bool:
    """Copy the rows of an archived job back to PostgreSQL. Return whether the index has the job and the caller may see
    it.

    Without `uid`, the function copies the newest archived job of this name. If the job runs in an alloc set that is
    only in the archive, the alloc set is copied too. Raises `Rejected` if the archive cannot be read.
    """
    if not may(principal, Action.JOB_VIEW, tenant=tenant, cell=cell.name):
        return False
    rows = ArchivedJob.objects.filter(cell=cell, tenant__name=tenant, name=name).select_related("file__cell")
    found = (rows.filter(uid=uid) if uid else rows).order_by("-id").first()
    if found is None:
        return False
    wanted = [found]
    if found.alloc_set_id is not None and not Job.objects.filter(pk=found.alloc_set_id).exists():
        wanted = [*ArchivedJob.objects.filter(pk=found.alloc_set_id).select_related("file__cell"), found]
    for one in wanted:
        _copy_back(one)
    return True


def with_archived(rows: Iterable[Job | ArchivedJob]) -> list[Job]:
    """Return jobs for a list: entries of the index are replaced by their jobs, which are read from the archive and not
    copied back. They have the attributes that lists show. Reads each file once, and makes two queries.

    Raises `Rejected` if the archive cannot be read. A job whose file has just expired is left out.
    """
    found = list(rows)
    entries = [row for row in found if isinstance(row, ArchivedJob)]
    if not entries:
        return [row for row in found if isinstance(row, Job)]
    files = ArchiveFile.objects.select_related("cell").in_bulk({entry.file_id for entry in entries})
    by_file: dict[int, list[int]] = defaultdict(list)
    for entry in entries:
        by_file[entry.file_id].append(entry.id)
    jobs, tasks = [], {}
    for file, ids in by_file.items():
        for row in read_rows(files[file], ids, ["job", "spec"]):
            if row["kind"] == "job":
                jobs.append(_with_actor(row))
            else:
                tasks[row["collection_id"], row["number"]] = msgspec.json.decode(row["data"])["spec"]["tasks"]
    read = {job.id: job for job in read_models(Job, _AS_ROWS, [f"[{','.join(jobs)}]"])}
    for job in read.values():
        # Files from before release 0061 of the tables lack these columns.
        job.max_disruptions, job.disruption_window_s = job.max_disruptions or 0, job.disruption_window_s or 3600.0
        job.tasks_wanted, job.open_updates = tasks[job.id, job.spec_version], []  # type: ignore[attr-defined]
    merged = [read.get(row.id) if isinstance(row, ArchivedJob) else row for row in found]
    return [job for job in merged if job is not None]


_AS_ROWS = "SELECT {columns} FROM jsonb_populate_recordset(NULL::scheduling_job, %s::jsonb) AS t"


def _copy_back(one: ArchivedJob) -> None:
    by_kind: dict[str, list[str]] = defaultdict(list)
    for row in read_rows(one.file, [one.id], list(TABLES)):
        by_kind[row["kind"]].append(_with_actor(row))
    with transaction.atomic():
        # If another request copies the same job, this statement waits for it, and then inserts nothing.
        if by_kind["job"] and _insert("job", by_kind.pop("job")):
            for kind, rows in by_kind.items():
                _insert(kind, rows)
        ArchivedJob.objects.filter(pk=one.pk).update(recalled_at=timezone.now())


def _insert(kind: str, rows: Sequence[str]) -> int:
    """Insert rows of one kind into its table, and return how many were new. `rows`: a JSON object per row. A column
    that the archive does not contain gets its default value.
    """
    table, _ = TABLES[kind]
    known = {
        name
        for (name,) in query(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped",
            [table],
        )
    }
    columns = ", ".join(f'"{name}"' for name in msgspec.json.decode(rows[0]) if name in known)
    return execute(
        f"INSERT INTO {table} ({columns}) SELECT {columns} FROM jsonb_populate_recordset(NULL::{table}, %s::jsonb)"
        " ON CONFLICT DO NOTHING",
        [f"[{','.join(rows)}]"],
    )


def _with_actor(row: dict[str, Any]) -> str:
    """Return the columns of a row as a JSON object, including the column with the name of the person, which the archive
    stores separately as `actor`.
    """
    _, column = TABLES[row["kind"]]
    return (
        msgspec.json.encode(msgspec.json.decode(row["data"]) | {column: row["actor"]}).decode()
        if column
        else row["data"]
    )
