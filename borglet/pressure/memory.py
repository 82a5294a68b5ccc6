"""Decide when memory and disk of a machine are tight or short, and how far slack may grow (§6.2). Pure.

    available ──────────────► plenty    slack tasks may grow by what is spare
              ─ 2 × reserve ► tight     slack stops growing, batch is throttled: it asks for less
              ─ 1 × reserve ► short     tasks end (`shortage`) until a little more than the reserve is there

The same applies when the tasks together hold more than the machine offers to the cell. Page cache does not count,
because the kernel takes it back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from borglet.messages import TaskKey
from borglet.pressure.shortage import PressureTenant, Shortage
from borglet.runtimes.cgroups.cgroupfs import mebibytes

MIB = 2**20
GIB = 2**30
# Ceilings of slack change in these steps, so that most rounds write nothing.
GRAIN_BYTES = 16 * MIB
# Tasks may hold this share of the offered memory before the machine counts as tight.
TIGHT_SHARE = 0.97
# The "available" page cache may be in constant use. If tasks stall for more than this share, memory is tight, too.
STALLED_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class AvailableMemory:
    """The memory of a machine, or the disk under its home. `available`: free for new use. `given`: offered
    to the cell, 0 for no offer. All in bytes. `stalled`: share of the last ten seconds in which all work waited for
    memory, 0 if the kernel does not report it."""

    total: int
    available: int
    given: int = 0
    stalled: float = 0.0


def reserve(room: AvailableMemory) -> int:
    """Return the reserve for the machine itself: a fiftieth of its memory or disk, 64 MiB to 1 GiB."""
    return min(GIB, max(64 * MIB, room.total // 50))


def is_tight(memory: AvailableMemory, used: int) -> bool:
    """Return whether the next burst may use up the rest. `used`: by all tasks together."""
    promised = bool(memory.given) and used > memory.given * TIGHT_SHARE
    return promised or memory.stalled > STALLED_SHARE or memory.available < 2 * reserve(memory)


def shortage_of(resource: str, room: AvailableMemory, used: int) -> Shortage | None:
    """Return what must be freed to restore the reserve and the promised amounts; None if nothing must."""
    kept = reserve(room)
    lacking = kept - room.available
    beyond = used - room.given if room.given else 0
    if max(lacking, beyond) <= 0:
        return None
    name = "memory" if resource == "ram" else "disk"
    if lacking >= beyond:
        detail = f"the machine ran out of {name}: {mebibytes(room.available)} of {mebibytes(room.total)} are left"
        detail += f", and the Borglet keeps {mebibytes(kept)} free"
    else:
        detail = f"the machine ran out of {name}: its tasks used {mebibytes(used)} of {mebibytes(room.given)}"
    # A little more than needed, or the next allocated page causes the next shortage.
    return Shortage("ram" if resource == "ram" else "disk", max(lacking, beyond) + kept // 4, detail)


def grants(
    memory: AvailableMemory, tenants: Sequence[PressureTenant], leaving: Collection[TaskKey]
) -> Mapping[TaskKey, int]:
    """Return the ceiling of each task with memory slack, in bytes: its usage and its part of the unused memory.

    Together they cannot take more than that before the next round. A ceiling is never below a task's usage: if memory
    must be freed, a task ends, with that reason."""
    taking = [t for t in tenants if t.task.slack.ram and t.key not in leaving]
    if not taking:
        return {}
    used = sum(t.usage.ram_bytes for t in tenants)
    spare = memory.available - 2 * reserve(memory)
    if memory.given:
        spare = min(spare, int(memory.given * TIGHT_SHARE) - used)
    part = max(0, spare) // len(taking)
    return {t.key: -(-(t.usage.ram_bytes + part) // GRAIN_BYTES) * GRAIN_BYTES for t in taking}
