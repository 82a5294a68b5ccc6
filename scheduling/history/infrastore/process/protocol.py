"""The messages between the portal and the process that runs one query. Pure, and without heavy libraries.

portal ── one `ChildRequest` as JSON, standard input ──► child
portal ◄── one `AnswerHead` as a line of JSON, then the result, standard output ── child
"""

from __future__ import annotations

import datetime as dt
from enum import StrEnum

import msgspec


class Form(StrEnum):
    """The format of a result. `JSON` is a list of rows, and each row is a list of values."""

    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


class TableSource(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of the rows of a table. `columns`: the columns to load. `since`: the earliest time to load. `users`:
    the tenants whose rows of this table the query may see; None for all rows of the cell.

    `files`: Parquet files of the archive. `rows`: a CSV file with rows of PostgreSQL that have exactly `columns`. For a
    table that is derived from the journal, `rows` and the Parquet files `event_files` contain rows of the table
    `events`, which are converted. Each source may be missing.
    """

    columns: tuple[str, ...]
    users: tuple[str, ...] | None
    files: tuple[str, ...] = ()
    rows: str = ""
    event_files: tuple[str, ...] = ()
    since: dt.datetime | None = None


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one query. `most_rows`, `most_bytes`: the largest size of the result; further rows are left out."""

    seconds: float
    memory_mib: int
    threads: int
    most_rows: int
    most_bytes: int


class ChildRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A checked query with its data. `jobs`: a CSV file with the facts of jobs that the conversion of events needs, or
    "".
    """

    sql: str
    tables: dict[str, TableSource]
    limits: Limits
    form: Form
    jobs: str = ""


class ResultColumn(msgspec.Struct, frozen=True):
    """A column of a result, with DuckDB's name of its type."""

    name: str
    type: str


class AnswerHead(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a query. `code`: empty if it succeeded, otherwise the code of the problem that `detail` describes.

    `cut`: whether the result has more rows than were sent. `seconds`: how long DuckDB needed, without loading.
    """

    code: str = ""
    detail: str = ""
    columns: tuple[ResultColumn, ...] = ()
    rows: int = 0
    cut: bool = False
    seconds: float = 0.0
    load_seconds: float = 0.0


# Facts of jobs for the conversion of events: id, tenant, name, kind, priority, latency-sensitive, alloc set.
FACTS = {
    "id": "BIGINT",
    "user": "VARCHAR",
    "name": "VARCHAR",
    "kind": "VARCHAR",
    "priority": "INTEGER",
    "latency_sensitive": "BOOLEAN",
    "alloc_set": "BIGINT",
}
