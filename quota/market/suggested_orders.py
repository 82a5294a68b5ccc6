"""Suggested orders: orders that would prevent a rejection for missing quota (§2.5).

    rejected amounts ─► amounts that are missing now ─► order for a month ─► price, availability ─► link and command

The suggestions are computed after the transaction that rejected the jobs, and only for a few rejections per request.
Each suggestion needs about ten queries.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from quota import clock
from quota.admission.admission import COUNTED, granted_now
from quota.models import PriorityBand, QuotaUse, Tenant
from quota.pricing.capacity_for_sale import availability, earliest_start, grace_end, is_sold, market_of
from quota.pricing.price_lists import quote_preview
from quota.vocabulary import calendar, money
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import system
from quota.vocabulary.resources import (
    DISK,
    DISK_BANDWIDTH,
    MAX_QUANTITY,
    NAMES,
    RAM,
    SIZE,
    ZERO,
    Vector,
    add,
    as_mapping,
    format_input,
)

DAYS = 30
# Missing amounts are rounded up to multiples of these, so that an order has no odd bytes.
_STEP = {RAM: 2**20, DISK: 2**20, DISK_BANDWIDTH: 2**10}


@dataclass(frozen=True, slots=True)
class SuggestedOrder:
    """An order for missing quota.

    `first`, `last`: the first and the last day of the order, in the tenant's time zone. `price`: the current price in
    micro-credits, or None if it cannot be computed; `problem` has the reason. `left`: what the cell can still sell in
    that period, for each resource of which this is less than the missing amount. `instead`: other orders for the same
    amounts that the cell can sell; an order in the same band comes first.
    """

    tenant: str
    cell: str
    band: str
    amounts: Vector
    first: dt.date
    last: dt.date
    starts_at: dt.datetime
    ends_at: dt.datetime
    price: int | None = None
    left: Mapping[str, int] = field(default_factory=dict)
    problem: str = ""
    instead: tuple[SuggestedOrder, ...] = ()

    @property
    def available(self) -> bool:
        return not self.left and not self.problem

    def texts(self) -> dict[str, str]:
        """Return the amounts by name of the resource, in the notation of job files, such as `16Gi`."""
        return {NAMES[i]: format_input(NAMES[i], self.amounts[i]) for i in COUNTED if self.amounts[i]}

    @property
    def path(self) -> str:
        """Return the path of the portal's page on which a user can place this order. The query fills in the form."""
        fields = {"tenant": self.tenant, "cell": self.cell, "band": self.band}
        days = {"from": self.first.isoformat(), "until": self.last.isoformat()}
        return f"/shop/?{urlencode(fields | days | self.texts())}"

    @property
    def command(self) -> str:
        sizes = " ".join(f"--{name.replace('_', '-')} {text}" for name, text in self.texts().items())
        return (
            f"borgctl quota buy --tenant {self.tenant} --cell {self.cell} --band {self.band} {sizes}"
            f" --from {self.first.isoformat()} --until {self.last.isoformat()}"
        )

    def as_json(self) -> dict[str, Any]:
        amounts = {name: value for name, value in as_mapping(self.amounts).items() if value}
        return {
            "tenant": self.tenant,
            "cell": self.cell,
            "band": self.band,
            "amounts": amounts,
            "sizes": self.texts(),
            "from": self.first.isoformat(),
            "until": self.last.isoformat(),
            "starts_at": self.starts_at.isoformat(),
            "ends_at": self.ends_at.isoformat(),
            "price": self.price,
            "price_text": None if self.price is None else money.format_credits(self.price),
            "available": self.available,
            "left": dict(self.left),
            "problem": self.problem,
            "path": self.path,
            "command": self.command,
            "instead": [
                {
                    "band": other.band,
                    "from": other.first.isoformat(),
                    "until": other.last.isoformat(),
                    "path": other.path,
                    "command": other.command,
                }
                for other in self.instead
            ],
        }


