"""Rows into PostgreSQL by COPY, as one block of text: quoting them value by value costs more than all the rest.

Also columns of values as one parameter each, for `unnest`.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from django.db import connection, models

NULL = "\\N"
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_NO_ITEM = frozenset('{}",\\ \t\n\r\v\f')  # an item of an array with one of these needs quotes


def text(value: str) -> str:
    return value.translate(_ESCAPES)


def json_text(encoded: bytes) -> str:
    """JSON as an encoder wrote it, its control characters escaped: only backslashes need one of their own."""
    plain = encoded.decode()
    return plain.replace("\\", "\\\\") if "\\" in plain else plain


def lines(table: str, columns: str, many: Iterable[str]) -> None:
    """COPY rows that are text already, each with its end of line, inside the caller's transaction."""
    with connection.cursor() as cursor, cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
        copy.write("".join(many))


def column(values: Iterable[int | None]) -> str:
    """Numbers as an array's text, for one parameter such as `%s::bigint[]`."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


_Row = TypeVar("_Row", bound=models.Model)


def rows(model: type[_Row], instances: Sequence[_Row]) -> None:
    """Insert new instances as they are, two statements for all; those without an id are given theirs.

    What `save` would add, such as `auto_now_add`, is the caller's to set.
    """
    if not instances:
        return
    meta = model._meta
    without = [instance for instance in instances if instance.pk is None]
    if without:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT nextval(pg_get_serial_sequence(%s, %s)) FROM generate_series(1, %s)",
                [meta.db_table, meta.pk.column, len(without)],
            )
            for instance, (identity,) in zip(without, cursor.fetchall(), strict=True):
                instance.pk = identity
    names = [field.attname for field in meta.concrete_fields]
    lines(
        meta.db_table,
        ", ".join(connection.ops.quote_name(field.column) for field in meta.concrete_fields),
        ["\t".join([_value(getattr(row, name)) for name in names]) + "\n" for row in instances],
    )
    for instance in instances:
        instance._state.adding, instance._state.db = False, connection.alias


def _value(value: Any) -> str:
    if value is None:
        return NULL
    if isinstance(value, str):
        return text(value)
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return text("{" + ",".join([_item(item) for item in value]) + "}")
    if isinstance(value, Mapping):
        return json_text(msgspec.json.encode(value))
    if isinstance(value, msgspec.Raw):
        return json_text(bytes(value))
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, uuid.UUID):
        return value.hex
    raise TypeError(f"no text for COPY of a {type(value).__name__}")


def _item(value: int | str) -> str:
    if not isinstance(value, str):
        return str(value)
    if value and value.upper() != "NULL" and not _NO_ITEM.intersection(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
