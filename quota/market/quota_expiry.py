"""Quota that expires while jobs use it (§2.5): this module finds such quota, notifies the tenants, and returns the
tenants whose jobs must be demoted.

    quota ends ─► grace period: jobs continue, tenant is notified ─► larger requests are rejected ─► demotion is due
                  └── the tenant buys quota, or jobs shrink: the expiry is closed

Larger requests are rejected after the grace period. The demotion is due `drop_after_hours` later, if a rule of the cell
or a used-up budget requires it. Scheduling demotes the jobs; `expiries_due` returns the tenants and bands.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connection

from quota import clock, records
from quota.admission.admission import COUNTED
from quota.billing.budgets import submitting_stopped
from quota.models import Market, PriorityBand, QuotaExpiry, Tenant
from quota.notifications.notices import notify
from quota.pricing.capacity_for_sale import market_of
from quota.vocabulary.bands import FREE_PRIORITY
from quota.vocabulary.permissions import system
from quota.vocabulary.resources import NAMES, format_quantities

ME = system("market")
DROP = "drop"


def _sums(condition: str, letter: str) -> str:
    return ", ".join(f"sum(amounts[{i + 1}]) FILTER (WHERE {condition}) AS {letter}{i}" for i in COUNTED)


def _beyond(letter: str) -> str:
    return " OR ".join(f"u.used[{i + 1}] > coalesce(g.{letter}{i}, 0)" for i in COUNTED)


_COUNTS = "fin IS NULL OR fin > %(now)s"
_BOUGHT = "ends_at IS NULL OR ends_at > %(now)s"
_FOUND = (
    f"WITH g AS (SELECT tenant_id, cell, band_id, {_sums(_COUNTS, 'c')}, {_sums(_BOUGHT, 'b')},"
    " max(fin) FILTER (WHERE fin <= %(now)s) AS expired_at, max(ends_at) FILTER (WHERE ends_at <= %(now)s) AS ended_at,"
    " max(fin) FILTER (WHERE ends_at <= %(now)s AND fin > %(now)s) AS grace_until"
    " FROM (SELECT *, coalesce(grace_until, ends_at) AS fin FROM quota_quota WHERE starts_at <= %(now)s) AS each"
    " GROUP BY tenant_id, cell, band_id)"
    f" SELECT u.tenant_id, u.cell, u.band_id, {_beyond('c')}, g.expired_at, g.ended_at, g.grace_until, u.used,"
    f" ARRAY[{', '.join(f'coalesce(g.b{i}, 0)::text' for i in COUNTED)}]"
    " FROM quota_quotause AS u LEFT JOIN g USING (tenant_id, cell, band_id)"
    f" WHERE {_beyond('b')} ORDER BY u.tenant_id, u.cell, u.band_id"
)

_Key = tuple[int, str, int]


@dataclass(frozen=True, slots=True)
class _Found:
    over: bool
    expired_at: dt.datetime | None
    ended_at: dt.datetime | None
    grace_until: dt.datetime | None
    missing: Mapping[int, int]


def expiries_watch() -> int:
    """Create, update and delete the `QuotaExpiry` rows, and notify the tenants. Each row stands for quota of a tenant
    that has ended although the tenant's jobs still need it.

    Returns the number of changed rows. Makes two queries if nothing changes. Each changed row has its own transaction,
    which first reads the row again.
    """
    now = clock.now()
    found = _found(now)
    known = {(row.tenant_id, row.cell, row.band_id): row for row in QuotaExpiry.objects.all()}
    new = [key for key, one in found.items() if key not in known or (one.over and known[key].over_at is None)]
    tenants = Tenant.objects.in_bulk({tenant for tenant, _, _ in new})
    bands = PriorityBand.objects.in_bulk({band for _, _, band in new})
    for key in new:
        _advance(tenants[key[0]], key[1], bands[key[2]], found[key], now)
    gone = [row.pk for key, row in known.items() if key not in found]
    back = [row.pk for key, row in known.items() if key in found and row.over_at is not None and not found[key].over]
    if gone:
        QuotaExpiry.objects.filter(pk__in=gone).delete()
    if back:
        QuotaExpiry.objects.filter(pk__in=back).update(over_at=None)
    return len(new) + len(gone) + len(back)


def expiries_due(cell: str) -> list[QuotaExpiry]:
    """Return the expired quota because of which jobs must be demoted now: one row per tenant and band.

    Either a rule of the cell or the tenant's used-up budget requires the demotion.
    """
    market = Market.objects.filter(cell=cell).first() or Market(cell=cell)
    last = clock.now() - dt.timedelta(hours=market.drop_after_hours)
    rows = list(QuotaExpiry.objects.filter(cell=cell, over_at__lte=last).select_related("tenant", "band"))
    if market.after_grace == DROP or not rows:
        return rows
    stopped = submitting_stopped({row.tenant_id for row in rows})
    return [row for row in rows if stopped.get(row.tenant_id) == DROP]


def _found(now: dt.datetime) -> dict[_Key, _Found]:
    with connection.cursor() as cursor:
        cursor.execute(_FOUND, {"now": now})
        return {
            (tenant, cell, band): _Found(
                over,
                expired,
                ended,
                grace,
                {i: used[i] - int(has) for i, has in zip(COUNTED, bought, strict=True) if used[i] > int(has)},
            )
            for tenant, cell, band, over, expired, ended, grace, used, bought in cursor.fetchall()
        }


def _advance(tenant: Tenant, cell: str, band: PriorityBand, found: _Found, now: dt.datetime) -> None:
    market = market_of(cell)
    with records.write(ME) as entry:
        row, made = QuotaExpiry.objects.select_for_update(of=("self",)).get_or_create(
            tenant=tenant, cell=cell, band=band, defaults={"began_at": found.ended_at or now}
        )
        if not made and (row.over_at is not None or not found.over):
            return
        data: dict[str, Any] = {
            "cell": cell,
            "band": band.name,
            "missing": {NAMES[i]: v for i, v in found.missing.items()},
        }
        if found.over:
            row.over_at = found.expired_at or now
            row.save(update_fields=["over_at"])
            kind, level, when = "quota.grace-over", "urgent", {"over_at": row.over_at.isoformat()}
            entry.append("quota.grace-over", tenant=tenant.name, **data, **when)
            subject = f"The grace period of {band.name} quota in cell {cell} has ended"
            text = (
                f"more than the quota that counts since {clock.format_time(row.over_at, tenant.time_zone)}. The jobs"
                " continue, and you can shrink, restart and end them. New jobs and growth are rejected."
            )
        else:
            until = found.grace_until or now
            kind, level, when = "quota.grace", "warning", {"until": until.isoformat()}
            entry.append("quota.grace", tenant=tenant.name, **data, **when)
            subject = f"{band.name} quota in cell {cell} has ended, but jobs still use it"
            text = (
                "more than the quota in force. The grace period lasts until"
                f" {clock.format_time(until, tenant.time_zone)}. After that, new jobs and growth are rejected."
            )
        text = f"{text}{_format_demotion(market)} Buy quota, or lower the limits of the jobs."
        text = f"Live jobs of {tenant.name} request {format_quantities(found.missing)} {text}"
        url = f"/shop/?tenant={tenant.name}&cell={cell}&band={band.name}"
        notify(entry, tenant, kind, subject, text, url, level, **data, **when)


def _format_demotion(market: Market) -> str:
    if market.after_grace != DROP:
        return ""
    return (
        f" {market.drop_after_hours} hours after the grace period, jobs are moved to priority {FREE_PRIORITY}, which is"
        " free, until the other jobs are within the quota."
    )
