"""The current usage of tasks and machines, for reclamation and live pages. It is only in Redis, not in the database.

borg:usage:<cell>   hash: machine id -> `SAMPLE` rows: one for the whole machine, then one per task

Each row contains its task id. So the usage of a cell is one answer of Redis that forms one array: 150,000 tasks on
12,260 machines are read in 60 ms. Each row also contains its time, and readers decide which rows are too old. The rows
of a machine are deleted when they are `FORGET_S` seconds old. The rows of a cell expire when no shard has written for
`KEEP_S` seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import redis.asyncio
from numpy.typing import NDArray

from borglet.messages import Usage
from scheduling.journal import wakeups
from scheduling.usage.measured import MeasuredUsage

KEEP_S = 3600
FORGET_S = 600.0
# Quantities have the units of `borglet.messages.Usage`. `at`: seconds since the epoch by Redis' clock.
# A row with `task_id` -m is about the whole machine m.
SAMPLE = np.dtype(
    [
        ("task_id", "<i8"),
        ("at", "<f8"),
        ("ram_bytes", "<i8"),
        ("disk_bytes", "<i8"),
        ("cpu_milli", "<i4"),
        ("throttled_milli", "<i4"),
        ("processes", "<i4"),
        ("incarnation", "<i4"),
    ]
)
_MOST = {  # type: ignore[misc]
    name: 2**53 if kind.itemsize == 8 else 2**31 - 1
    for name, (kind, _) in (SAMPLE.fields or {}).items()
    if name not in ("task_id", "at", "incarnation")
}


# So few machines are packed in one step that their arrays stay in the processor's caches: without new pages from the
# kernel, a step takes half of the time.
_PACKED_AT_ONCE = 64


class CellUsage(NamedTuple):
    """The usage of machines and their tasks. `now`: the time by Redis' clock. `rows`: an array with the dtype
    `SAMPLE`, with one row for each machine and one for each task. Rows may be old, and the machines are in any order.
    """

    now: float
    rows: NDArray[np.void]


def pack(measured: Sequence[tuple[MeasuredUsage, float]]) -> dict[int, bytes]:
    """Return the usage of each machine as the bytes of `SAMPLE` rows, by machine id. Tasks without processes are left
    out.

    `measured`: (usage of a machine, time of the measurement).
    """
    packed: dict[int, bytes] = {}
    for columns in {one.columns for one, _ in measured}:
        part = [pair for pair in measured if pair[0].columns == columns]
        for begin in range(0, len(part), _PACKED_AT_ONCE):
            packed |= _pack(columns, part[begin : begin + _PACKED_AT_ONCE])
    return packed


def _pack(columns: int, measured: Sequence[tuple[MeasuredUsage, float]]) -> dict[int, bytes]:
    """Encode the measurements as binary rows of the dtype `SAMPLE`. Return the rows of each machine, by machine id.
    `columns`: how many numbers each row of the measurements has.
    """
    figures = np.frombuffer(b"".join([one.figures for one, _ in measured]), np.int64).reshape(-1, columns)
    sizes = np.array([len(one.task_ids) for one, _ in measured])
    rows = np.zeros(len(figures), dtype=SAMPLE)
    rows["task_id"] = np.frombuffer(b"".join([one.task_ids for one, _ in measured]), np.int64)
    rows["incarnation"] = np.frombuffer(b"".join([one.incarnations for one, _ in measured]), np.int64)
    rows["at"] = np.repeat(np.array([at for _, at in measured]), sizes)
    for column, name in enumerate(Usage.__struct_fields__[:columns]):
        if name in _MOST:
            # A Borglet may send any number, so numbers are limited to the range of the column.
            rows[name] = np.clip(figures[:, column], 0, _MOST[name])
    kept = (rows["task_id"] < 0) | ((rows["task_id"] > 0) & (rows["processes"] > 0))
    ends = np.cumsum(kept)[np.cumsum(sizes) - 1] * SAMPLE.itemsize
    content = (rows if kept.all() else rows[kept]).tobytes()
    result, begin = {}, 0
    for (one, _), end in zip(measured, ends.tolist(), strict=True):
        result[one.machine_id] = content[begin:end]
        begin = end
    return result


async def store(connection: redis.asyncio.Redis, usages: Mapping[int, Mapping[int, bytes]]) -> None:
    """Store usage in Redis. `usages`: cell id -> machine id -> result of `pack` for the machine. Raises
    `redis.RedisError` if Redis cannot be reached.
    """
    pipe = connection.pipeline(transaction=False)
    for cell_id, machines in usages.items():
        pipe.hset(_key(cell_id), mapping={str(machine): rows for machine, rows in machines.items()})
        pipe.expire(_key(cell_id), KEEP_S)
    await pipe.execute()


def read_cell(cell_id: int) -> CellUsage:
    """Return the usage of a whole cell. Raises `redis.RedisError` if Redis cannot be reached."""
    connection = wakeups.client()
    pipe = connection.pipeline(transaction=False)
    pipe.time()
    pipe.hvals(_key(cell_id))
    (seconds, micros), values = pipe.execute()
    now = seconds + micros / 1e6
    rows = np.frombuffer(b"".join(values), dtype=SAMPLE)
    left = rows["task_id"][rows["at"] < now - FORGET_S]
    left = left[left < 0]
    if len(left):
        connection.hdel(_key(cell_id), *(str(-machine) for machine in left.tolist()))
    return CellUsage(now, rows)


def read_machines(cell_id: int, machine_ids: Iterable[int]) -> CellUsage:
    """Return the usage of these machines of a cell. Raises `redis.RedisError` if Redis cannot be reached."""
    ids = [str(machine_id) for machine_id in machine_ids]
    if not ids:
        return CellUsage(0.0, np.empty(0, dtype=SAMPLE))
    pipe = wakeups.client().pipeline(transaction=False)
    pipe.time()
    pipe.hmget(_key(cell_id), ids)
    (seconds, micros), values = pipe.execute()
    rows = np.frombuffer(b"".join(filter(None, values)), dtype=SAMPLE)
    return CellUsage(seconds + micros / 1e6, rows)


def _key(cell_id: int) -> str:
    return f"borg:usage:{cell_id}"
