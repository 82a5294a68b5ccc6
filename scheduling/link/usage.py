"""What tasks use now, as their Borglets last said: in Redis, for reclamation and live pages. Never in rows.

borg:usage:<cell>:<machine>   MessagePack of `MachineUsage`, gone by itself when the machine falls silent
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
import redis.asyncio

from borglet.messages import Report, Usage
from scheduling import notices
from scheduling.link.diff import View

KEEP_S = 60


class TaskUsage(msgspec.Struct, frozen=True, array_like=True):
    """Units of `borglet.messages.Usage`."""

    task_id: int
    incarnation: int
    cpu_milli: int
    ram_bytes: int
    disk_bytes: int
    processes: int


class MachineUsage(msgspec.Struct, frozen=True, array_like=True):
    """`at`: seconds since the epoch, the shard's clock. Tasks that should not be there are left out."""

    at: float
    whole: Usage
    tasks: list[TaskUsage]


_decoder = msgspec.msgpack.Decoder(MachineUsage)


def of(report: Report, view: View, *, at: float) -> MachineUsage:
    tasks = []
    for task in report.tasks:
        expected = view.run.get(task.key)
        if expected is not None:
            used = task.usage
            tasks.append(
                TaskUsage(
                    expected.task_id, task.key.incarnation, used.cpu_milli, used.ram_bytes, used.disk_bytes,
                    used.processes,
                )
            )  # fmt: skip
    return MachineUsage(at, report.usage, tasks)


async def store(connection: redis.asyncio.Redis, usages: Mapping[tuple[int, int], MachineUsage]) -> None:
    """`usages` by (cell id, machine id). Raises `redis.RedisError`."""
    pipe = connection.pipeline(transaction=False)
    for (cell_id, machine_id), used in usages.items():
        pipe.set(_key(cell_id, machine_id), msgspec.msgpack.encode(used), ex=KEEP_S)
    await pipe.execute()


def read(cell_id: int, machine_ids: Iterable[int]) -> dict[int, MachineUsage]:
    """Of the machines heard of lately. Raises `redis.RedisError`."""
    ids = list(machine_ids)
    if not ids:
        return {}
    found = notices.client().mget([_key(cell_id, machine_id) for machine_id in ids])
    return {
        machine_id: _decoder.decode(value)
        for machine_id, value in zip(ids, found, strict=True)
        if value is not None
    }


def _key(cell_id: int, machine_id: int) -> str:
    return f"borg:usage:{cell_id}:{machine_id}"
