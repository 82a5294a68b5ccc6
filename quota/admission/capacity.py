"""Capacity of cells as scheduling reports it, the basis for selling quota (§2.5)."""

from __future__ import annotations

from collections.abc import Sequence

from quota.models import CellCapacity


def publish(*, cell: str, capacity: Sequence[int], revision: int) -> None:
    """Called by scheduling inside the transaction that changes the cell. An older revision changes nothing."""
    row, created = CellCapacity.objects.select_for_update().get_or_create(
        cell=cell, defaults={"capacity": list(capacity), "revision": revision}
    )
    if not created and row.revision < revision:
        # Whether more is sold than there is takes long to find out: it is only marked here, under the cell's lock.
        kept = len(capacity) >= len(row.capacity) and all(
            new >= old for new, old in zip(capacity, row.capacity, strict=False)
        )
        row.capacity, row.revision, row.lowered = list(capacity), revision, row.lowered or not kept
        row.save(update_fields=["capacity", "revision", "lowered"])
