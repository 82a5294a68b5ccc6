"""Decides which columns a query has to read, and from which time. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from scheduling.history.infrastore.columns import TABLES

# Columns that decide which rows the caller may see.
_ALWAYS = ("user", "kind")


def columns_of(table: str, names: frozenset[str] | None) -> tuple[str, ...]:
    """Return the columns of a table that a query may read: those that it names, and those by which its rows are limited
    to a time and to what the caller may see.

    `names`: the names in the query, or None if it may read all columns.
    """
    info = TABLES[table]
    always = {info.time, *_ALWAYS}
    return tuple(one.name for one in info.columns if names is None or one.name in names or one.name in always)


def begin_of(table: str, since: Mapping[str, dt.datetime]) -> dt.datetime | None:
    """Return the time before which no row of a table is needed; None if all rows are.

    `since`: the times before which the query reads no row, by table. All rows of machines are needed, because the first
    event of a machine decides its type, and a change of attributes is computed from the earlier attributes.
    """
    return None if table.startswith("machine_") else since.get(table)
