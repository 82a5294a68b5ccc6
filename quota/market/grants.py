"""Quota that SREs grant to tenants (§2.5). The calendar of sold quota counts these grants like orders."""

from __future__ import annotations

import datetime as dt
from typing import Any

from quota import clock, records
from quota.market.order_checks import check_available
from quota.models import Quota, Tenant
from quota.notifications.notices import notify
from quota.pricing.capacity_for_sale import band_named, grace_end, market_locked
from quota.pricing.price_lists import Amounts, amounts_read
from quota.vocabulary.errors import Conflict, invalid
from quota.vocabulary.permissions import Action, Principal, require
from quota.vocabulary.resources import as_mapping, format_vector


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
    """Grant quota to a tenant at a band in a cell, for a period or without an end. Returns the grant.

    Raises `Rejected("sold-out")` if the cell has too little unsold quota at any moment of the period. A grant with
    `beyond_capacity` needs a reason. Such a grant is not checked against the capacity, and does not reduce the quota
    that others may buy. Locks the cell's market.
    """
    require(principal, Action.PLATFORM_ADMIN)
    row = band_named(band)
    vector = amounts_read(amounts)
    begin = starts_at or clock.now()
    if ends_at is not None and ends_at <= begin:
        raise invalid("ends_at", "the end is not after starts_at; give a later end")
    if beyond_capacity and not reason.strip():
        raise invalid("reason", "the reason is missing; give a reason for a grant beyond the capacity of the cell")
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
            check_available(quota)
        quota.save()
        data: dict[str, Any] = {"cell": cell, "band": band, "amounts": as_mapping(vector)}
        entry.append("quota.granted", tenant=tenant.name, **data, beyond_capacity=beyond_capacity, reason=reason)
        subject = f"Granted: {format_vector(vector)}, {band} in {cell}"
        notify(entry, tenant, "quota.granted", subject, reason, "/quota/", **data)
    return quota


def quota_end(*, principal: Principal, quota: Quota) -> Quota:
    """End a grant now, without a grace period. Running jobs continue. Raises `Conflict` if the grant belongs to an
    order.
    """
    require(principal, Action.PLATFORM_ADMIN)
    with records.write(principal) as entry:
        market_locked(quota.cell)
        row = Quota.objects.select_for_update(of=("self",)).select_related("tenant", "band").get(pk=quota.pk)
        if row.order_id is not None:
            raise Conflict(
                "grant-of-order",
                f"grant {row.pk} belongs to order {row.order_id}; cancel the order instead, which refunds it",
                figures={"order": row.order_id},
            )
        now = clock.now()
        if row.ends_at is None or row.ends_at > now:
            row.ends_at = row.grace_until = max(now, row.starts_at + dt.timedelta(microseconds=1))
            row.save(update_fields=["ends_at", "grace_until"])
            data = {"cell": row.cell, "band": row.band.name}
            entry.append("quota.ended", tenant=row.tenant.name, **data)
            subject = f"Ended: {format_vector(row.amounts)}, {row.band.name} in {row.cell}"
            notify(entry, row.tenant, "quota.ended", subject, row.reason, "/quota/", "warning", **data)
    return row
