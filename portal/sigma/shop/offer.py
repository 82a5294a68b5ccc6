"""The shop's offer for a wish: availability, price, budget and alternatives."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from urllib.parse import urlencode

from django.utils.formats import date_format
from django.utils.translation import gettext as _

from portal.sigma.shop import availability as drawing
from portal.sigma.shop.availability import DayLeft
from portal.sigma.shop.period import DAY, QuotaPeriod, instants
from portal.sigma.shop.sizes import LABELS, band_words
from portal.sigma.shop.wish import Wish, fields_of
from quota.billing.budgets import spendings
from quota.billing.ledger import balance_of
from quota.billing.spending import Balances, beyond_month
from quota.models import Budget, Market, PriorityBand, Tenant
from quota.once import reads_once
from quota.pricing import market
from quota.pricing.arithmetic import PricePart, part_of
from quota.pricing.price_lists import quote_preview
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal
from quota.vocabulary.resources import NAMES, Vector, describe

# Days drawn after the period.
BESIDE = 14
# The most alternatives that are priced. Each one takes a fixed number of queries.
OTHERS = 6


@dataclass(frozen=True, slots=True)
class PartLine:
    """One part of a price for display. `base` and `amount` in micro-credits."""

    name: str
    label: str
    quantity: int
    hours: str
    base: int
    band: str
    scarcity: str
    amount: int


@dataclass(frozen=True, slots=True)
class ChartLine:
    name: str
    label: str
    least: str
    asked: str
    drawn: drawing.Chart


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another way to get the same amounts. `percent`: price difference to the wish; negative is cheaper."""

    what: str
    but: str
    price: int
    percent: int
    fields: dict[str, str]

    @property
    def query(self) -> str:
        return urlencode(self.fields)


@dataclass(slots=True)
class QuotaOffer:
    """An offer, in micro-credits. `missing`: the shortfall of the budget; `most`: amounts free on all days.

    `month`: the rejection if the monthly budget stops purchases and the offer exceeds it, else None.
    """

    wish: Wish
    price: int
    parts: list[PartLine]
    balances: Balances
    charts: list[ChartLine]
    days: list[DayLeft]
    fits: bool
    most: Vector
    first_fit: dt.date | None
    alternatives: list[Alternative]
    fields: dict[str, str]
    left: Vector
    problem: Rejected | None = None
    month: Rejected | None = None
    width: ClassVar[int] = drawing.WIDTH
    height: ClassVar[int] = drawing.HEIGHT

    @property
    def first_day(self) -> dt.date:
        return self.days[0].day

    @property
    def last_day(self) -> dt.date:
        return self.days[-1].day

    @property
    def per_day(self) -> int:
        return self.price // self.wish.period.days if self.wish.period.days > 1 else 0

    @property
    def after(self) -> int:
        return self.balances.available - self.price

    @property
    def missing(self) -> int:
        return max(0, self.price - self.balances.spendable)

    @property
    def affordable_days(self) -> int:
        """Return the whole days that the budget can pay at this price per day; 0 if none or all."""
        days = self.balances.spendable * self.wish.period.days // self.price if self.price else 0
        return days if 0 < days < self.wish.period.days else 0

    @property
    def can(self) -> bool:
        return self.fits and not self.missing and self.problem is None and self.month is None

    @property
    def most_useful(self) -> bool:
        """Return whether some of every requested resource is free."""
        return all(left > 0 for left, asked in zip(self.most, self.wish.amounts, strict=True) if asked)

    @property
    def _short(self) -> list[tuple[int, str]]:
        """Return the index, and the free amount as text, of each resource that has too little free."""
        amounts = enumerate(zip(self.left, self.wish.amounts, strict=True))
        return [(index, described(index, max(0, left))) for index, (left, asked) in amounts if asked > max(0, left)]

    @property
    def short(self) -> dict[str, str]:
        """Return an error for each field whose resource has too little free."""
        return {NAMES[index]: _("only %s free on these days") % left for index, left in self._short}

    @property
    def shortage(self) -> str:
        """Return a sentence with the resources that are short."""
        text = _("%(left)s free of %(asked)s requested")
        amounts = self.wish.amounts
        short = [text % {"left": left, "asked": described(index, amounts[index])} for index, left in self._short]
        return _("Not enough is free: %s.") % "; ".join(short)


@reads_once()
def offer_for(
    principal: Principal, tenant: Tenant, wish: Wish, cells: Sequence[str], *, now: dt.datetime
) -> QuotaOffer:
    """Return the offer for a wish. `cells`: those that sell. Raises `Rejected` if the wish cannot be priced."""
    rules = market.market_of(wish.cell)
    quote = quote_preview(principal=principal, tenant=tenant, **wish.goods)
    left = left_for(rules, wish.cell, wish.band, wish.starts_at, wish.ends_at)
    days = days_left(wish.cell, wish.band, wish.period, wish.zone, today=now.astimezone(wish.zone).date())
    fits = rules.selling and enough(left, wish.amounts)
    first = None if fits or not rules.selling else _first_fit(rules, wish, now=now)
    offer = QuotaOffer(
        wish=wish,
        price=quote.price,
        parts=[part_line(part_of(part)) for part in quote.parts],
        balances=balance_of(tenant),
        charts=_charts(days, wish),
        days=days,
        fits=fits,
        most=tuple(max(0, min(a, b)) for a, b in zip(left, wish.amounts, strict=True)),
        first_fit=first,
        alternatives=[],
        fields=fields_of(wish),
        left=left,
    )
    if not offer.missing:
        moment = max(wish.starts_at, now)
        state = spendings([tenant], budgets=Budget.objects.filter(tenant=tenant), now=moment)[tenant.pk]
        offer.month = beyond_month(state, quote.price)
    if not rules.selling:
        detail = _("Cell %s sells nothing now, because an SRE has stopped its sales. Choose another cell.")
        detail %= wish.cell
        offer.problem = Rejected("not-selling", detail, fields={"cell": detail})
    offer.alternatives = alternatives(principal, tenant, offer, cells, now=now)
    return offer


