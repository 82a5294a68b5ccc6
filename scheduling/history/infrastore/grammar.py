"""Checks a query before DuckDB runs it, and writes the checked query again as SQL.

    text ─► parse (sqlglot) ─► one SELECT? known tables? allowed functions? ─► CheckedQuery: SQL, tables, time limits

DuckDB runs only the SQL that this module writes from the checked syntax tree. So a text that sqlglot and DuckDB would
read in different ways does no harm. Names are quoted in it, so that `user` is the column and not DuckDB's user.

Pure. The module imports sqlglot (25 MiB), so import it only where a query is checked.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.optimizer.scope import Scope, traverse_scope

from scheduling.history.infrastore.columns import TABLES
from scheduling.history.infrastore.functions import ALLOWED

Value = str | int | float | bool | dt.datetime
LONGEST_QUERY = 20_000
_DEEPEST = 100
_STATEMENTS = (exp.Select, exp.SetOperation, exp.Subquery)
# Parts of the syntax that do more than read a table. DuckDB accepts some of them in place of a table.
_FORBIDDEN = (
    exp.Alter,
    exp.Analyze,
    exp.Attach,
    exp.Cache,
    exp.Command,
    exp.Commit,
    exp.Copy,
    exp.Create,
    exp.DML,
    exp.Describe,
    exp.Detach,
    exp.Drop,
    exp.Into,
    exp.Kill,
    exp.LoadData,
    exp.Lock,
    exp.Parameter,
    exp.Pivot,
    exp.Pragma,
    exp.Rollback,
    exp.SessionParameter,
    exp.Set,
    exp.Show,
    exp.Summarize,
    exp.Transaction,
    exp.Use,
)
_JOINS = ("POSITIONAL", "NATURAL", "ASOF")


# sqlglot logs each statement that it does not know; the caller gets an error instead.
logging.getLogger("sqlglot").setLevel(logging.ERROR)


class QueryError(Exception):
    """The rejection of a query. `detail`: the message. `line`, `column`: where in the text, counted from 1, or 0 if
    the place is not known.
    """

    def __init__(self, detail: str, line: int = 0, column: int = 0) -> None:
        super().__init__(detail)
        self.detail, self.line, self.column = detail, line, column


@dataclass(frozen=True, slots=True)
class CheckedQuery:
    """A query that may run. `sql`: the query for DuckDB. `tables`: the tables that it reads. `names`: all names in the
    query, in lower case, or None if it may read columns that it does not name. `since`: for some of the tables, a time
    before which the query reads no row.
    """

    sql: str
    tables: frozenset[str]
    names: frozenset[str] | None
    since: Mapping[str, dt.datetime]


def check(text: str, parameters: Mapping[str, Value]) -> CheckedQuery:
    """Return the checked query. `parameters`: the values of `:name` in the query. Raises `QueryError` if the query is
    not allowed.
    """
    statement = _parsed(text)
    _check_depth(statement)
    for node in statement.walk():
        _check_node(node, text)
    tables = _check_tables(statement, text)
    bound = statement.transform(lambda node: _with_value(node, parameters, text))
    try:
        sql = bound.sql("duckdb", identify=True, unsupported_level=sqlglot.ErrorLevel.RAISE)
    except (SqlglotError, ValueError) as error:
        raise QueryError(f"the query uses syntax that is not supported: {_first_line(error)}; simplify it") from error
    return CheckedQuery(sql, tables, _names_in(statement), _time_limits(bound))


def position_of(text: str, name: str) -> tuple[int, int]:
    """Return line and column, counted from 1, of the first word `name` in `text`, or (0, 0)."""
    found = re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", text, re.IGNORECASE) if name else None
    if found is None:
        return 0, 0
    before = text[: found.start()]
    return before.count("\n") + 1, found.start() - (before.rfind("\n") + 1) + 1


def _parsed(text: str) -> exp.Expression:
    if not text.strip():
        raise QueryError("the query is empty; write SELECT … FROM a table of the schema")
    if len(text) > LONGEST_QUERY:
        raise QueryError(f"the query has {len(text)} characters; at most {LONGEST_QUERY} are accepted")
    if "\x00" in text:
        raise QueryError("the query contains a NUL character; remove it")
    try:
        statements = [one for one in sqlglot.parse(text, read="duckdb") if one is not None]
    except ParseError as error:
        first = error.errors[0] if error.errors else {}
        what = str(first.get("description") or error).split("\n")[0].rstrip(". ")
        what = "it ends too early" if "SENTINEL" in what else "a part is missing" if "<class" in what else what
        near = str(first.get("highlight") or "")
        column = max(1, int(first.get("col") or 1) - max(len(near) - 1, 0))
        detail = f"the query is not valid SQL: {what}{f', near {near!r}' if near else ''}; correct this place"
        raise QueryError(detail, int(first.get("line") or 0), column) from error
    except (SqlglotError, ValueError) as error:
        raise QueryError(f"the query is not valid SQL: {_first_line(error)}; correct it") from error
    except RecursionError as error:
        raise QueryError("the query is nested too deeply; write it with fewer parentheses and subqueries") from error
    if len(statements) != 1:
        raise QueryError(f"the query has {len(statements)} statements; send one SELECT statement at a time")
    if not isinstance(statements[0], _STATEMENTS):
        kind = statements[0].key.upper()
        raise QueryError(f"{kind} is not accepted; only SELECT, or WITH … SELECT, is accepted", 1, 1)
    return statements[0]


def _check_depth(statement: exp.Expression) -> None:
    level, depth = [statement], 0
    while level:
        level, depth = [child for node in level for child in node.iter_expressions()], depth + 1
        if depth > _DEEPEST:
            raise QueryError(f"the query is nested deeper than {_DEEPEST} levels; write it with fewer subqueries")


def _check_node(node: exp.Expr, text: str) -> None:
    if isinstance(node, _FORBIDDEN):
        line, column = position_of(text, node.key)
        raise QueryError(f"{node.key.upper()} is not accepted; a query may only read tables with SELECT", line, column)
    if isinstance(node, exp.Func):
        names = _names(node)
        if not names & ALLOWED:
            name = min(names)
            line, column = position_of(text, name)
            raise QueryError(
                f"the function {name} is not accepted; the schema page lists the accepted functions", line, column
            )
    if isinstance(node, exp.Join) and node.method.upper() in _JOINS:
        detail = f"{node.method.upper()} JOIN is not accepted; write JOIN … ON …"
        raise QueryError(detail, *position_of(text, node.method))


def _names(function: exp.Func) -> set[str]:
    """Return all SQL names of a function, in lower case. For a function that sqlglot does not know, return the name in
    the query.
    """
    if isinstance(function, exp.Anonymous | exp.AnonymousAggFunc):
        return {function.name.lower() or "anonymous"}
    return {name.lower() for name in function.sql_names()}


def _check_tables(statement: exp.Expression, text: str) -> frozenset[str]:
    """Return the tables that the query reads. Raises `QueryError` if it reads anything else."""
    temporary = {cte.alias.lower() for cte in statement.find_all(exp.CTE)}
    if taken := temporary & TABLES.keys():
        name = min(taken)
        place = position_of(text, name)
        raise QueryError(f"{name} in WITH is already the name of a table; choose another name", *place)
    found = set()
    for table in statement.find_all(exp.Table):
        name = table.name.lower()
        if not isinstance(table.this, exp.Identifier):
            named = _names(table.this) if isinstance(table.this, exp.Func) else {table.this.sql("duckdb")}
            place = position_of(text, min(named))
            raise QueryError(f"{min(named)} is not a table; use one of {', '.join(TABLES)}", *place)
        if table.args.get("db") or table.args.get("catalog"):
            whole = ".".join(part.name for part in table.parts)
            place = position_of(text, table.parts[0].name)
            raise QueryError(f"{whole!r} names another schema; write the name of a table without a schema", *place)
        if name in TABLES:
            found.add(name)
        elif name not in temporary:
            known = ", ".join(TABLES)
            place = position_of(text, table.name)
            raise QueryError(f"there is no table {table.name!r}; the tables are {known}", *place)
    return frozenset(found)


def _names_in(statement: exp.Expression) -> frozenset[str] | None:
    stars = statement.find_all(exp.Star, exp.Columns)
    if any(not isinstance(node.parent, exp.Count) for node in stars):
        return None
    sources = {node.alias_or_name.lower() for node in statement.find_all(exp.Table)}
    if any(node.name.lower() in sources for node in statement.find_all(exp.Column)):
        return None  # the name of a table stands for a whole row
    return frozenset(node.name.lower() for node in statement.find_all(exp.Identifier))


def _with_value(node: exp.Expr, parameters: Mapping[str, Value], text: str) -> exp.Expr:
    """Return the value of a parameter as a literal, and every other node as it is."""
    if not isinstance(node, exp.Placeholder):
        return node
    if node.name not in parameters:
        known = ", ".join(f":{name}" for name in parameters) or "none"
        line, column = position_of(text, node.name)
        raise QueryError(
            f"the parameter :{node.name} has no value; give it one (parameters with values: {known})",
            line,
            max(column - 1, 0),
        )
    value = parameters[node.name]
    if isinstance(value, dt.datetime):
        return exp.cast(exp.Literal.string(_utc(value).isoformat(" ")), "timestamp")
    return exp.convert(value)


def _utc(moment: dt.datetime) -> dt.datetime:
    return moment.astimezone(dt.UTC).replace(tzinfo=None) if moment.tzinfo else moment


def _time_limits(statement: exp.Expr) -> dict[str, dt.datetime]:
    """Return for each table the earliest time that the query can read, if every use of the table limits its time."""
    limits: dict[str, dt.datetime | None] = {}
    seen = set()
    for scope in traverse_scope(statement):
        for alias, source in scope.sources.items():
            if isinstance(source, exp.Table) and source.name.lower() in TABLES:
                seen.add(id(source))
                name = source.name.lower()
                limit = _limit_in(scope, alias, TABLES[name].time)
                before = limits.get(name, limit)
                limits[name] = min(before, limit) if before is not None and limit is not None else None
    unseen = {table.name.lower() for table in statement.find_all(exp.Table) if id(table) not in seen}
    return {name: limit for name, limit in limits.items() if limit is not None and name not in unseen}


def _limit_in(scope: Scope, alias: str, column: str) -> dt.datetime | None:
    """Return the earliest time that a query can read from the table `alias`, or None if there is no limit: the latest
    `time` of the conditions `column >= time` that all rows of the table must satisfy.
    """
    where = scope.expression.args.get("where")
    if where is None or not column:
        return None
    only = len(scope.sources) == 1
    found = []
    for condition in where.this.flatten() if isinstance(where.this, exp.And) else [where.this]:
        if not isinstance(condition, exp.GTE | exp.GT) or not isinstance(condition.this, exp.Column):
            continue
        if condition.this.name.lower() == column and (
            condition.this.table == alias or (only and not condition.this.table)
        ):
            moment = _moment(condition.expression)
            found += [moment] if moment else []
    return max(found, default=None)


def _moment(node: exp.Expression) -> dt.datetime | None:
    if not isinstance(node, exp.Cast) or not isinstance(node.this, exp.Literal) or not node.this.is_string:
        return None
    if not node.is_type("timestamp", "timestampntz", "date"):
        return None
    try:
        return _utc(dt.datetime.fromisoformat(node.this.name))
    except ValueError:
        return None


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200].rstrip(". ")
