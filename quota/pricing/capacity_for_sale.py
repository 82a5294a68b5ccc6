"""The market of a cell (§2.5): its rules, sold quota over time, and available quota.

*Sold quota* consists of grants and orders. A grant counts until its grace period ends. A grant beyond capacity does not
count. An order without a grant counts if it is pending or approved. If such an order replaces an order that has a
grant, only the additional amounts count.

All prod bands share one limit: the capacity minus the headroom (the part that is never sold to prod). The limit of each
other band is the capacity times the factor of the band. Ports are not sold, because they belong to machines. Priority 0
is not sold, because it is free.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from django.db import connection
from django.db.models import Q
from django.db.models.functions import Coalesce

from quota import clock, records
from quota.models import HOLDING, ApprovalRule, CellCapacity, Market, Order, PriorityBand, Quota
from quota.request_cache import caching, once
from quota.vocabulary import calendar
from quota.vocabulary.bands import FREE_PRIORITY
from quota.vocabulary.calendar import CalendarStep, Span
from quota.vocabulary.errors import NotFound, invalid
from quota.vocabulary.money import CREDIT
from quota.vocabulary.permissions import Action, Principal, require
from quota.vocabulary.resources import PORTS, SIZE, ZERO, Vector

SOLD = tuple(index for index in range(SIZE) if index != PORTS)
# Approval rules of a new installation: small orders need no approval, an owner approves medium orders, and an SRE
# approves larger orders.
DEFAULT_RULES = ((100, "auto", 1_000 * CREDIT), (200, "owner", 10_000 * CREDIT), (300, "sre", None))
# An order without an end needs capacity for this long.
_AGES = dt.timedelta(days=36_600)
_FOR_EVER = "infinity"
# Lowest and highest value of each rule of a market that is a number.
_BOUNDS = {
    "headroom_milli": (0, 1000),
    "grace_hours": (0, 24 * 366),
    "drop_after_hours": (0, 24 * 366),
    "quote_minutes": (1, 60 * 24 * 31),
    "approval_hours": (1, 24 * 366),
    "longest_days": (1, 3660),
}
_CHOICES: dict[str, tuple[bool | str, ...]] = {"selling": (True, False), "after_grace": ("refuse", "drop")}

_SOLD = """
SELECT band_id, greatest(begin, %(begin)s), CASE WHEN ending < %(until)s THEN ending END,
       coalesce(sum(amounts[1]), 0)::text, coalesce(sum(amounts[2]), 0)::text, coalesce(sum(amounts[3]), 0)::text,
       coalesce(sum(amounts[4]), 0)::text, coalesce(sum(amounts[5]), 0)::text