def left_for(rules: Market, cell: str, band: str, starts_at: dt.datetime, ends_at: dt.datetime) -> Vector:
    """Return the amounts that are free during the whole period and its grace."""
    return market.availability(cell, band, starts_at, ends_at + _grace(rules, ends_at - starts_at))


def enough(left: Sequence[int], amounts: Sequence[int]) -> bool:
    return all(asked <= has for has, asked in zip(left, amounts, strict=True) if asked)


def days_left(cell: str, band: str, period: QuotaPeriod, zone: Any, *, today: dt.date) -> list[DayLeft]:
    """Return the calendar of a period and some days around it, at least four weeks."""
    first = max(today, period.first - 3 * DAY)
    count = max(28, (period.last - first).days + 1 + BESIDE)
    return [DayLeft(row.date, row.left) for row in market.calendar_days(cell, band, first, count, zone)]


def part_line(part: PricePart) -> PartLine:
    return PartLine(
        part.resource,
        str(LABELS.get(part.resource, part.resource)),
        part.quantity,
        _short(part.hours.numerator / part.hours.denominator),
        part.base,
        _short(part.band_milli / 1000),
        _short(float(part.scarcity_milli) / 1000),
        part.amount,
    )


def alternatives(
    principal: Principal, tenant: Tenant, offer: QuotaOffer, cells: Sequence[str], *, now: dt.datetime
) -> list[Alternative]:
    """Return other bands, cells and weeks in which all amounts are free, cheapest first.

    If the wish itself fits, only cheaper ones are returned.
    """
    found = []
    known: dict[str, Market] = {}
    for what, but, wish in _others(offer, cells, now=now):
        rules = known.get(wish.cell) or known.setdefault(wish.cell, market.market_of(wish.cell))
        left = left_for(rules, wish.cell, wish.band, wish.starts_at, wish.ends_at)
        if not rules.selling or not enough(left, wish.amounts):
            continue
        price = quote_preview(principal=principal, tenant=tenant, **wish.goods).price
        if price < offer.price or not offer.fits:
            percent = round(100 * (price - offer.price) / offer.price) if offer.price else 0
            found.append(Alternative(what, but, price, percent, fields_of(wish)))
    return sorted(found, key=lambda row: (row.price, row.what))


def described(index: int, value: int) -> str:
    text = describe(index, value)
    name = NAMES[index]
    return text if name in ("cpu", "accelerators") else f"{text} {str(LABELS.get(name, name)).lower()}"


def _charts(days: Sequence[DayLeft], wish: Wish) -> list[ChartLine]:
    lines = []
    for index, asked in enumerate(wish.amounts):
        if asked:
            drawn = drawing.chart(days, index, asked=asked, period=wish.period)
            name = NAMES[index]
            lines.append(
                ChartLine(name, str(LABELS[name]), describe(index, drawn.least), describe(index, asked), drawn)
            )
    return lines


def _first_fit(rules: Market, wish: Wish, *, now: dt.datetime) -> dt.date | None:
    length = wish.ends_at - wish.starts_at
    moment = market.earliest_start(
        wish.cell, wish.band, wish.amounts, length + _grace(rules, length), max(now, wish.starts_at)
    )
    if moment is None:
        return None
    local = moment.astimezone(wish.zone)
    begun = local.replace(tzinfo=None) != dt.datetime.combine(local.date(), dt.time())
    day = local.date() + DAY if begun else local.date()
    return day if day > wish.period.first else None


def _others(offer: QuotaOffer, cells: Sequence[str], *, now: dt.datetime) -> Iterator[tuple[str, str, Wish]]:
    """Return the alternatives to check, the likeliest first, at most `OTHERS`."""
    wish = offer.wish
    tried: list[tuple[str, str, Wish]] = []
    bands = {row.name: row for row in PriorityBand.objects.all()}
    here = bands[wish.band]
    for row in sorted(bands.values(), key=lambda row: row.price_milli):
        if row.name != wish.band and market.is_sold(row) and row.price_milli < here.price_milli:
            tried.append((_("as %s") % row.name, band_words(row), _changed(wish, now=now, band=row.name)))
    later = [7 * DAY, 28 * DAY] if offer.fits else [7 * DAY]
    firsts = [wish.period.first + step for step in later]
    if offer.first_fit is not None:
        firsts = [offer.first_fit, *(day for day in firsts if day > offer.first_fit)][:2]
    for first in firsts:
        period = wish.period.moved(first)
        dates = _("%(first)s to %(last)s") % {
            "first": date_format(period.first, "j M"),
            "last": date_format(period.last, "j M Y"),
        }
        tried.append((dates, _("the same length, but later"), _changed(wish, now=now, period=period)))
    for cell in cells:
        if cell != wish.cell:
            tried.append(
                (
                    _("in %s") % cell,
                    _("another cell, where your jobs would have to run"),
                    _changed(wish, now=now, cell=cell),
                )
            )
    return iter(tried[:OTHERS])


def _changed(wish: Wish, *, now: dt.datetime, **changes: Any) -> Wish:
    changed = replace(wish, **changes)
    starts_at, ends_at = instants(changed.period, wish.zone, now=now)
    return replace(changed, starts_at=starts_at, ends_at=ends_at)


def _grace(rules: Market, length: dt.timedelta) -> dt.timedelta:
    return min(dt.timedelta(hours=rules.grace_hours), length)


def _short(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")
