"""Reads rows of PostgreSQL as columns, so that no code of this process runs once per row.

    SELECT array_agg(…), string_agg(…) FROM (the rows in order) ─► COPY (FORMAT binary): one row ─► numpy ─► Arrow

A column of numbers arrives as an array whose elements all have the same length. A column of texts arrives as the array
of their lengths, and as one text with all of them. The smallest number of a type, NaN and -infinity stand for null.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from django.db import connection
from numpy.typing import NDArray

_FLOATS = pa.list_(pa.float32())
_BEFORE = 19 + 2  # bytes before the first field of COPY: signature, flags, length of an extension; number of fields
_ARRAY_HEADER = 20  # bytes: dimensions, flags, type; length and lower bound
_EMPTY_ARRAY_WORDS, _ARRAY_WORDS = 3, 5
_EPOCH_US = 946_684_800_000_000  # PostgreSQL counts from 2000-01-01


class _Fixed(NamedTuple):
    """A type whose values all have the same number of bytes. `sql`: its name in PostgreSQL. `null`: the SQL of the
    value that stands for null. `binary`: numpy's type of the values that PostgreSQL sends.
    """

    sql: str
    null: str
    binary: str


_FIXED = {
    pa.int64(): _Fixed("bigint", "-9223372036854775808", ">i8"),
    pa.int32(): _Fixed("integer", "-2147483648", ">i4"),
    pa.int16(): _Fixed("smallint", "(-32768)::smallint", ">i2"),
    pa.bool_(): _Fixed("integer", "-2147483648", ">i4"),
    pa.float32(): _Fixed("real", "'NaN'", ">f4"),
    pa.float64(): _Fixed("double precision", "'NaN'", ">f8"),
    pa.timestamp("us"): _Fixed("timestamp", "'-infinity'", ">i8"),
}


def read_columns(types: Mapping[str, pa.DataType], select: str) -> pa.Table:
    """Return the rows of a SELECT in their order. `types`: the names and types of its columns. Raises `ValueError` if
    PostgreSQL has not sent a value per row for each column.
    """
    inner, outer = [], ["count(*)::integer"]
    for name, kind in types.items():
        if (fixed := _FIXED.get(kind)) is not None:
            inner.append(f'coalesce("{name}"::{fixed.sql}, {fixed.null}) AS "{name}"')
            outer.append(f'array_agg("{name}")')
        else:
            value = f'array_send("{name}"::real[])' if kind == _FLOATS else f'"{name}"::text'
            inner.append(f'{value} AS "{name}"')
            outer += [f'array_agg(coalesce(octet_length("{name}"), -1))', f"""string_agg("{name}", '')"""]
    names = ", ".join(f'"{name}"' for name in types)
    # OFFSET 0 makes PostgreSQL compute each text only once.
    rows_of = f"SELECT {', '.join(inner)} FROM ({select}) AS rows({names}) OFFSET 0"
    statement = f"SELECT {', '.join(outer)} FROM ({rows_of}) AS texts"
    with connection.cursor() as cursor, cursor.copy(f"COPY ({statement}) TO STDOUT (FORMAT binary)") as copy:
        fields = _fields(b"".join(copy))
    (rows,) = struct.unpack(">i", next(fields))
    arrays = []
    for name, kind in types.items():
        if kind in _FIXED:
            arrays.append(_fixed_array(_values(next(fields), _FIXED[kind].binary), kind))
        elif kind == _FLOATS:
            arrays.append(_float_lists(_values(next(fields), ">i4"), next(fields)))
        else:
            arrays.append(_texts(_values(next(fields), ">i4"), next(fields)))
        if len(arrays[-1]) != rows:
            raise ValueError(
                f"PostgreSQL sent {rows} rows, but {len(arrays[-1])} values of column {name} could be read; report this"
                " as a bug"
            )
    return pa.table(arrays, names=list(types))


def _fields(data: bytes) -> Iterator[memoryview]:
    """Yield the values of the only row in COPY's binary format. A null is empty."""
    view, place = memoryview(data), _BEFORE
    (number,) = struct.unpack_from(">h", data, _BEFORE - 2)
    for _ in range(number):
        (size,) = struct.unpack_from(">i", data, place)
        place += 4
        yield view[place : place + max(size, 0)]
        place += max(size, 0)


def _values(field: memoryview, binary: str) -> NDArray[Any]:
    """Return the elements of an array without nulls as PostgreSQL sends it; empty for a null."""
    kind = np.dtype([("length", ">i4"), ("value", binary)])
    values = np.frombuffer(field[_ARRAY_HEADER:], kind)["value"]
    return values.astype(values.dtype.newbyteorder("="))


def _fixed_array(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_floating(kind):
        return pa.array(values, kind, mask=np.isnan(values))
    null = values == np.iinfo(values.dtype).min
    if pa.types.is_timestamp(kind):
        values = values + _EPOCH_US
    return pa.array(values != 0 if pa.types.is_boolean(kind) else values, kind, mask=null if null.any() else None)


def _texts(lengths: NDArray[np.int32], content: memoryview) -> pa.Array:
    return pa.Array.from_buffers(
        pa.string(), len(lengths), [_validity(lengths >= 0), _offsets(np.maximum(lengths, 0)), pa.py_buffer(content)]
    )


def _float_lists(lengths: NDArray[np.int32], content: memoryview) -> pa.Array:
    """Return lists of floats. `lengths`: the bytes of each list, or -1 for null. `content`: the lists as PostgreSQL's
    `array_send` writes them: a header, and then for each element its length and its value.
    """
    words = np.frombuffer(content, ">i4")
    sizes = np.maximum(lengths, 0) // 4
    headers = np.minimum(sizes, np.where(sizes == _EMPTY_ARRAY_WORDS, _EMPTY_ARRAY_WORDS, _ARRAY_WORDS))
    starts = np.cumsum(sizes) - sizes
    after = np.arange(len(words)) - np.repeat(starts + headers, sizes)  # the place of each word after its header
    values = words[(after >= 0) & (after % 2 == 1)].view(">f4").astype(np.float32)
    return pa.Array.from_buffers(
        _FLOATS, len(lengths), [_validity(lengths >= 0), _offsets((sizes - headers) // 2)], children=[pa.array(values)]
    )


def _validity(valid: NDArray[np.bool_]) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _offsets(lengths: NDArray[Any]) -> pa.Buffer:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.py_buffer(offsets)
