"""Answers SQL queries over the history of a cell (§2.6).

text ─► grammar: checked ─► visible_rows: tenants that the caller may see ─► query_process: a process of its own ─► rows
"""

from __future__ import annotations

import datetime as dt
import re
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from django.conf import settings

from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal
from scheduling.history.infrastore.archive_files import with_files
from scheduling.history.infrastore.exported_rows import export
from scheduling.history.infrastore.process import query_process
from scheduling.history.infrastore.process.protocol import ChildRequest, Form, Limits
from scheduling.history.infrastore.visible_rows import visibility
from scheduling.models import Cell

if TYPE_CHECKING:
    from scheduling.history.infrastore.grammar import CheckedQuery, Value

DEFAULT_DAYS = 7
_THREADS = 2
_MOST_ROWS = {Form.JSON: 10_000, Form.CSV: 1_000_000, Form.PARQUET: 1_000_000}
_MOST_BYTES = 64 * 2**20


def ask(
    *,
    principal: Principal,
    cell: Cell,
    query: str,
    now: dt.datetime,
    parameters: Mapping[str, Value] | None = None,
    form: Form = Form.JSON,
) -> query_process.Answer:
    """Run a query over the history of `cell`, with only the rows that the principal may see.

    `parameters`: the values of `:name` in the query. `:since` is seven days before `now` and `:until` is `now` unless
    `parameters` has them. Raises `Rejected` if the query is not accepted, exceeds a limit or fails, or if the archive
    cannot be read. For an error in the text of the query, the figures of `Rejected` contain the `line` and `column`,
    counted from 1.
    """
    checked = _checked(query, standard_parameters(now) | dict(parameters or {}))
    visible = visibility(principal, cell)
    names = sorted(checked.tables)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="borg-sql-"))
        manifest, tables, facts = export(
            Path(folder), cell, tables=names, names=checked.names, since=checked.since, visible=visible
        )
        tables = stack.enter_context(with_files(tables, manifest))
        request = ChildRequest(sql=checked.sql, tables=tables, limits=_limits(form), form=form, jobs=facts)
        try:
            return query_process.run(request)
        except Rejected as problem:
            raise _placed(problem, query) from problem


def standard_parameters(now: dt.datetime) -> dict[str, Value]:
    """Return the default values of the parameters `:since` (seven days before `now`) and `:until` (`now`)."""
    return {"since": now - dt.timedelta(days=DEFAULT_DAYS), "until": now}


def _checked(query: str, parameters: Mapping[str, Value]) -> CheckedQuery:
    from scheduling.history.infrastore import grammar

    try:
        return grammar.check(query, parameters)
    except grammar.QueryError as error:
        figures = {"line": error.line, "column": error.column} if error.line else {}
        place = f" (line {error.line}, column {error.column})" if error.line else ""
        raise Rejected(
            "query-invalid", f"{error.detail}{place}", fields={"query": error.detail}, figures=figures
        ) from error


def _limits(form: Form) -> Limits:
    return Limits(
        seconds=settings.BORG_SQL_SECONDS,
        memory_mib=settings.BORG_SQL_MEMORY_MIB,
        threads=_THREADS,
        most_rows=_MOST_ROWS[form],
        most_bytes=_MOST_BYTES,
    )


def _placed(problem: Rejected, query: str) -> Rejected:
    """Return the error of a failed query with a line and column of the query: the place of the first name that DuckDB's
    message quotes. Other errors, and messages without such a name, get no place.
    """
    from scheduling.history.infrastore.grammar import position_of

    if problem.code != "query-failed":
        return problem
    name = re.search(r'"(?:\w+\.)*(\w+)"', problem.detail)
    line, column = position_of(query, name[1]) if name else (0, 0)
    figures = {"line": line, "column": column} if line else {}
    place = f" (line {line}, column {column})" if line else ""
    return Rejected(problem.code, f"{problem.detail}{place}", fields={"query": problem.detail}, figures=figures)
