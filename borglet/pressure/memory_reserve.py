"""Decide when memory and disk of a machine are tight or short, and how much memory tasks with slack may use (§6.2).
Pure.

    available ──────────────► plenty    tasks with slack may grow into the unused memory
              ─ 2 × reserve ► tight     they stop growing, and batch is throttled, so that it needs less
              ─ 1 × reserve ► short     tasks end (`victims`) until a little more than the reserve is free

A task with slack may use more memory than its limit. `reserve` returns the bytes that must stay free. Memory is also
tight or short if the tasks together use more than the machine offers to the cell. The page cache counts as free memory,
because the kernel can free it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from borglet.messages import TaskKey
from borglet.pressure.victims import PressureTenant, Resource, Shortage
from borglet.runtimes.cgroups.cgroupfs import mebibytes

MIB = 2**20
GIB = 2**30
# Ceilings of slack change in these steps, so that most rounds change no ceiling.
GRAIN_BYTES = 16 * MIB
# Memory is tight if tasks use more than this share of the offered memory.
TIGHT_SHARE = 0.97
# Memory is also tight if tasks wait for it for more than this share of time, because page cache is in constant use.
STALLED_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class AvailableMemory:
    """Sizes, in bytes, of a machine's memory or of the disk that contains the Borglet's home folder. `given`: the part
    that the machine offers to the cell; 0 means no limit.

    `stalled`: the share of the last ten seconds in which all processes waited for memory, from 0 to 1. It is 0 if the
    kernel does not report it.
    """

    total: int
    available: int
    given: int = 0
    stalled: float = 0.0


def reserve(memory: AvailableMemory) -> int:
    """Return the bytes of `memory` (RAM or disk) that must stay free: 2 % of its total, but at least 64 MiB and at most
    1 GiB.
    """
    return min(GIB, max(64 * MIB, memory.total // 50))


def is_tight(memory: AvailableMemory, used: int) -> bool:
    """Return whether the machine may soon run out of memory. `used`: bytes that all tasks together use."""
    promised = bool(memory.given) and used > memory.given * TIGHT_SHARE
    return promised or memory.stalled > STALLED_SHARE or memory.available < 2 * reserve(memory)


def shortage_of(resource: Resource, found: AvailableMemory, used: int) -> Shortage | None:
    """Return how much memory or disk is lacking; None if enough is free. `used`: bytes that all tasks together use."""
    kept = reserve(found)
    lacking = kept - found.available
    beyond = used - found.given if found.given else 0
    if max(lacking, beyond) <= 0:
        return None
    lack = "memory" if resource == "ram" else "disk space"
    if lacking >= beyond:
        detail = (
            f"the machine ran out of {lack}: {mebibytes(found.available)} of {mebibytes(found.total)} are left,"
            f" and the Borglet keeps {mebibytes(kept)} free"
        )
    else:
        detail = (
            f"the machine ran out of {lack}: its tasks used {mebibytes(used)},"
            f" and the machine offers {mebibytes(found.given)}"
        )
    # A little more than needed, or the next allocated page causes the next shortage.
    return Shortage(resource, max(lacking, beyond) + kept // 4, detail)


def grants(
    memory: AvailableMemory, tenants: Sequence[PressureTenant], leaving: Collection[TaskKey]
) -> Mapping[TaskKey, int]:
    """Return, for each task with memory slack, how many bytes of memory it may use now: its usage plus an equal share
    of the machine's unused memory. A task with memory slack may use more memory than its limit.

    `leaving`: tasks that are already ending. The result does not contain them.
    """
    taking = [t for t in tenants if t.task.slack.ram and t.key not in leaving]
    if not taking:
        return {}
    used = sum(t.usage.ram_bytes for t in tenants)
    spare = memory.available - 2 * reserve(memory)
    if memory.given:
        spare = min(spare, int(memory.given * TIGHT_SHARE) - used)
    part = max(0, spare) // len(taking)
    return {t.key: -(-(t.usage.ram_bytes + part) // GRAIN_BYTES) * GRAIN_BYTES for t in taking}
