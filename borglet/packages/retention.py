"""Which packages leave a machine that runs out of room for them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Set

from borglet.packages.store import StoredPackage


def to_remove(installed: Iterable[StoredPackage], in_use: Set[str], *, excess_bytes: int) -> list[StoredPackage]:
    """The least recently used first, until `excess_bytes` of disk are free; never one that is in use.

    What is not in use at all may be too little: then all of it."""
    chosen: list[StoredPackage] = []
    for each in sorted(installed, key=lambda each: (each.used_at, each.digest)):
        if excess_bytes <= 0:
            break
        if each.digest not in in_use:
            chosen.append(each)
            excess_bytes -= each.disk_bytes
    return chosen


def excess_of(taken_bytes: int, wanted_bytes: int, *, budget_bytes: int, free_bytes: int, keep_free_bytes: int) -> int:
    """How much must go before `wanted_bytes` more may come: for the budget, and for the disk."""
    over_budget = taken_bytes + wanted_bytes - budget_bytes
    over_disk = wanted_bytes + keep_free_bytes - free_bytes
    return max(0, over_budget, over_disk)
