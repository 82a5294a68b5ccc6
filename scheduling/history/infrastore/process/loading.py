"""Loads the tables of a query into DuckDB, with only the rows that the caller may see. Part of the child process."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

import duckdb

from scheduling.history.infrastore import columns
from scheduling.history.infrastore.columns import DERIVED, TABLES
from scheduling.history.infrastore.process.protocol import FACTS, ChildRequest, TableSource

if TYPE_CHECKING:
    from scheduling.history.infrastore.tables import JobFacts

_TYPES = {
    columns.TEXT: "VARCHAR",
    columns.INT: "BIGINT",
    columns.FLOAT: "DOUBLE",
    columns.BOOL: "BOOLEAN",
    columns.TIME: "TIMESTAMP",
    columns.FLOATS: "DOUBLE[]",
    columns.TEXTS_BY_NAME: "MAP(VARCHAR, VARCHAR)",
    columns.FLOATS_BY_NAME: "MAP(VARCHAR, DOUBLE)",
}
# CSV files contain maps as JSON.
_BY_JSON = frozenset({columns.TEXTS_BY_NAME, columns.FLOATS_BY_NAME})
# The rows of the journal that belong to no tenant and that everybody may see.
_SHARED_EVENTS = "kind LIKE 'machine.%'"


class Loader:
    """Creates the tables of one request in an empty database."""

    def __init__(self, database: duckdb.DuckDBPyConnection, request: ChildRequest) -> None:
        self._database = database
        self._request = request

    def load(self) -> list[str]:
        """Create all tables. Return the files that the query itself still has to read.

        If the caller may see all rows of a table, the table is a view over the files of the archive. Otherwise the rows
        that the caller may see are copied into memory, so that the query does not need the files.
        """
        needed: list[str] = []
        for name, source in self._request.tables.items():
            if source.files and source.users is None:
                self._view(name, source)
                needed += source.files
            else:
                self._copy(name, source)
        return needed

    def _view(self, name: str, source: TableSource) -> None:
        parts = [self._of_files(name, source)]
        if source.rows or source.event_files:
            recent = f"recent_{name}"
            self._database.execute(f"CREATE TABLE {recent} AS {self._of_rows(name, source)}")
            parts.append(f"SELECT * FROM {recent}")
        self._database.execute(f"CREATE VIEW {name} AS {' UNION ALL '.join(parts)}")

    def _copy(self, name: str, source: TableSource) -> None:
        parts = [self._of_files(name, source)] if source.files else []
        parts += [self._of_rows(name, source)] if source.rows or source.event_files else []
        if not parts:
            parts = [f"SELECT {self._casts(name, source, {})} LIMIT 0"]
        self._database.execute(f"CREATE TABLE {name} AS {' UNION ALL '.join(parts)}")

    def _of_files(self, name: str, source: TableSource) -> str:
        """Return a SELECT over the files of the archive. Columns that older files lack are null.

        New versions only add columns, so the first and the last file together contain all columns.
        """
        first, last = (self._shape_of(path) for path in (source.files[0], source.files[-1]))
        known = first | last
        # To unite the columns of files by name, DuckDB opens all files before it reads the first row.
        unite = "false" if first == last else "true"
        paths = ", ".join(map(_text, source.files))
        files = f"read_parquet([{paths}], union_by_name = {unite}, hive_partitioning = false)"
        return f"SELECT {self._casts(name, source, known)} FROM {files} WHERE {self._visible(name, source, known)}"

    def _shape_of(self, path: str) -> dict[str, str]:
        """Return the columns of a Parquet file with their types."""
        rows = self._database.execute(f"DESCRIBE SELECT * FROM read_parquet({_text(path)})").fetchall()
        return {row[0]: row[1] for row in rows}

    def _of_rows(self, name: str, source: TableSource) -> str:
        """Return a SELECT over the rows of PostgreSQL."""
        if name in DERIVED:
            return self._derived(name, source)
        types = {column.name: column.type for column in TABLES[name].columns}
        shape = {one: "VARCHAR" if types[one] in _BY_JSON else _TYPES[types[one]] for one in source.columns}
        json = {one: "JSON" for one in source.columns if types[one] in _BY_JSON}
        known = shape | json
        return (
            f"SELECT {self._casts(name, source, known)} FROM {_csv(source.rows, shape)}"
            f" WHERE {self._visible(name, source, known)}"
        )

    def _derived(self, name: str, source: TableSource) -> str:
        """Convert events to the table `name`. Return a SELECT over the converted rows."""
        from scheduling.history.infrastore.tables import OF_EVENTS, SCHEMAS, Conversion

        shape = {column.name: _TYPES[column.type] for column in TABLES["events"].columns}
        needed = ", ".join(OF_EVENTS)
        parts = [f"SELECT {needed} FROM {_csv(source.rows, shape)}"] if source.rows else []
        if source.event_files:
            paths = ", ".join(map(_text, source.event_files))
            kinds = ", ".join(map(_text, DERIVED[name]))
            begin = f"AND time >= TIMESTAMP '{source.since.isoformat(' ')}'" if source.since else ""
            parts.append(f"SELECT {needed} FROM read_parquet([{paths}]) WHERE kind IN ({kinds}) {begin}")
        events = self._database.sql(f"{' UNION ALL '.join(parts)} ORDER BY revision, seq").to_arrow_table()
        table = Conversion(self._facts, self._machines_before(name, source)).tables(events)[name]
        self._database.register(f"converted_{name}", table)
        copied = f"events_of_{name}"
        self._database.execute(f"CREATE TABLE {copied} AS SELECT * FROM converted_{name}")
        self._database.unregister(f"converted_{name}")
        known = dict.fromkeys(SCHEMAS[name].names, "")
        return f"SELECT {self._casts(name, source, known)} FROM {copied} WHERE {self._visible(name, source, known)}"

    def _machines_before(self, name: str, source: TableSource) -> dict[int, dict[str, str]]:
        """Return the attributes of each machine, by machine id, after the last row of the files of `source`. The result
        is empty if the table `name` does not describe machines.
        """
        from scheduling.history.infrastore.tables import BEFORE, machines_after

        if name not in BEFORE or not source.files:
            return {}
        paths = ", ".join(map(_text, source.files))
        rows = f"SELECT {', '.join(BEFORE[name])} FROM read_parquet([{paths}]) ORDER BY revision, seq"
        return machines_after(name, self._database.execute(rows).fetchall())

    @cached_property
    def _facts(self) -> Mapping[int, JobFacts]:
        from scheduling.history.infrastore.tables import JobFacts

        if not self._request.jobs:
            return {}
        rows = self._database.execute(f"SELECT * FROM {_csv(self._request.jobs, FACTS)}").fetchall()
        return {row[0]: JobFacts._make([*row[1:6], row[6] or 0]) for row in rows}

    def _casts(self, name: str, source: TableSource, known: Mapping[str, str]) -> str:
        """Return SQL expressions that select the columns of `source` with the types of the table `name`. `known`: the
        columns that exist in the data, with their types; the other columns are null.
        """
        found = []
        for column in TABLES[name].columns:
            if column.name not in source.columns:
                continue
            kind, given = _TYPES[column.type], known.get(column.name)
            if given is None:
                found.append(f'CAST(NULL AS {kind}) AS "{column.name}"')
            elif given == kind:
                found.append(f'"{column.name}"')
            else:
                value = f'"{column.name}"::JSON' if given == "JSON" else f'"{column.name}"'
                found.append(f'CAST({value} AS {kind}) AS "{column.name}"')
        return ", ".join(found)

    def _visible(self, name: str, source: TableSource, known: Mapping[str, str]) -> str:
        conditions = ["true"]
        table = TABLES[name]
        if source.since is not None and table.time in known:
            conditions.append(f"\"{table.time}\" >= TIMESTAMP '{source.since.isoformat(' ')}'")
        if source.users is not None:
            names = ", ".join(map(_text, source.users))
            own = f'"user" IN ({names})' if names else "false"
            if table.shared:
                own += f' OR ("user" IS NULL AND {_SHARED_EVENTS if name == "events" else "true"})'
            conditions.append(f"({own})")
        return " AND ".join(conditions)


def _csv(path: str, shape: Mapping[str, str]) -> str:
    columns_ = ", ".join(f"'{name}': '{kind}'" for name, kind in shape.items())
    return (
        f"read_csv({_text(path)}, columns = {{{columns_}}}, auto_detect = false, header = false, delim = ',',"
        " quote = '\"', escape = '\"', nullstr = '', allow_quoted_nulls = false, max_line_size = 67108864,"
        " parallel = false)"
    )


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