FROM (
  SELECT band_id, starts_at AS begin, coalesce(grace_until, ends_at, 'infinity') AS ending, amounts
  FROM quota_quota WHERE cell = %(cell)s AND NOT beyond_capacity AND order_id IS DISTINCT FROM %(without)s
    AND (grace_until > %(begin)s OR grace_until IS NULL)
  UNION ALL
  SELECT o.band_id, piece.begin, piece.ending,
         CASE WHEN piece.beside THEN ARRAY(
           SELECT greatest(0, o.amounts[i] - old.amounts[i]) FROM generate_series(1, %(size)s) AS i ORDER BY i
         ) ELSE o.amounts END
  FROM (
    SELECT id, band_id, amounts, starts_at, coalesce(grace_until, ends_at) AS ending, replaces_id FROM quota_order
    WHERE cell = %(cell)s AND state IN ('pending', 'approved')
  ) AS o
  LEFT JOIN LATERAL (
    SELECT amounts, coalesce(grace_until, ends_at) AS ending FROM quota_quota
    WHERE order_id = o.replaces_id AND order_id <> %(without)s AND NOT beyond_capacity ORDER BY id LIMIT 1
  ) AS old ON true
  CROSS JOIN LATERAL (VALUES
    (true, o.starts_at, least(o.ending, coalesce(old.ending, o.starts_at))),
    (false, greatest(o.starts_at, old.ending), o.ending)
  ) AS piece (beside, begin, ending)
  WHERE piece.begin < piece.ending
) AS span
WHERE begin < %(until)s AND ending > %(begin)s
GROUP BY 1, 2, 3
"""


class Holding(NamedTuple):
    """A grant, or an order that has no grant yet. The amounts count as sold until `ends_at`, the end of the grace
    period.
    """

    grant: int | None
    order: int | None
    tenant: str
    begins_at: dt.datetime
    ends_at: dt.datetime | None
    band_id: int
    amounts: Vector


@dataclass(frozen=True, slots=True)
class SaleCapacity:
    """The quota that one band of a cell may sell (*limit*) and has sold, from a given time on.

    `limit`, `sold`: the limit and the sold quota of all bands that share a limit with this band, together. `own_limit`,
    `own_sold`: the same for this band alone. If the shared limit is always reached first, `own_limit` and `own_sold`
    are equal to `limit` and `sold`.
    """

    band: PriorityBand
    limit: Vector
    sold: tuple[CalendarStep, ...]
    own_limit: Vector
    own_sold: tuple[CalendarStep, ...]

    def left(self, begins_at: dt.datetime, ends_at: dt.datetime | None) -> Vector:
        shared = calendar.left(self.limit, self.sold, begins_at, ends_at)
        if self.own_sold is self.sold:
            return _sellable(shared)
        own = calendar.left(self.own_limit, self.own_sold, begins_at, ends_at)
        return _sellable(tuple(map(min, shared, own)))

    def over_time(self, after: dt.datetime) -> list[CalendarStep]:
        """Return the amounts that can still be sold, as a step function of time that begins at `after`."""
        if self.own_sold is self.sold:
            there = calendar.from_(self.sold, after)
            columns = zip(*(level for _, level in there), strict=True)
            left = zip(
                *(
                    [limit - sold for sold in column] if index in SOLD else repeat(0, len(there))
                    for index, (limit, column) in enumerate(zip(self.limit, columns, strict=True))
                ),
                strict=True,
            )
            return [CalendarStep(step.at, level) for step, level in zip(there, left, strict=True)]
        moments = sorted({after, *(step.at for step in (*self.sold, *self.own_sold) if step.at > after)})
        shared, own = _levels(self.sold, moments), _levels(self.own_sold, moments)
        levels = map(self.free, shared, own)
        return [CalendarStep(moment, level) for moment, level in zip(moments, levels, strict=True)]

    def free(self, sold: Vector, own_sold: Vector) -> Vector:
        """Return the amounts that can still be sold, negative if too much is sold.

        `sold`: the amounts that all bands sharing the limit have sold together; `own_sold`: the amounts that this band
        has sold.
        """
        given = zip(self.limit, sold, self.own_limit, own_sold, strict=True)
        return _sellable(tuple(min(limit - all_sold, own_limit - own) for limit, all_sold, own_limit, own in given))


@dataclass(frozen=True, slots=True)
class CalendarDay:
    """One day in a time zone: the limit of a band, and the largest amounts sold and smallest amounts left that day."""

    date: dt.date
    begins_at: dt.datetime
    ends_at: dt.datetime
    limit: Vector
    sold: Vector
    left: Vector


@once
def market_of(cell: str) -> Market:
    """Return the market of a cell: the rules by which it sells quota. If the market has no row yet, create the row with
    the default rules.
    """
    return Market.objects.filter(cell=cell).first() or _made(cell)


def grace_end(market: Market, starts_at: dt.datetime, ends_at: dt.datetime) -> dt.datetime:
    """Return the end of the grace period of quota for the given period.

    The grace period is never longer than that period.
    """
    grace = min(dt.timedelta(hours=market.grace_hours), ends_at - starts_at)
    return ends_at + min(grace, dt.datetime.max.replace(tzinfo=dt.UTC) - ends_at)


@once
def cell_require(cell: str) -> None:
    """Raise `NotFound` if scheduling has not reported a capacity of the cell."""
    if not CellCapacity.objects.filter(cell=cell).exists():
        known = list(CellCapacity.objects.order_by("cell").values_list("cell", flat=True)[:20])
        raise NotFound("cell", cell, known=known)


def market_locked(cell: str) -> Market:
    """Lock and return the market of a cell, until the caller's transaction ends. Every sale takes this lock first."""
    market_of(cell)
    return Market.objects.select_for_update().get(cell=cell)


def market_set(*, principal: Principal, cell: str, **changes: Any) -> Market:
    """Change the rules by which a cell sells quota. `changes`: the new values by rule. Sold quota keeps its grace
    period.

    Raises `Rejected` if a value is not valid; the error names the rule.
    """
    require(principal, Action.PLATFORM_ADMIN)
    for name, value in changes.items():
        _check_rule(name, value)
    with records.write(principal) as entry:
        market = market_locked(cell)
        changed = {name: value for name, value in changes.items() if getattr(market, name) != value}
        if changed:
            for name, value in changed.items():
                setattr(market, name, value)
            market.save(update_fields=list(changed))
            entry.append("market.set", cell=cell, **changed)
    return market


