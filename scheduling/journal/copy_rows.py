"""Functions that insert many rows into PostgreSQL with the statement COPY, and one (`column`) that makes one SQL
parameter of many numbers.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from django.db import connection, models

NULL = "\\N"
_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_NO_ITEM = frozenset('{}",\\ \t\n\r\v\f')  # an item of an array with one of these needs quotes


def text(value: str) -> str:
    return value.translate(_ESCAPES)


def json_text(encoded: bytes) -> str:
    """Return encoded JSON as text for PostgreSQL's COPY.

    JSON already escapes control characters, so only backslashes must be escaped.
    """
    plain = encoded.decode()
    return plain.replace("\\", "\\\\") if "\\" in plain else plain


def values(model: type[models.Model], attributes: Sequence[str], many: Iterable[Sequence[Any]]) -> None:
    """Insert rows into the table of `model`. Each row in `many` has one value per attribute in `attributes`. Other
    columns get the database's default values.
    """
    meta = model._meta
    columns = {field.attname: field.column for field in meta.concrete_fields}
    lines(
        meta.db_table,
        ", ".join(connection.ops.quote_name(columns[name]) for name in attributes),  # type: ignore[arg-type]
        ["\t".join([_value(value) for value in row]) + "\n" for row in many],
    )


def lines(table: str, columns: str, many: Iterable[str]) -> None:
    """Insert rows into `table`. `columns`: the names of the columns, with commas between them. Each row in `many` is in
    the text format of COPY and ends with a newline.
    """
    with connection.cursor() as cursor, cursor.copy(f"COPY {table} ({columns}) FROM STDIN") as copy:
        copy.write("".join(many))


def column(values: Iterable[float | None]) -> str:
    """Return numbers as the text of a PostgreSQL array, for a parameter such as `%s::bigint[]`."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


_Row = TypeVar("_Row", bound=models.Model)


def rows(model: type[_Row], instances: Sequence[_Row]) -> None:
    """Insert new instances with two statements, and assign ids to instances without an id.

    The caller must set the values that Django's `save` would set, such as those of `auto_now_add` fields.
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
    values(model, names, map(attrgetter(*names), instances))
    for instance in instances:
        instance._state.adding, instance._state.db = False, connection.alias


def _value(value: Any) -> str:
    as_text = _TEXTS.get(type(value))
    if as_text is None:
        for kind, as_text in _TEXTS.items():
            if isinstance(value, kind):
                return as_text(value)
        kind_name = type(value).__name__
        raise TypeError(f"cannot write a value of type {kind_name} in the text format of COPY; report this as a bug")
    return as_text(value)


def _array(items: Sequence[int | str]) -> str:
    return text("{" + ",".join([_item(item) for item in items]) + "}")


def _item(value: int | str) -> str:
    if not isinstance(value, str):
        return str(value)
    if value and value.upper() != "NULL" and not _NO_ITEM.intersection(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


_TEXTS: dict[type, Callable[[Any], str]] = {
    type(None): lambda _: NULL,
    str: text,
    bool: lambda value: "t" if value else "f",  # before int, of which it is a kind
    int: str,
    float: str,
    list: _array,
    tuple: _array,
    dict: lambda value: json_text(msgspec.json.encode(value)),
    msgspec.Raw: lambda value: json_text(bytes(value)),
    dt.datetime: dt.datetime.isoformat,
    uuid.UUID: lambda value: value.hex,
}
