"""One SQL statement at a time, on the connection of the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.db import connection

Values = Sequence[Any] | Mapping[str, Any]


def query(statement: str, values: Values = ()) -> list[tuple[Any, ...]]:
    """Run a statement and return all its rows."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return list(cursor.fetchall())


def execute(statement: str, values: Values = ()) -> int:
    """Run a statement whose rows nobody reads. Return the number of rows that it wrote or locked."""
    with connection.cursor() as cursor:
        cursor.execute(statement, values or None)
        return int(cursor.rowcount)
