"""Decide how much disk space packages may take, and which unused packages to remove when they take more. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Set

from borglet.packages.store import StoredPackage


def excess_of(taken_bytes: int, wanted_bytes: int, *, budget_bytes: int, free_bytes: int, keep_free_bytes: int) -> int:
    """Return how many bytes of packages must be removed to make space for `wanted_bytes`. `taken_bytes`: the size of
    all packages on the disk. `budget_bytes`: the maximum size of all packages. `free_bytes`: the free disk space, of
    which `keep_free_bytes` must stay free.
    """
    over_budget = taken_bytes + wanted_bytes - budget_bytes
    over_disk = wanted_bytes + keep_free_bytes - free_bytes
    return max(0, over_budget, over_disk)


def to_remove(installed: Iterable[StoredPackage], in_use: Set[str], *, excess_bytes: int) -> list[StoredPackage]:
    """Return unused packages that together have `excess_bytes`, the least recently used first.

    If all unused packages together have less than `excess_bytes`, return all of them.
    """
    chosen: list[StoredPackage] = []
    for each in sorted(installed, key=lambda each: (each.used_at, each.digest)):
        if excess_bytes <= 0:
            break
        if each.digest not in in_use:
            chosen.append(each)
            excess_bytes -= each.disk_bytes
    return chosen
