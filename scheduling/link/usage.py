"""What tasks use now, as their Borglets last said: in Redis, for reclamation and live pages. Never in rows.

borg:usage:<cell>   hash: machine id -> `SAMPLE` rows, packed: one of the machine as a whole, then one a task

The rows describe themselves, so that a cell's usage is one reply, its values joined one array: 150,000 tasks
on 12,260 machines are read in 60 ms. Rows carry their time: who reads decides how old is too old. What a machine
left behind is removed when it is `FORGET_S` old, all of a cell's when no shard has written for `KEEP_S`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np
import redis.asyncio
from numpy.typing import NDArray

from borglet.messages import Phase, Report, Usage
from scheduling import notices
from scheduling.link.diff import View

KEEP_S = 3600
FORGET_S = 600.0
# Quantities in the units of `borglet.messages.Usage`. `at`: seconds since the epoch, Redis' clock.
# A row whose `task_id` is -m is about machine m as a whole.
SAMPLE = np.dtype(
    [
        ("task_id", "<i8"), ("at", "<f8"), ("ram_bytes", "<i8"), ("disk_bytes", "<i8"), ("cpu_milli", "<i4"),
        ("throttled_milli", "<i4"), ("processes", "<i4"), ("incarnation", "<i4"),
    ]
)  # fmt: skip
_packed = struct.Struct("<qdqqiiii")
_MOST_INT32, _MOST_INT64 = 2**31 - 1, 2**53
# Before and after these it has no processes: what it uses then is no measure of it.
_MEASURED = (Phase.STARTING, Phase.UP, Phase.STOPPING)


class TaskUsage(msgspec.Struct, frozen=True):
    """Units of `borglet.messages.Usage`."""

    task_id: int
    incarnation: int
    cpu_milli: int
    ram_bytes: int
    disk_bytes: int
    processes: int
    throttled_milli: int = 0


class MachineUsage(msgspec.Struct, frozen=True):
    """`at`: seconds since the epoch, Redis' clock. Tasks that should not be there are left out."""

    at: float
    whole: Usage
    tasks: list[TaskUsage]


class CellUsage(NamedTuple):
    """`now`: Redis' clock. `rows`: `SAMPLE`s of tasks and machines, fresh or not, in any order."""

    now: float
    rows: NDArray[np.void]


def of(report: Report, view: View, machine_id: int, *, at: float) -> bytes:
    """One machine's usage, packed. Tasks without processes have none; what nobody measured yet is left out."""
    rows = [_row(-machine_id, 0, report.usage, at)]
    for task in report.tasks:
        expected = view.run.get(task.key)
        if expected is not None and task.phase in _MEASURED and task.usage.processes > 0:
            rows.append(_row(expected.task_id, task.key.incarnation, task.usage, at))
    return b"".join(rows)


def _row(identity: int, incarnation: int, used: Usage, at: float) -> bytes:
    """A Borglet may say anything: what can't be is bounded."""
    return _packed.pack(
        identity, at, min(max(used.ram_bytes, 0), _MOST_INT64), min(max(used.disk_bytes, 0), _MOST_INT64),
        min(max(used.cpu_milli, 0), _MOST_INT32), min(max(used.throttled_milli, 0), _MOST_INT32),
        min(max(used.processes, 0), _MOST_INT32), incarnation,
    )  # fmt: skip


async def store(connection: redis.asyncio.Redis, usages: Mapping[int, Mapping[int, bytes]]) -> None:
    """`usages`: cell -> machine -> packed. One command a cell. Raises `redis.RedisError`."""
    pipe = connection.pipeline(transaction=False)
    for cell_id, machines in usages.items():
        pipe.hset(_key(cell_id), mapping={str(machine): rows for machine, rows in machines.items()})
        pipe.expire(_key(cell_id), KEEP_S)
    await pipe.execute()


def read_cell(cell_id: int) -> CellUsage:
    """Of a whole cell. Raises `redis.RedisError`."""
    connection = notices.client()
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


def read(cell_id: int, machine_ids: Iterable[int]) -> dict[int, MachineUsage]:
    """Of those of the machines that were heard of lately. Raises `redis.RedisError`."""
    ids = list(machine_ids)
    if not ids:
        return {}
    found = notices.client().hmget(_key(cell_id), [str(machine_id) for machine_id in ids])
    return {
        machine_id: _unpacked(value)
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
