"""Quota granted to tenants (§2.5). The market that sells it builds on this."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping

from django.utils import timezone

from quota import records
from quota.errors import NotFound, Refused
from quota.models import PriorityBand, Quota, Tenant
from quota.permissions import Action, Principal, require
from quota.resources import QuantityError, Vector, as_mapping, parse_vector


def quota_grant(
    *,
    principal: Principal,
    tenant: Tenant,
    cell: str,
    band: str,
    amounts: Vector | Mapping[str, int | float | str],
    starts_at: dt.datetime | None = None,
    ends_at: dt.datetime | None = None,
    reason: str = "",
) -> Quota:
    """Let a tenant ask for `amounts` more, at a band, in a cell, for a period. Raises `Refused`."""
    require(principal, Action.PLATFORM_ADMIN)
    row = PriorityBand.objects.filter(name=band).first()
    if row is None:
        raise NotFound("band", band, known=list(PriorityBand.objects.values_list("name", flat=True)))
    try:
        vector = parse_vector(amounts) if isinstance(amounts, Mapping) else tuple(amounts)
    except QuantityError as error:
        raise Refused("invalid", str(error), fields={"amounts": str(error)}) from error
    begin = starts_at or timezone.now()
    if ends_at is not None and ends_at <= begin:
        raise Refused("invalid", "ends_at is not after starts_at", fields={"ends_at": "not after starts_at"})
    with records.write(principal) as entry:
        quota = Quota.objects.create(
            tenant=tenant, cell=cell, band=row, amounts=list(vector), starts_at=begin, ends_at=ends_at,
            reason=reason,
        )  # fmt: skip
        entry.append("quota.granted", tenant=tenant.name, cell=cell, band=band, amounts=as_mapping(vector))
    return quota


def quota_end(*, principal: Principal, quota: Quota) -> Quota:
    """End a grant now. Jobs that run go on; new ones find less."""
    require(principal, Action.PLATFORM_ADMIN)
    with records.write(principal) as entry:
        row = Quota.objects.select_for_update().select_related("tenant", "band").get(pk=quota.pk)
        now = timezone.now()
        if row.ends_at is None or row.ends_at > now:
            row.ends_at = max(now, row.starts_at + dt.timedelta(microseconds=1))
            row.save(update_fields=["ends_at"])
            entry.append("quota.ended", tenant=row.tenant.name, cell=row.cell, band=row.band.name)
    return row
