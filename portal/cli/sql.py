"""The command that runs SQL queries over the history of a cell."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from portal.cli import output
from portal.cli.context import CellOption, Commands, Context
from portal.cli.failure import CommandFailed, bad_usage

app = Commands()


@app.command()
def sql(
    session: Context,
    query: Annotated[
        str | None, typer.Argument(help="SQL query, or the name of a ready query (see --queries). Omit it with --file.")
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Read the query from this file; - is standard input.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print the result as CSV, with up to 1,000,000 rows.")] = False,
    parquet: Annotated[Path | None, typer.Option(help="Write the result to this file as Parquet.")] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", help="Value for :NAME in the query, written as NAME=VALUE. Repeat for more."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="Time that replaces :since in the query. Default: seven days ago.")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Time that replaces :until in the query. Default: now.")] = None,
    tables: Annotated[
        bool, typer.Option("--tables", help="List the tables and their columns, and run no query.")
    ] = False,
    queries: Annotated[bool, typer.Option("--queries", help="List the ready queries, and run no query.")] = False,
    cell: CellOption = None,
) -> None:
    """Run an SQL query over the history of a cell. The query reads only the rows of your tenants.

    \b
    Examples:
      borgctl sql "SELECT type, count(*) FROM instance_events WHERE time >= :since GROUP BY type"
      borgctl sql evictions-by-cause --since 2027-01-01T00:00:00Z
    """
    path = f"{session.cell_path(cell)}sql/"
    if tables or queries:
        return _show_schema(session, session.client.get(f"{path}schema/"), tables=tables)
    if csv and parquet is not None:
        raise bad_usage("--csv and --parquet cannot be combined: use one of them", parquet="use one of them")
    body = {"query": _text(session, path, query, file), "parameters": _parameters(parameter, since, until)}
    if csv or parquet is not None:
        content = session.client.download_post(path, body | {"format": "csv" if csv else "parquet"})
        return _write(content, parquet)
    answer = session.client.post(path, body)
    if session.json:
        return output.as_json(answer)
    names = [column["name"] for column in answer["columns"]]
    output.table(names, [[_cell(value) for value in row] for row in answer["rows"]], empty="No rows.")
    if answer["cut"]:
        output.remark(f"the query has more than {len(answer['rows'])} rows; use --csv or --parquet, or a LIMIT")
    return None


def _text(session: Context, path: str, query: str | None, file: Path | None) -> str:
    """Return the SQL text of the query to run. If `file` is given, read it from there. A `query` that is one word is
    the name of a ready query (a query that the portal provides); the portal then returns its text.
    """
    if (query is None) == (file is None):
        raise bad_usage("the query is missing or given twice: give QUERY or --file", query="give QUERY or --file")
    if file is not None:
        try:
            return sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CommandFailed(
                "file",
                f"cannot read the query from {file}: {error}; check the path, and save the file as UTF-8",
                fields={"file": str(error)},
            ) from error
    assert query is not None
    if query.split() != [query]:
        return query
    known = session.client.get(f"{path}schema/")["queries"]
    for one in known:
        if one["name"] == query:
            return str(one["query"])
    raise bad_usage(
        f"there is no ready query {query!r}: see `borgctl sql --queries`", query="see `borgctl sql --queries`"
    )


def _parameters(given: list[str] | None, since: str | None, until: str | None) -> dict[str, str]:
    found = {name: value for name, value in (("since", since), ("until", until)) if value is not None}
    for one in given or ():
        name, equals, value = one.partition("=")
        if not (equals and name):
            raise bad_usage(
                f"--parameter {one!r} is not a name and a value: write NAME=VALUE", parameter="write NAME=VALUE"
            )
        found[name] = value
    return found


def _write(content: bytes, file: Path | None) -> None:
    if file is None:
        output.write(content.decode("utf-8", "replace"))
        return
    try:
        file.write_bytes(content)
    except OSError as error:
        raise CommandFailed(
            "output",
            f"cannot write {file}: {error.strerror}; choose another file with --parquet",
            fields={"parquet": str(error)},
        ) from error
    output.say(f"{len(content)} bytes are in {file}.")


def _show_schema(session: Context, schema: dict[str, Any], *, tables: bool) -> None:
    if session.json:
        return output.as_json(schema["tables" if tables else "queries"])
    if not tables:
        columns = {"QUERY": "name", "TITLE": "title"}
        return session.table(schema["queries"], columns, empty="No ready queries.")
    rows = [
        [table["name"], column["name"], column["type"], column["about"]]
        for table in schema["tables"]
        for column in table["columns"]
    ]
    return output.table(["TABLE", "COLUMN", "TYPE", "DESCRIPTION"], rows, empty="No tables.")


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(value) if isinstance(value, list | dict) else value
