"""The library of ready queries: one SQL file per query in the folder `queries`.

A file begins with comments: `-- subject:` (the title of its group), `-- title:`, `-- about:`, `-- chart:` (the columns
of the chart: x, then y, then, if there is one, the column that names the lines). The queries use only SQL that DuckDB
and Spark read in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

_FOLDER = Path(__file__).with_name("queries")


@dataclass(frozen=True, slots=True)
class ReadyQuery:
    """A query of the library. `name`: the name of its file without the extension. `subject`: the title of its group.
    `chart`: the columns of its chart, or () for no chart.
    """

    name: str
    subject: str
    title: str
    about: str
    chart: tuple[str, ...]
    sql: str


@cache
def queries() -> tuple[ReadyQuery, ...]:
    """Return all ready queries in the order of their names."""
    return tuple(_read(path) for path in sorted(_FOLDER.glob("*.sql")))


@cache
def by_subject() -> dict[str, tuple[ReadyQuery, ...]]:
    """Return the ready queries by their subject, sorted by subject and title."""
    ordered = sorted(queries(), key=lambda query: (query.subject, query.title))
    return {subject: tuple(group) for subject, group in groupby(ordered, key=lambda query: query.subject)}


def query_named(name: str) -> ReadyQuery | None:
    return next((query for query in queries() if query.name == name), None)


def _read(path: Path) -> ReadyQuery:
    heads: dict[str, str] = {}
    lines = path.read_text(encoding="utf-8").splitlines()
    body = [line for line in lines if not line.startswith("-- ")]
    for line in lines:
        if line.startswith("-- "):
            key, _, value = line[3:].partition(":")
            heads[key] = f"{heads[key]} {value.strip()}" if key in heads else value.strip()
    chart = tuple(part.strip() for part in heads.get("chart", "").split(",") if part.strip())
    return ReadyQuery(path.stem, heads["subject"], heads["title"], heads["about"], chart, "\n".join(body).strip())