def remedies(cell: str, wanted: Mapping[tuple[int, str], Vector]) -> dict[tuple[int, str], SuggestedOrder]:
    """Return orders for quota that would prevent a rejection of the amounts `wanted`. The keys are (tenant id, band).

    Makes four queries, and about ten more per tenant and band. Tenants and bands that now have enough quota are
    omitted. Prices and availability are current; nothing is reserved.
    """
    names = {band for _, band in wanted}
    bands = {row.name: row for row in PriorityBand.objects.filter(name__in=names)}
    tenants = Tenant.objects.in_bulk({tenant for tenant, _ in wanted})
    pairs = {(tenant, bands[band].id): (tenant, band) for tenant, band in wanted if tenant in tenants and band in bands}
    used = {
        (row.tenant_id, row.band_id): tuple(row.used)
        for row in QuotaUse.objects.filter(cell=cell, tenant__in=tenants, band__in=bands.values())
    }
    granted = granted_now(cell, pairs)
    found = {}
    for pair, key in pairs.items():
        missing = _missing(add(used.get(pair, ZERO), wanted[key][:SIZE]), granted[pair], wanted[key])
        if any(missing):
            found[key] = _remedy(tenants[pair[0]], cell, bands[key[1]], missing)
    return found


def _missing(after: Vector, granted: Vector, change: Vector) -> Vector:
    """Return the amounts by which a request would exceed the quota, only for resources that the request increases.

    `after`: the used quota after the request; `granted`: the granted quota; `change`: what the request adds.
    """
    missing = [0] * SIZE
    for i in COUNTED:
        if change[i] > 0 and after[i] > granted[i]:
            step = _STEP.get(i, 1)
            missing[i] = -(-(after[i] - granted[i]) // step) * step
    return tuple(missing)


def _remedy(tenant: Tenant, cell: str, band: PriorityBand, missing: Vector) -> SuggestedOrder:
    zone, now = ZoneInfo(tenant.time_zone), clock.now()
    first = now.astimezone(zone).date()
    rules = market_of(cell)
    last = first + dt.timedelta(days=min(DAYS, rules.longest_days) - 1)
    starts_at, ends_at = now, calendar.midnight(last + dt.timedelta(days=1), zone)
    price, left, problem = None, {}, ""
    try:
        if max(missing) > MAX_QUANTITY:
            detail = f"the missing amount is too large for one order; request at most {MAX_QUANTITY} of each resource"
            raise Rejected("too-large", detail)
        # Any member that may submit may see a price. Only ordering requires the right to buy.
        price = quote_preview(
            principal=system("admission"),
            tenant=tenant,
            cell=cell,
            band=band.name,
            amounts=missing,
            starts_at=starts_at,
            ends_at=ends_at,
        ).price
        there = availability(cell, band, starts_at, grace_end(rules, starts_at, ends_at))
        left = {NAMES[i]: max(0, there[i]) for i in COUNTED if missing[i] > there[i]}
    except Rejected as rejection:
        problem = rejection.detail
    remedy = SuggestedOrder(
        tenant.name, cell, band.name, missing, first, last, starts_at, ends_at, price, left, problem
    )
    return replace(remedy, instead=_instead(remedy, band, zone)) if left else remedy


def _instead(remedy: SuggestedOrder, band: PriorityBand, zone: ZoneInfo) -> tuple[SuggestedOrder, ...]:
    """Return other orders that the cell can sell: an order in this band that begins later, and orders in lower bands
    that begin now, highest band first.
    """
    rules, found = market_of(remedy.cell), []
    until = grace_end(rules, remedy.starts_at, remedy.ends_at)
    bare = replace(remedy, price=None, left={})
    moment = earliest_start(
        remedy.cell, band, remedy.amounts, until - remedy.starts_at + dt.timedelta(days=1), remedy.starts_at
    )
    if moment is not None:
        # The order starts at the next midnight. The search above has an extra day for this.
        first = moment.astimezone(zone).date() + dt.timedelta(days=1)
        last = first + (remedy.last - remedy.first)
        starts_at, ends_at = (calendar.midnight(first, zone), calendar.midnight(last + dt.timedelta(days=1), zone))
        found.append(replace(bare, first=first, last=last, starts_at=starts_at, ends_at=ends_at))
    for other in PriorityBand.objects.filter(low__lt=band.low).order_by("-low"):
        if is_sold(other):
            there = availability(remedy.cell, other, remedy.starts_at, until)
            if all(there[i] >= remedy.amounts[i] for i in COUNTED if remedy.amounts[i]):
                found.append(replace(bare, band=other.name))
    return tuple(found)
