"""Admission control (§2.5): may this be asked for? Answered inside the transaction that submits.

Quota is checked against what the tenant's live jobs ask for together at that band in that cell, their limits, not
their usage. Priority zero is free and unlimited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import connection
from django.db.models import Q
from django.utils import timezone

from quota.bands import FREE_PRIORITY, Band, band_of
from quota.errors import Refused
from quota.models import PriorityBand, Quota, QuotaUse
from quota.resources import NAMES, PORTS, SIZE, ZERO, Vector, add, describe

# Ports belong to a machine, not to a tenant; a cell's own named resources are not sold.
COUNTED = tuple(index for index in range(SIZE) if index != PORTS)


@dataclass(frozen=True, slots=True)
class Ask:
    """`change`: what the tenant's live jobs would ask for beyond today; negative gives back."""

    tenant_id: int
    tenant: str
    priority: int
    change: Vector


def bands() -> list[Band]:
    """The bands in force, highest first."""
    return [row.as_band() for row in PriorityBand.objects.all()]


def admit(*, cell: str, asks: Sequence[Ask]) -> list[Refused | None]:
    """Charge each ask in order; what does not fit is refused and not charged, the others are.

    Returns one verdict per ask, None for admitted. Locks the `QuotaUse` rows of all (tenant, band) pairs
    concerned, in order of their ids, until the end of the caller's transaction. Five queries at most,
    whatever the number of asks.
    """
    known = {row.name: row for row in PriorityBand.objects.all()}
    ranges = [row.as_band() for row in known.values()]
    verdicts: list[Refused | None] = [None] * len(asks)
    placed: list[tuple[int, Ask, str]] = []
    for position, ask in enumerate(asks):
        if ask.priority == FREE_PRIORITY:
            continue
        try:
            placed.append((position, ask, band_of(ask.priority, ranges).name))
        except LookupError as error:
            verdicts[position] = Refused("no-band", str(error), fields={"priority": str(error)})
    if not placed:
        return verdicts
    pairs = sorted({(ask.tenant_id, known[band].id) for _, ask, band in placed})
    used = _lock_use(cell, pairs)
    granted = _granted(cell, pairs)
    changed: set[tuple[int, int]] = set()
    for position, ask, band in placed:
        pair = (ask.tenant_id, known[band].id)
        after = add(used[pair], ask.change[:SIZE])
        verdict = _verdict(ask, cell, band, granted[pair], used[pair], after)
        if verdict is None:
            used[pair] = tuple(max(0, value) for value in after)
            changed.add(pair)
        verdicts[position] = verdict
    _store_use(cell, {pair: used[pair] for pair in changed})
    return verdicts


def release(*, cell: str, asks: Sequence[Ask]) -> None:
    """Give back what ended jobs asked for: `change` is what they held, positive."""
    back = [Ask(a.tenant_id, a.tenant, a.priority, tuple(-v for v in a.change)) for a in asks]
    admit(cell=cell, asks=back)


def _verdict(ask: Ask, cell: str, band: str, granted: Vector, used: Vector, after: Vector) -> Refused | None:
    short = {
        NAMES[i]: {
            "asked": ask.change[i],
            "granted": granted[i],
            "in_use": used[i],
            "short": after[i] - granted[i],
        }
        for i in COUNTED
        if ask.change[i] > 0 and after[i] > granted[i]
    }
    if not short:
        return None
    parts = "; ".join(
        f"{name}: asked {describe(NAMES.index(name), f['asked'])}, "
        f"{describe(NAMES.index(name), max(0, f['granted'] - f['in_use']))} left of "
        f"{describe(NAMES.index(name), f['granted'])}, short by {describe(NAMES.index(name), f['short'])}"
        for name, f in short.items()
    )
    return Refused(
        "quota-exceeded",
        f"tenant {ask.tenant} has too little {band} quota in cell {cell}: {parts}. "
        f"Ask for less, buy quota, or submit at priority {FREE_PRIORITY}, which is free.",
        fields={f"limit.{name}": f"short by {f['short']}" for name, f in short.items()},
        figures={"tenant": ask.tenant, "cell": cell, "band": band, "short": short},
        status=403,
    )


def _lock_use(cell: str, pairs: list[tuple[int, int]]) -> dict[tuple[int, int], Vector]:
    tenants, band_ids = zip(*pairs, strict=True)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO quota_quotause (tenant_id, cell, band_id, used)"
            " SELECT t, %s, b, %s FROM unnest(%s::bigint[], %s::bigint[]) AS wanted(t, b)"
            " ORDER BY t, b ON CONFLICT (tenant_id, cell, band_id) DO NOTHING",
            [cell, list(ZERO), list(tenants), list(band_ids)],
        )
    rows = (
        QuotaUse.objects.select_for_update()
        .filter(cell=cell, tenant_id__in=tenants, band_id__in=band_ids)
        .order_by("id")
    )
    found = {(row.tenant_id, row.band_id): tuple(row.used) for row in rows}
    return {pair: found[pair] for pair in pairs}


def _granted(cell: str, pairs: list[tuple[int, int]]) -> dict[tuple[int, int], Vector]:
    now = timezone.now()
    total = dict.fromkeys(pairs, ZERO)
    rows = Quota.objects.filter(
        Q(ends_at__isnull=True) | Q(ends_at__gt=now),
        cell=cell,
        starts_at__lte=now,
        tenant_id__in=[tenant for tenant, _ in pairs],
    ).values_list("tenant_id", "band_id", "amounts")
    for tenant_id, band_id, amounts in rows:
        if (tenant_id, band_id) in total:
            total[(tenant_id, band_id)] = add(total[(tenant_id, band_id)], amounts)
    return total


def _store_use(cell: str, used: dict[tuple[int, int], Vector]) -> None:
    if not used:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE quota_quotause AS u SET used = n.used::bigint[]"
            " FROM unnest(%s::bigint[], %s::bigint[], %s::text[]) AS n(t, b, used)"
            " WHERE u.cell = %s AND u.tenant_id = n.t AND u.band_id = n.b",
            [
                [tenant for tenant, _ in used],
                [band for _, band in used],
                ["{" + ",".join(map(str, vector)) + "}" for vector in used.values()],
                cell,
            ],
        )