@once
def bands_by_name() -> dict[str, PriorityBand]:
    """Return all bands, highest first, by name."""
    return {row.name: row for row in PriorityBand.objects.all()}


def band_named(name: str) -> PriorityBand:
    """Return the band with this name. Raises `NotFound` if there is none; the error lists the existing names."""
    known = bands_by_name()
    if name not in known:
        raise NotFound("band", name, known=list(known))
    return known[name]


def is_sold(band: PriorityBand) -> bool:
    """Return whether quota of a band is sold: the band is not free, and its over-selling factor is above 0."""
    return band.high > FREE_PRIORITY and band.oversell_milli > 0


def sale_capacity(
    cell: str, band: PriorityBand | str, begins_at: dt.datetime, ends_at: dt.datetime | None = None, *, without: int = 0
) -> SaleCapacity:
    """Return the limit of a band and its sold quota in a period. Makes three queries.

    `without`: the id of an order whose grant is not counted.
    """
    row = band_named(band) if isinstance(band, str) else band
    market = market_of(cell)
    spans = _spans(cell, begins_at, ends_at, without)
    shared = _prod_bands() | {row.id} if row.prod else {row.id}
    capacity = _capacity(cell)
    own_limit = tuple(value * row.oversell_milli // 1000 for value in capacity)
    kept = 1000 - market.headroom_milli
    limit = tuple(value * kept // 1000 for value in capacity) if row.prod else own_limit
    together = calendar.steps(span for band_id, span in spans if band_id in shared)
    if all(one >= most for one, most in zip(own_limit, limit, strict=True)):
        # The shared limit is always reached first.
        return SaleCapacity(row, limit, together, limit, together)
    own = calendar.steps(span for band_id, span in spans if band_id == row.id)
    return SaleCapacity(row, limit, together, own_limit, own)


def availability(
    cell: str, band: PriorityBand | str, starts_at: dt.datetime, ends_at: dt.datetime | None, *, without: int = 0
) -> Vector:
    """Return, per resource, the smallest amount that is left at any time of a period.

    An amount is negative if too much is sold.
    """
    return sale_capacity(cell, band, starts_at, ends_at, without=without).left(starts_at, ends_at)


def calendar_days(cell: str, band: PriorityBand | str, first: dt.date, days: int, tz: ZoneInfo) -> list[CalendarDay]:
    """Return the limit of a band, and the amounts sold and left, for each of `days` days from `first` on.

    `tz`: the time zone of the days.
    """
    begin, end = calendar.midnight(first, tz), calendar.midnight(first + days * calendar.DAY, tz)
    there = sale_capacity(cell, band, begin, end)
    shared = calendar.days(there.sold, first, days, tz)
    own = calendar.days(there.own_sold, first, days, tz)
    limit = _sellable(tuple(map(min, there.limit, there.own_limit)))
    return [
        CalendarDay(*day[:3], limit, _sellable(day.sold), there.free(day.sold, alone.sold))
        for day, alone in zip(shared, own, strict=True)
    ]


def earliest_start(
    cell: str,
    band: PriorityBand | str,
    amounts: Sequence[int],
    length: dt.timedelta | None,
    after: dt.datetime | None = None,
    *,
    without: int = 0,
) -> dt.datetime | None:
    """Return the first time, not before `after`, at which a period can begin in which `amounts` are always left.

    Return None if there is no such time.

    `length`: the length of the period; None for a period without an end. `without`: the id of an order whose grant is
    not counted.
    """
    begin = after or clock.now()
    there = sale_capacity(cell, band, begin, without=without)
    long = _AGES if length is None else length
    return calendar.earliest(there.over_time(begin), _sellable(amounts), long, begin)


def sold_steps(
    cell: str, bands: Sequence[PriorityBand], begins_at: dt.datetime, ends_at: dt.datetime | None = None
) -> tuple[CalendarStep, ...]:
    """Return the sold quota of several bands together, as a step function of time."""
    wanted = {band.id for band in bands}
    return calendar.steps(span for band_id, span in _spans(cell, begins_at, ends_at) if band_id in wanted)


def holdings(cell: str, bands: Iterable[int], after: dt.datetime) -> list[Holding]:
    """Return the grants and orders whose amounts count as sold at any time after `after`.

    `bands`: ids of bands. Makes two queries.
    """
    until = Coalesce("grace_until", "ends_at")
    fields = ("tenant__name", "starts_at", "until", "band_id", "amounts")
    grants = Quota.objects.filter(cell=cell, band__in=bands, beyond_capacity=False).annotate(until=until)
    counted = grants.filter(Q(until=None) | Q(until__gt=after))
    orders = Order.objects.filter(cell=cell, band__in=bands, state__in=HOLDING).annotate(until=until)
    return [
        *(Holding(*row) for row in counted.values_list("id", "order_id", *fields)),
        *(Holding(None, *row) for row in orders.values_list("id", *fields)),
    ]


def capacity_of(cell: str) -> Vector:
    """Return the capacity of a cell, as last reported by scheduling. Resources that are not sold have 0."""
    return _sellable(_capacity(cell))


def _spans(cell: str, begin: dt.datetime, until: dt.datetime | None, without: int = 0) -> list[tuple[int, Span]]:
    """Return pairs of a band's id and a span. A span is a period with the amounts that are sold during it.

    Spans are cut to the period from `begin` to `until`. Amounts with the same times are added up. `without`: the id of
    an order that does not count. Within `reads_once`, one query serves all periods.
    """
    if not caching() or begin < (horizon := _horizon()):
        return _sold(cell, begin, until or _FOR_EVER, without)
    return [
        (band_id, Span(max(begins_at, begin), _end_within(ends_at, until), amounts))
        for band_id, (begins_at, ends_at, amounts) in _sold(cell, horizon, _FOR_EVER, without)
        if (until is None or begins_at < until) and (ends_at is None or ends_at > begin)
    ]


def _end_within(ends_at: dt.datetime | None, until: dt.datetime | None) -> dt.datetime | None:
    """Return the end of a span in a period that ends at `until`, or None if the span does not end in the period."""
    return ends_at if ends_at is not None and (until is None or ends_at < until) else None


@once
def _horizon() -> dt.datetime:
    """Return the time from which on `_spans` reads sold quota within `reads_once`: two days ago."""
    return clock.now() - 2 * calendar.DAY


@once
def _sold(cell: str, begin: dt.datetime, until: dt.datetime | str, without: int) -> list[tuple[int, Span]]:
    with connection.cursor() as cursor:
        given = {"cell": cell, "begin": begin, "until": until, "size": SIZE, "without": without}
        cursor.execute(_SOLD, given)  # type: ignore[arg-type]
        return [
            (band_id, Span(begins_at, ends_at, (*(int(value) for value in amounts), 0)))
            for band_id, begins_at, ends_at, *amounts in cursor.fetchall()
        ]


def _prod_bands() -> set[int]:
    return {row.id for row in bands_by_name().values() if row.prod}


@once
def _capacity(cell: str) -> Vector:
    found = CellCapacity.objects.filter(cell=cell).values_list("capacity", flat=True).first()
    return tuple((*found, *ZERO)[:SIZE]) if found is not None else ZERO


def _sellable(vector: Sequence[int]) -> Vector:
    """Return the vector with 0 for resources that are not sold."""
    return tuple(value if index in SOLD else 0 for index, value in enumerate(vector[:SIZE]))


def _levels(function: Sequence[CalendarStep], moments: Sequence[dt.datetime]) -> list[Vector]:
    """Return the amounts of the step function `function` at each time in `moments`. `moments` must be sorted."""
    levels: list[Vector] = []
    position, level = 0, ZERO
    for moment in moments:
        while position < len(function) and function[position].at <= moment:
            level = function[position].level
            position += 1
        levels.append(level)
    return levels


def _made(cell: str) -> Market:
    row, made = Market.objects.get_or_create(cell=cell)
    if made and not Market.objects.exclude(pk=row.pk).exists() and not ApprovalRule.objects.exists():
        ApprovalRule.objects.bulk_create(
            (ApprovalRule(rank=rank, approver=approver, most_price=most) for rank, approver, most in DEFAULT_RULES),
            ignore_conflicts=True,
        )
    return row


def _check_rule(name: str, value: Any) -> None:
    """Check one rule of a market. Raises `Rejected` if `value` is not valid; the error names the rule."""
    if name in _BOUNDS:
        least, most = _BOUNDS[name]
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise invalid(name, f"the value {value!r} is not accepted; give a whole number from {least} to {most}")
    elif name not in _CHOICES:
        raise invalid(name, f"the rule {name!r} is unknown; give one of {', '.join((*_BOUNDS, *_CHOICES))}")
    elif not any(value == choice and type(value) is type(choice) for choice in _CHOICES[name]):
        accepted = " or ".join(str(choice).lower() for choice in _CHOICES[name])
        raise invalid(name, f"the value {value!r} is not accepted; give {accepted}")
