"""Current usage of tasks as last reported, in Redis, for reclamation and live pages. Never in rows.

borg:usage:<cell>   hash: machine id -> `SAMPLE` rows, packed: one of the machine as a whole, then one a task

The rows describe themselves, so that a cell's usage is one reply, its values joined one array: 150,000 tasks
on 12,260 machines are read in 60 ms. Rows carry their time: who reads decides how old is too old. What a machine
left behind is removed when it is `FORGET_S` old, all of a cell's when no shard has written for `KEEP_S`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import redis.asyncio
from numpy.typing import NDArray

from borglet.messages import Usage
from scheduling.journal import wakeups
from scheduling.usage.measured import MeasuredUsage

KEEP_S = 3600
FORGET_S = 600.0
# Quantities in the units of `borglet.messages.Usage`. `at`: seconds since the epoch, Redis' clock.
# A row whose `task_id` is -m is about machine m as a whole.
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
_packed = struct.Struct("<qdqqiiii")
_MOST = {  # type: ignore[misc]
    name: 2**53 if kind.itemsize == 8 else 2**31 - 1
    for name, (kind, _) in (SAMPLE.fields or {}).items()
    if name not in ("task_id", "at", "incarnation")
}


class TaskUsage(msgspec.Struct, frozen=True):
    """The usage of a task, in the units of `borglet.messages.Usage`."""

    task_id: int
    incarnation: int
    cpu_milli: int
    ram_bytes: int
    disk_bytes: int
    processes: int
    throttled_milli: int = 0


class MachineUsage(msgspec.Struct, frozen=True):
    """The usage of a machine. `at`: seconds since the epoch, Redis' clock. Unknown tasks are left out."""

    at: float
    whole: Usage
    tasks: list[TaskUsage]


class CellUsage(NamedTuple):
    """The usage of a cell. `now`: Redis' clock. `rows`: `SAMPLE`s of tasks and machines of any age, unordered."""

    now: float
    rows: NDArray[np.void]


def pack(measured: Sequence[tuple[MeasuredUsage, float]]) -> dict[int, bytes]:
    """Return machine id -> its packed rows, each with its time of measurement. Tasks without processes have none."""
    packed: dict[int, bytes] = {}
    for columns in {one.columns for one, _ in measured}:
        packed |= _pack(columns, [pair for pair in measured if pair[0].columns == columns])
    return packed


def _pack(columns: int, measured: Sequence[tuple[MeasuredUsage, float]]) -> dict[int, bytes]:
    """Pack rows of `columns` figures each."""
    figures = np.frombuffer(b"".join([one.figures for one, _ in measured]), np.int64).reshape(-1, columns)
    sizes = np.array([len(one.task_ids) for one, _ in measured])
    rows = np.zeros(len(figures), dtype=SAMPLE)
    rows["task_id"] = np.frombuffer(b"".join([one.task_ids for one, _ in measured]), np.int64)
    rows["incarnation"] = np.frombuffer(b"".join([one.incarnations for one, _ in measured]), np.int64)
    rows["at"] = np.repeat(np.array([at for _, at in measured]), sizes)
    for column, name in enumerate(Usage.__struct_fields__[:columns]):
        if name in _MOST:
            # A Borglet may say anything: what can't be is bounded.
            rows[name] = np.clip(figures[:, column], 0, _MOST[name])
    kept = (rows["task_id"] < 0) | ((rows["task_id"] > 0) & (rows["processes"] > 0))
    ends = np.cumsum(kept)[np.cumsum(sizes) - 1] * SAMPLE.itemsize
    content = rows[kept].tobytes()
    result, begin = {}, 0
    for (one, _), end in zip(measured, ends.tolist(), strict=True):
        result[one.machine_id] = content[begin:end]
        begin = end
    return result


async def store(connection: redis.asyncio.Redis, usages: Mapping[int, Mapping[int, bytes]]) -> None:
    """Store usage. `usages`: cell -> machine -> packed rows. One command per cell. Raises `redis.RedisError`."""
    pipe = connection.pipeline(transaction=False)
    for cell_id, machines in usages.items():
        pipe.hset(_key(cell_id), mapping={str(machine): rows for machine, rows in machines.items()})
        pipe.expire(_key(cell_id), KEEP_S)
    await pipe.execute()


def read_cell(cell_id: int) -> CellUsage:
    """Return the usage of a whole cell. Raises `redis.RedisError`."""
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
    """The rows of these machines alone. Raises `redis.RedisError`."""
    ids = [str(machine_id) for machine_id in machine_ids]
    if not ids:
        return CellUsage(0.0, np.empty(0, dtype=SAMPLE))
    pipe = wakeups.client().pipeline(transaction=False)
    pipe.time()
    pipe.hmget(_key(cell_id), ids)
    (seconds, micros), values = pipe.execute()
    rows = np.frombuffer(b"".join(filter(None, values)), dtype=SAMPLE)
    return CellUsage(seconds + micros / 1e6, rows)


def read(cell_id: int, machine_ids: Iterable[int]) -> dict[int, MachineUsage]:
    """Return the usage of machines with a recent report. Raises `redis.RedisError`."""
    ids = list(machine_ids)
    if not ids:
        return {}
    found = wakeups.client().hmget(_key(cell_id), [str(machine_id) for machine_id in ids])
    return {
        machine_id: _unpacked(value)  # type: ignore[arg-type]
        for machine_id, value in zip(ids, found, strict=True)
        if value is not None
    }


def _unpacked(value: bytes) -> MachineUsage:
    (_, at, *whole), *tasks = _packed.iter_unpack(value)
    return MachineUsage(
        at,
        _usage(*whole[:5]),
        [
            TaskUsage(task_id, incarnation, cpu, ram, disk, processes, throttled)
            for task_id, _, ram, disk, cpu, throttled, processes, incarnation in tasks
        ],
    )


def _usage(ram: int, disk: int, cpu: int, throttled: int, processes: int) -> Usage:
    return Usage(cpu, ram, disk, processes, throttled)


def _key(cell_id: int) -> str:
    return f"borg:usage:{cell_id}"
