"""The rows of ended jobs and of old specs on their way to a file of the archive, and back.

A file `ended_jobs` has one row per row of PostgreSQL. `kind` is the kind of the row: `job`, `spec`, `task`, `update` or
`verdict`. `number` is the version of a spec, the index of a task, or the position of an update. `data` has all columns
as a JSON object, so that a new column of PostgreSQL needs no new version of the file. Names of persons are only in the
column `actor`. Rows are sorted by job, so the statistics of a row group show which jobs it may contain. A file
`old_specs` has the same columns, and the ids of the rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from quota.vocabulary.errors import Rejected
from scheduling.history.archive.ended_jobs import EndedJobs
from scheduling.history.archive.old_specs import OldSpecs
from scheduling.history.archive.store import local_file
from scheduling.models import ArchiveFile, Erasure
from scheduling.spec.masking import masked
from scheduling.storage.files import NotThere, StoreAway

if TYPE_CHECKING:
    import pyarrow as pa

# A reader of one job reads few rows of other jobs.
ROWS_PER_GROUP = 4_096
# A value of PostgreSQL has at most 1 GiB, and all rows of a statement become one. A job has up to 10,000 tasks.
_IDS_PER_STATEMENT = 50
# The table of PostgreSQL and the column with the name of a person, by kind.
TABLES = {
    "job": ("scheduling_job", "submitted_by"),
    "spec": ("scheduling_jobspec", "actor"),
    "task": ("scheduling_task", ""),
    "update": ("scheduling_update", "actor"),
    "verdict": ("scheduling_pendingverdict", ""),
}
# `key`: a later job of the tenant may have the same idempotency key.
_STATEMENT = """WITH ids AS (SELECT unnest('{{{ids}}}'::bigint[]) AS id)
    SELECT collection_id, kind, number, time AT TIME ZONE 'UTC', actor, data FROM (
        SELECT j.id AS collection_id, 'job' AS kind, 0 AS number, j.ended_at AS time, j.submitted_by AS actor,
            to_jsonb(j) - '{{submitted_by,key}}'::text[] AS data FROM ids JOIN scheduling_job AS j USING (id)
        UNION ALL SELECT s.job_id, 'spec', s.version, s.created_at, s.actor, to_jsonb(s) - 'actor'
            FROM ids JOIN scheduling_jobspec AS s ON s.job_id = ids.id
        UNION ALL SELECT t.job_id, 'task', t.index, t.since, '', to_jsonb(t)
            FROM ids JOIN scheduling_task AS t ON t.job_id = ids.id
        UNION ALL SELECT u.job_id, 'update', row_number() OVER (PARTITION BY u.job_id ORDER BY u.id), u.created_at,
            u.actor, to_jsonb(u) - 'actor' FROM ids JOIN scheduling_update AS u ON u.job_id = ids.id
        UNION ALL SELECT v.job_id, 'verdict', 0, v.at, '', to_jsonb(v)
            FROM ids JOIN scheduling_pendingverdict AS v ON v.job_id = ids.id
    ) AS rows ORDER BY collection_id, kind, number"""


_SPECS = """SELECT s.id, s.job_id, 'spec', s.version, s.created_at AT TIME ZONE 'UTC', s.actor,
    to_jsonb(s) - 'actor' FROM scheduling_jobspec AS s WHERE s.id = ANY('{{{ids}}}'::bigint[]) ORDER BY s.id"""


def rows_of_jobs(wanted: EndedJobs | OldSpecs) -> Iterator[pa.Table]:
    """Yield the rows of jobs or of old specs from PostgreSQL in their order, as tables with the schema of the archive.
    The values of environment variables that look like secrets are replaced by masks, and the names of erased tenants by
    their pseudonyms.
    """
    from scheduling.history.archive.tables import ARCHIVE_TABLES, completed, read_part
    from scheduling.history.erasure.identities import Identity, IdentityKind

    template, ids = (_STATEMENT, wanted.jobs) if isinstance(wanted, EndedJobs) else (_SPECS, wanted.ids)
    table, ordered = ARCHIVE_TABLES[wanted.table], sorted(ids)
    parts = (
        read_part(table, template.format(ids=",".join(map(str, ordered[begin : begin + _IDS_PER_STATEMENT]))))
        for begin in range(0, len(ordered), _IDS_PER_STATEMENT)
    )
    names = Erasure.objects.filter(tenant__isnull=False).values_list("tenant__name", "pseudonym")
    erased = [Identity(IdentityKind.TENANT, name, pseudonym) for name, pseudonym in names]
    for rows in completed(table, parts, rows_per_group=ROWS_PER_GROUP):
        kept = _without_secrets(rows)
        for identity in erased:
            kept, _ = identity.erased(kept)
        yield kept


def _without_secrets(rows: pa.Table) -> pa.Table:
    import pyarrow as pa

    kinds, data = rows["kind"].to_pylist(), rows["data"].to_pylist()
    for place, (kind, text) in enumerate(zip(kinds, data, strict=True)):
        if kind == "spec" and '"env"' in text:
            data[place] = _masked(text)
    return rows.set_column(
        rows.schema.get_field_index("data"), rows.schema.field("data"), [pa.array(data, pa.string())]
    )


def _masked(text: str) -> str:
    row = msgspec.json.decode(text)
    shown = masked(row["spec"])
    if shown == row["spec"]:
        return text
    # With the digest of the spec, a reader could check guesses of the value.
    return msgspec.json.encode(row | {"spec": shown, "digest": ""}).decode()


def read_rows(file: ArchiveFile, jobs: Collection[int], kinds: Collection[str]) -> list[dict[str, Any]]:
    """Return the rows of these kinds and jobs in a file, sorted by job, kind and number. Reads only the row groups that
    may contain the jobs. Raises `Rejected` if the archive cannot be read.
    """
    import pyarrow as pa  # few processes read the archive
    import pyarrow.compute as pc

    from scheduling.history.archive.parquet import UnreadableArchive, open_file

    ids, wanted = pa.array(sorted(jobs), pa.int64()), pa.array(sorted(kinds), pa.string())
    found: list[dict[str, Any]] = []
    try:
        with suppress(NotThere), local_file(file) as path, open_file(path, name=file.key) as opened:
            for number in _groups(opened, sorted(jobs)):
                searched = opened.read_row_group(number, columns=["collection_id", "kind"], use_threads=False)
                mask = pc.and_(
                    pc.is_in(searched["collection_id"], value_set=ids), pc.is_in(searched["kind"], value_set=wanted)
                )
                if mask.combine_chunks().true_count:
                    found += opened.read_row_group(number, use_threads=False).filter(mask).to_pylist()
    except (StoreAway, UnreadableArchive) as error:
        detail = f"the archive with this job cannot be read; try again later, or ask an SRE: {error}"
        raise Rejected("archive-away", detail, status=503) from error
    return found


def _groups(file: Any, jobs: list[int]) -> Iterator[int]:
    """Yield the row groups that may contain one of the jobs, by their statistics. `jobs`: sorted."""
    column = file.schema_arrow.get_field_index("collection_id")
    for number in range(file.num_row_groups):
        ends = file.metadata.row_group(number).column(column).statistics
        if any(ends.min <= job <= ends.max for job in jobs):
            yield number
