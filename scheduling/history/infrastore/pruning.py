"""Decides which columns and which files of the archive a query has to read. Pure."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from pathlib import Path

from scheduling.history.infrastore.columns import TABLES

_DAY = re.compile(r"day=([0-9]{4}-[0-9]{2}-[0-9]{2})")
# Columns that decide which rows the caller may see.
_ALWAYS = ("user", "kind")


def columns_of(table: str, names: frozenset[str] | None) -> tuple[str, ...]:
    """Return the columns of a table that a query may read: those that it names, and those that limit its rows.

    `names`: the names in the query, or None if it may read all columns.
    """
    info = TABLES[table]
    always = {info.time, *_ALWAYS}
    return tuple(one.name for one in info.columns if names is None or one.name in names or one.name in always)


def files_since(paths: Sequence[Path], since: dt.datetime | None) -> tuple[str, ...]:
    """Return the files whose day (`day=YYYY-MM-DD` in the path) is not before `since`."""
    first = since.date().isoformat() if since else ""
    days = [(path, _DAY.search(str(path))) for path in paths]
    return tuple(str(path) for path, day in days if day is None or day[1] >= first)
