"""The shop's offer for a request: the price, whether enough quota is left, the effect on the budget, alternatives."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from django.utils.formats import date_format
from django.utils.translation import gettext as _

from portal.sigma.shop.availability import Chart, DayLeft, chart
from portal.sigma.shop.period import DAY, instants
from portal.sigma.shop.request_form import Wish, fields_of
from portal.sigma.shop.resource_labels import band_words, described
from quota.billing.budgets import spendings
from quota.billing.ledger import balance_of
from quota.billing.spending import Balances, beyond_month
from quota.models import Budget, Market, Tenant
from quota.pricing import capacity_for_sale
from quota.pricing.price_lists import quote_preview
from quota.request_cache import reads_once
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal
from quota.vocabulary.resources import NAMES, Vector

# The number of days after the period that the charts show.
BESIDE = 14
# The most alternatives that the shop prices. Each one takes a fixed number of queries.
OTHERS = 6


@dataclass(frozen=True, slots=True)
class Alternative:
    """Another way to get the requested amounts. `percent`: the difference in price; negative if it is cheaper."""

    what: str
    but: str
    price: int
    percent: int
    wish: Wish


@dataclass(slots=True)
class QuotaOffer:
    """The shop's answer to a request for quota: the price, and whether enough quota is left. Money is in micro-credits.

    `left`: the amounts that can still be sold. `first_fit`: the first day from which the whole request fits, or None if
    there is none. `problem`: why the cell sells no quota. `month`: why the monthly budget does not allow the order.
    """

    wish: Wish
    price: int
    parts: list[dict[str, Any]]
    balances: Balances
    charts: list[Chart]
    fits: bool
    left: Vector
    first_fit: dt.date | None
    alternatives: list[Alternative] = field(default_factory=list)
    problem: Rejected | None = None
    month: Rejected | None = None

    @property
    def fields(self) -> dict[str, str]:
        return fields_of(self.wish)

    @property
    def most(self) -> Vector:
        """Return the amount of each resource that can be ordered: the requested amount, or less if less is left."""
        return tuple(max(0, min(pair)) for pair in zip(self.left, self.wish.amounts, strict=True))

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
        """Return for how many whole days the tenant's budget is enough. Return 0 if it is enough for the whole period,
        or for less than one day.
        """
        days = self.balances.spendable * self.wish.period.days // self.price if self.price else 0
        return days if 0 < days < self.wish.period.days else 0

    @property
    def can(self) -> bool:
        return self.fits and not self.missing and self.problem is None and self.month is None

    @property
    def most_useful(self) -> bool:
        """Return whether at least a part of every requested amount can be ordered."""
        return all(left > 0 for left, asked in zip(self.most, self.wish.amounts, strict=True) if asked)

    @property
    def _short(self) -> list[tuple[int, str]]:
        """Return each resource of which not enough is left: its index in the list of resources, and the amount left."""
        pairs = enumerate(zip(self.most, self.wish.amounts, strict=True))
        return [(index, described(index, most)) for index, (most, asked) in pairs if asked > most]

    @property
    def short(self) -> dict[str, str]:
        """Return an error text for each form field whose amount is more than what is left, by the name of the field."""
        return {NAMES[index]: _("the cell has only %s free on these days") % left for index, left in self._short}

    @property
    def shortage(self) -> str:
        """Return a sentence that lists the resources of which not enough is left."""
        text = _("%(asked)s requested, but only %(left)s free")
        amounts = self.wish.amounts
        short = [text % {"left": left, "asked": described(index, amounts[index])} for index, left in self._short]
        return _("The cell does not have enough free quota: %s.") % "; ".join(short)


@reads_once()
def offer_for(
    principal: Principal, tenant: Tenant, wish: Wish, cells: Sequence[str], *, now: dt.datetime
) -> QuotaOffer:
    """Return the shop's offer for the request `wish`. `cells`: the cells that sell quota. Raises `Rejected` if the shop
    cannot compute a price for the request.
    """
    rules = capacity_for_sale.market_of(wish.cell)
    quote = quote_preview(principal=principal, tenant=tenant, **wish.goods)
    left = _left_for(wish)
    days = _days_left(wish, today=now.astimezone(wish.zone).date())
    fits = rules.selling and _enough(left, wish.amounts)
    offer = QuotaOffer(
        wish=wish,
        price=quote.price,
        parts=quote.parts,
        balances=balance_of(tenant),
        charts=[chart(days, i, asked=asked, period=wish.period) for i, asked in enumerate(wish.amounts) if asked],
        fits=fits,
        left=left,
        first_fit=None if fits or not rules.selling else _first_fit(rules, wish, now=now),
    )
    if not offer.missing:
        moment = max(wish.starts_at, now)
        state = spendings([tenant], budgets=Budget.objects.filter(tenant=tenant), now=moment)[tenant.pk]
        offer.month = beyond_month(state, quote.price)
    if not rules.selling:
        detail = _("Cell %s sells no quota now, because an SRE stopped its sales. Choose another cell.") % wish.cell
        offer.problem = Rejected("not-selling", detail, fields={"cell": detail})
    offer.alternatives = _alternatives(principal, tenant, offer, cells, now=now)
    return offer


def _left_for(wish: Wish) -> Vector:
    """Return, per resource, the quota that can still be sold for the whole requested period and its grace period."""
    grace_end = capacity_for_sale.grace_end(capacity_for_sale.market_of(wish.cell), wish.starts_at, wish.ends_at)
    return capacity_for_sale.availability(wish.cell, wish.band, wish.starts_at, grace_end)


def _enough(left: Sequence[int], amounts: Sequence[int]) -> bool:
    return all(asked <= has for has, asked in zip(left, amounts, strict=True) if asked)


def _days_left(wish: Wish, *, today: dt.date) -> list[DayLeft]:
    """Return the amounts that can still be sold on each requested day and on days around it, for at least 28 days."""
    first = max(today, wish.period.first - 3 * DAY)
    count = max(28, (wish.period.last - first).days + 1 + BESIDE)
    days = capacity_for_sale.calendar_days(wish.cell, wish.band, first, count, wish.zone)
    return [DayLeft(day.date, day.left) for day in days]


def _alternatives(
    principal: Principal, tenant: Tenant, offer: QuotaOffer, cells: Sequence[str], *, now: dt.datetime
) -> list[Alternative]:
    """Return the alternatives for which enough quota is left, cheapest first. If enough quota is left for the request
    itself, return only alternatives that are cheaper than the request.
    """
    found = []
    for what, but, wish in _candidates(offer, cells, now=now):
        if capacity_for_sale.market_of(wish.cell).selling and _enough(_left_for(wish), wish.amounts):
            price = quote_preview(principal=principal, tenant=tenant, **wish.goods).price
            if price < offer.price or not offer.fits:
                percent = round(100 * (price - offer.price) / offer.price) if offer.price else 0
                found.append(Alternative(what, but, price, percent, wish))
    return sorted(found, key=lambda row: (row.price, row.what))


def _first_fit(rules: Market, wish: Wish, *, now: dt.datetime) -> dt.date | None:
    """Return the first day after the requested start from which enough quota is left for a period of the same length.
    Return None if there is no such day.
    """
    length = capacity_for_sale.grace_end(rules, wish.starts_at, wish.ends_at) - wish.starts_at
    moment = capacity_for_sale.earliest_start(wish.cell, wish.band, wish.amounts, length, max(now, wish.starts_at))
    if moment is None:
        return None
    local = moment.astimezone(wish.zone)
    begun = local.replace(tzinfo=None) != dt.datetime.combine(local.date(), dt.time())
    day = local.date() + DAY if begun else local.date()
    return day if day > wish.period.first else None


def _candidates(offer: QuotaOffer, cells: Sequence[str], *, now: dt.datetime) -> list[tuple[str, str, Wish]]:
    """Return at most `OTHERS` possible alternatives, each with a title and a comment. They are not checked yet."""
    wish = offer.wish
    tried: list[tuple[str, str, Wish]] = []
    bands = capacity_for_sale.bands_by_name()
    here = bands[wish.band]
    for row in sorted(bands.values(), key=lambda row: row.price_milli):
        if row.name != wish.band and capacity_for_sale.is_sold(row) and row.price_milli < here.price_milli:
            tried.append((_("in band %s") % row.name, band_words(row), _changed(wish, now=now, band=row.name)))
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
        tried.append((dates, _("a period of the same length, but later"), _changed(wish, now=now, period=period)))
    for cell in cells:
        if cell != wish.cell:
            comment = _("another cell; your jobs would have to run there")
            tried.append((_("in cell %s") % cell, comment, _changed(wish, now=now, cell=cell)))
    return tried[:OTHERS]


def _changed(wish: Wish, *, now: dt.datetime, **changes: Any) -> Wish:
    changed = replace(wish, **changes)
    starts_at, ends_at = instants(changed.period, wish.zone, now=now)
    return replace(changed, starts_at=starts_at, ends_at=ends_at)
