"""The capacity of cells, which the package `scheduling` reports, and the quota that is sold at a given time (§2.5)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

from django.db import connection

from quota.models import CellCapacity
from quota.vocabulary.resources import SIZE, Vector


def publish(*, cell: str, capacity: Sequence[int], revision: int) -> None:
    """Store the capacity of a cell. If a newer `revision` is already stored, nothing changes.

    Scheduling calls this function in the transaction that changes the capacity.
    """
    row, created = CellCapacity.objects.select_for_update().get_or_create(
        cell=cell, defaults={"capacity": list(capacity), "revision": revision}
    )
    if not created and row.revision < revision:
        # The comparison with sold quota takes long, so under the cell's lock the row is only marked.
        kept = len(capacity) >= len(row.capacity) and all(
            new >= old for new, old in zip(capacity, row.capacity, strict=False)
        )
        row.capacity, row.revision, row.lowered = list(capacity), revision, row.lowered or not kept
        row.save(update_fields=["capacity", "revision", "lowered"])


class Sold(NamedTuple):
    """Sold quota of a cell at a band, as vectors over `quota.vocabulary.resources.AXIS`.

    `sold`: the sum of the orders that hold capacity, and of the grants whose grace period has not ended. Grants beyond
    capacity are not in this sum. `granted`: the sum of all grants in force, including grants beyond capacity.
    """

    cell: str
    band: str
    sold: Vector
    granted: Vector


def sold_at(now: dt.datetime, *, cell: str | None = None) -> list[Sold]:
    """Return the sold quota at the time `now`, one item per cell and band.

    `cell`: None for all cells. Bands without sold quota are omitted.
    """
    with connection.cursor() as cursor:
        cursor.execute(_SOLD, {"now": now, "cell": cell})
        return [
            Sold(of, band, tuple(map(int, sums[:SIZE])), tuple(map(int, sums[SIZE:])))
            for of, band, *sums in cursor.fetchall()
        ]


def _sums(column: str) -> str:
    return ", ".join(f"coalesce(sum({column}[{place}]), 0)" for place in range(1, SIZE + 1))


# Orders that replace others count as in `quota.pricing.capacity_for_sale`.
_SOLD = f"""
SELECT each.cell, b.name, {_sums("sold")}, {_sums("granted")} FROM (
  SELECT cell, band_id, CASE WHEN NOT beyond_capacity THEN amounts END AS sold,
         CASE WHEN ends_at IS NULL OR ends_at > %(now)s THEN amounts END AS granted
  FROM quota_quota WHERE (%(cell)s::text IS NULL OR cell = %(cell)s) AND starts_at <= %(now)s
    AND (ends_at IS NULL OR coalesce(grace_until, ends_at) > %(now)s)
  UNION ALL
  SELECT o.cell, o.band_id,
         CASE WHEN old.ending > %(now)s THEN ARRAY(
           SELECT greatest(0, o.amounts[i] - old.amounts[i]) FROM generate_series(1, {SIZE}) AS i ORDER BY i
         ) ELSE o.amounts END, NULL
  FROM quota_order AS o LEFT JOIN LATERAL (
    SELECT amounts, coalesce(grace_until, ends_at, 'infinity') AS ending FROM quota_quota
    WHERE order_id = o.replaces_id AND NOT beyond_capacity ORDER BY id LIMIT 1
  ) AS old ON true
  WHERE (%(cell)s::text IS NULL OR o.cell = %(cell)s) AND o.state IN ('pending', 'approved')
    AND o.starts_at <= %(now)s AND coalesce(o.grace_until, o.ends_at) > %(now)s
) AS each JOIN quota_priorityband AS b ON b.id = each.band_id
GROUP BY each.cell, b.name ORDER BY each.cell, b.name
"""
