"""Suggested orders: an order, ready to be placed, that would prevent a rejection for missing quota (§2.5).

    what was refused ─► what is missing now ─► a month of it ─► price, what the cell has left ─► link and command

Computed after the submitting transaction, for a few refusals of a request: each costs some ten queries.
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
from quota.pricing.market import availability, earliest_start, grace_end, is_sold, market_of
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
)

DAYS = 30
# Nobody buys bytes: what is missing is rounded up to these.
_STEP = {RAM: 2**20, DISK: 2**20, DISK_BANDWIDTH: 2**10}
_SUFFIXES = (("Ti", 2**40), ("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10))


@dataclass(frozen=True, slots=True)
class SuggestedOrder:
    """An order of what is missing. `first`, `last`: days in the tenant's time zone, both included.

    `price`: micro-credits now, None with `problem`, the reason why there is none. `left`: the least that the cell
    has to sell in that time, its grace included, where that is less than what is missing; `instead`: other orders of as
    much that it can sell, the same band later first.
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
        """The amounts as job files, the shop and borgctl take them."""
        return {NAMES[i]: quantity_text(i, self.amounts[i]) for i in COUNTED if self.amounts[i]}

    @property
    def path(self) -> str:
        """The shop's page with all of it filled in."""
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
    """Return by (tenant's id, band) what to order so that `wanted`, rejected a moment ago, would be admitted.

    Four queries, and some ten for each pair. A pair to which nothing is missing any more is left out. The price and
    what is left are those of now; nothing is kept back.
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


def quantity_text(index: int, value: int) -> str:
    """A quantity as people type it: `quantity_text(RAM, 2**34)` is `16Gi`."""
    if NAMES[index] in ("cpu", "accelerators"):
        return str(value // 1000) if value % 1000 == 0 else f"{value}m"
    for suffix, size in _SUFFIXES if index in _STEP else ():
        if value and value % size == 0:
            return f"{value // size}{suffix}"
    return str(value)


def _missing(after: Vector, granted: Vector, change: Vector) -> Vector:
    """Return the missing amounts of resources that grow. Nothing has to be bought for the others."""
    missing = [0] * SIZE
    for i in COUNTED:
        if change[i] > 0 and after[i] > granted[i]:
            step = _STEP.get(i, 1)
            missing[i] = -(-(after[i] - granted[i]) // step) * step
    return tuple(missing)


def _remedy(tenant: Tenant, cell: str, band: PriorityBand, missing: Vector) -> SuggestedOrder:
    zone, now = ZoneInfo(tenant.time_zone), clock.now()
    first = now.astimezone(zone).date()
    last = first + dt.timedelta(days=min(DAYS, market_of(cell).longest_days) - 1)
    rules = market_of(cell)
    starts_at, ends_at = now, calendar.midnight(last + dt.timedelta(days=1), zone)
    price, left, problem = None, {}, ""
    try:
        if max(missing) > MAX_QUANTITY:
            raise Rejected(
                "too-large", f"the missing amount is more than one order may have: {MAX_QUANTITY} of each resource"
            )
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
    except Rejected as refusal:
        problem = refusal.detail
    remedy = SuggestedOrder(
        tenant.name, cell, band.name, missing, first, last, starts_at, ends_at, price, left, problem
    )
    return replace(remedy, instead=_instead(remedy, band, zone)) if left else remedy


def _instead(remedy: SuggestedOrder, band: PriorityBand, zone: ZoneInfo) -> tuple[SuggestedOrder, ...]:
    """Return alternatives that the cell can sell: the same in this band later, and now in other bands, dearest
    first.
    """
    rules, found = market_of(remedy.cell), []
    until = grace_end(rules, remedy.starts_at, remedy.ends_at)
    bare = replace(remedy, price=None, left={})
    moment = earliest_start(
        remedy.cell, band, remedy.amounts, until - remedy.starts_at + dt.timedelta(days=1), remedy.starts_at
    )
    if moment is not None:
        # The first whole day; the day more than is needed leaves room for it.
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
