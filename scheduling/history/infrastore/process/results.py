"""Writes the rows of a result as JSON, CSV or Parquet, up to the limits. Part of the child process."""

from __future__ import annotations

import csv
import datetime as dt
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import duckdb
import msgspec

from scheduling.history.infrastore.process.protocol import Form, Limits, ResultColumn

_BATCH = 5_000


@dataclass(frozen=True, slots=True)
class Result:
    """The rows of a result as bytes. `cut`: whether there are more rows."""

    columns: tuple[ResultColumn, ...] = ()
    body: bytes = b""
    rows: int = 0
    cut: bool = False


def write_result(
    database: duckdb.DuckDBPyConnection, query: str | duckdb.Statement, form: Form, limits: Limits
) -> Result:
    """Return the rows of a query. Rows beyond the limits are left out, and then `cut` is true."""
    if form is Form.PARQUET:
        return _parquet(database.sql(query), limits)
    return _text(database.execute(query), form, limits)


def _columns(description: Sequence[Sequence[Any]] | None) -> tuple[ResultColumn, ...]:
    return tuple(ResultColumn(str(name), str(kind)) for name, kind, *_ in description or ())


def _text(found: duckdb.DuckDBPyConnection, form: Form, limits: Limits) -> Result:
    columns = _columns(found.description)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if form is Form.CSV:
        writer.writerow([column.name for column in columns])
    rows, size = 0, 0
    pieces: list[bytes] = []
    while batch := found.fetchmany(_BATCH):
        for row in batch:
            if rows == limits.most_rows or size > limits.most_bytes:
                return Result(columns, _joined(pieces, out, form), rows, cut=True)
            if form is Form.CSV:
                writer.writerow([_cell(value) for value in row])
                if out.tell() > 2**20:
                    pieces.append(out.getvalue().encode("utf-8", "replace"))
                    size += len(pieces[-1])
                    out.seek(0)
                    out.truncate()
            else:
                pieces.append(msgspec.json.encode([_plain(value) for value in row]))
                size += len(pieces[-1])
            rows += 1
    return Result(columns, _joined(pieces, out, form), rows)


def _joined(pieces: list[bytes], out: io.StringIO, form: Form) -> bytes:
    if form is Form.CSV:
        return b"".join([*pieces, out.getvalue().encode("utf-8", "replace")])
    return b"[" + b",".join(pieces) + b"]"


def _parquet(found: duckdb.DuckDBPyRelation, limits: Limits) -> Result:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = _columns(found.description)
    reader = found.to_arrow_reader(_BATCH * 4)
    sink = pa.BufferOutputStream()
    rows, cut = 0, False
    try:
        writer = pq.ParquetWriter(sink, reader.schema, compression="zstd")
    except pa.ArrowNotImplementedError as error:
        kinds = ", ".join(sorted({column.type for column in columns}))
        detail = f"a column has a type that Parquet lacks (the types are {kinds}); convert it with CAST(… AS VARCHAR)"
        raise duckdb.NotSupportedError(detail) from error
    with writer:
        for batch in reader:
            left = limits.most_rows - rows
            cut = batch.num_rows > left or sink.tell() > limits.most_bytes
            if sink.tell() <= limits.most_bytes:
                writer.write_batch(batch.slice(0, left))
                rows += min(left, batch.num_rows)
            if cut:
                break
    return Result(columns, sink.getvalue().to_pybytes(), rows, cut)


def _plain(value: Any) -> Any:
    """Return a value of DuckDB as a value of JSON. Times are in UTC. Numbers that JSON lacks become null."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return float(value)
        case dt.datetime():
            return value.isoformat() + ("Z" if value.tzinfo is None else "")
        case Mapping():
            return {str(name): _plain(one) for name, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
        case bytes():
            return value.hex()
        case dt.date() | dt.time() | dt.timedelta() | UUID():
            return str(value)
    return str(value)


def _cell(value: Any) -> Any:
    plain = _plain(value)
    if isinstance(plain, list | dict):
        return msgspec.json.encode(plain).decode()
    # A spreadsheet would run a text that begins like a formula.
    if isinstance(plain, str) and plain[:1] in ("=", "+", "-", "@", "\t", "\r"):
        return "'" + plain
    return plain
