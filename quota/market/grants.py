"""Quota granted to tenants (§2.5) by SREs, beside what they buy; both draw on the same calendar."""

from __future__ import annotations

import datetime as dt
from typing import Any

from quota import clock, records
from quota.market.order_checks import fits
from quota.market.order_steps import sentence
from quota.models import Quota, Tenant
from quota.notifications.notices import notify
from quota.pricing.market import band_named, grace_end, market_locked
from quota.pricing.price_lists import Amounts, amounts_read
from quota.vocabulary.errors import Conflict, Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, require
from quota.vocabulary.resources import as_mapping


def quota_grant(
    *,
    principal: Principal,
    tenant: Tenant,
    cell: str,
    band: str,
    amounts: Amounts,
    starts_at: dt.datetime | None = None,
    ends_at: dt.datetime | None = None,
    reason: str = "",
    beyond_capacity: bool = False,
) -> Quota:
    """Let a tenant ask for `amounts` more, at a band, in a cell, for a period; without an end for ever.

    Rejected when it is more than is left at any instant (`sold-out`), unless `beyond_capacity`: that needs a reason and
    is left out of the calendar, so it takes nothing away from what others may buy. Locks the cell's market.
    """
    require(principal, Action.PLATFORM_ADMIN)
    row = band_named(band)
    vector = amounts_read(amounts)
    begin = starts_at or clock.now()
    if ends_at is not None and ends_at <= begin:
        raise Rejected("invalid", "ends_at is not after starts_at", fields={"ends_at": "not after starts_at"})
    if beyond_capacity and not reason.strip():
        raise invalid("reason", "give a reason for granting more than the cell has")
    with records.write(principal) as entry:
        market = market_locked(cell)
        until = grace_end(market, begin, ends_at) if ends_at is not None else None
        quota = Quota(
            tenant=tenant,
            cell=cell,
            band=row,
            amounts=list(vector),
            starts_at=begin,
            ends_at=ends_at,
            grace_until=until,
            reason=reason,
            beyond_capacity=beyond_capacity,
        )
        if not beyond_capacity:
            fits(quota)
        quota.save()
        data: dict[str, Any] = {"cell": cell, "band": band, "amounts": as_mapping(vector)}
        entry.append("quota.granted", tenant=tenant.name, **data, beyond_capacity=beyond_capacity, reason=reason)
        subject = f"Granted: {sentence(vector)}, {band} in {cell}"
        notify(entry, tenant, "quota.granted", subject, reason, "/quota/", **data)
    return quota


def quota_end(*, principal: Principal, quota: Quota) -> Quota:
    """End a grant now, without a grace. Jobs that run go on; new ones find less. What was bought ends by its order."""
    require(principal, Action.PLATFORM_ADMIN)
    with records.write(principal) as entry:
        market_locked(quota.cell)
        row = Quota.objects.select_for_update(of=("self",)).select_related("tenant", "band").get(pk=quota.pk)
        if row.order_id is not None:
            raise Conflict(
                "grant-of-order",
                f"grant {row.pk} was bought with order {row.order_id}; cancel the order, so that it is refunded",
                figures={"order": row.order_id},
            )
        now = clock.now()
        if row.ends_at is None or row.ends_at > now:
            row.ends_at = row.grace_until = max(now, row.starts_at + dt.timedelta(microseconds=1))
            row.save(update_fields=["ends_at", "grace_until"])
            data = {"cell": row.cell, "band": row.band.name}
            entry.append("quota.ended", tenant=row.tenant.name, **data)
            subject = f"Ended: {sentence(row.amounts)}, {row.band.name} in {row.cell}"
            notify(entry, row.tenant, "quota.ended", subject, row.reason, "/quota/", "warning", **data)
    return row
