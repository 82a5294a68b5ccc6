"""What cells have, as scheduling reports it: the ground that quota is sold on (§2.5)."""

from __future__ import annotations

from collections.abc import Sequence

from quota.models import CellCapacity


def publish(*, cell: str, capacity: Sequence[int], revision: int) -> None:
    """Called by scheduling inside the transaction that changes the cell. An older revision changes nothing."""
    row, created = CellCapacity.objects.select_for_update().get_or_create(
        cell=cell, defaults={"capacity": list(capacity), "revision": revision}
    )
    if not created and row.revision < revision:
        row.capacity, row.revision = list(capacity), revision
        row.save(update_fields=["capacity", "revision"])
