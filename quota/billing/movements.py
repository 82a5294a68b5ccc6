"""Movements on a tenant's accounts, with the balance after each movement. Each page of movements takes one query.

A *movement* is the effect of one posting on the accounts of one tenant. A transfer between two tenants causes one
movement for each of them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate

from django.db import connection

from quota.models import AccountKind, LedgerEntry, Tenant
from quota.vocabulary import months
from quota.vocabulary.permissions import Action, Principal, require

# The maximum number of rows in a file, newest first. Users who need more rows export one month at a time.
MOST_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class Movement:
    """The changes of a tenant's available, held and owed money by one posting, in micro-credits.

    `available_after`: the available money after the posting; `balance_after`: the sum of available, held and owed
    money.
    """

    posting: int
    at: dt.datetime
    kind: str
    text: str
    actor: str
    order: int | None
    available: int
    held: int
    owed: int
    available_after: int
    balance_after: int

    @property
    def change(self) -> int:
        return self.available + self.held + self.owed


@dataclass(frozen=True, slots=True)
class RevenueDay:
    """Revenue from a tenant on one day of its time zone, in micro-credits.

    `refunds`: 0, or the refunded amount as a negative number. `spent`: the total since the first day of the month.
    """

    date: dt.date
    begins_at: dt.datetime
    orders: int
    usage: int
    refunds: int
    spent: int


def movements(
    principal: Principal,
    tenant: Tenant,
    *,
    first: int = 0,
    number: int = 50,
    since: dt.datetime | None = None,
    until: dt.datetime | None = None,
) -> list[Movement]:
    """Return up to `number` movements of the tenant's money, newest first. The newest `first` movements are skipped.

    `since`, `until`: return only movements between these times. Raises `Forbidden` if the caller may not see the
    tenant's money.
    """
    require(principal, Action.BILLING_VIEW, tenant=tenant.name)
    with connection.cursor() as cursor:
        cursor.execute(
            _MOVEMENTS, {"tenant": tenant.id, "first": first, "number": number, "since": since, "until": until}
        )
        return [Movement(*row) for row in cursor.fetchall()]


def movements_number(tenant: Tenant) -> int:
    return LedgerEntry.objects.filter(account__tenant=tenant).values("posting_id").distinct().count()


def month_days(principal: Principal, tenant: Tenant, month: dt.date, *, until: dt.datetime) -> list[RevenueDay]:
    """Return the revenue of each day of a month up to `until`. `month`: its first day. Makes one query."""
    require(principal, Action.BILLING_VIEW, tenant=tenant.name)
    begins_at, ends_at = months.bounds(month, tenant.time_zone)
    given = {"tenant": tenant.id, "begin": begins_at, "end": ends_at, "zone": tenant.time_zone}
    with connection.cursor() as cursor:
        cursor.execute(_DAYS, given)  # type: ignore[arg-type]
        found = {day: tuple(map(int, sums)) for day, *sums in cursor.fetchall()}
    last = min(months.day_of(until, tenant.time_zone), months.after(month) - dt.timedelta(days=1))
    dates = list(_dates(month, max(last, month, *(day for day in found))))
    spent = accumulate(sum(found.get(date, (0, 0, 0))) for date in dates)
    return [
        RevenueDay(date, months.begin_of(date, tenant.time_zone), *found.get(date, (0, 0, 0)), so_far)  # type: ignore[call-arg]
        for date, so_far in zip(dates, spent, strict=True)
    ]


COLUMNS = (
    *("posting", "time", "tenant", "kind", "order", "text", "actor"),
    *("available", "held", "owed", "available_after", "balance_after"),
)


def table(movements: list[Movement], *, tenant: str) -> Iterator[Sequence[object]]:
    """Yield the rows of a CSV file with the movements, the header first. Amounts are in micro-credits."""
    yield COLUMNS
    for one in movements:
        known = {**asdict(one), "time": one.at.astimezone(dt.UTC).isoformat(), "tenant": tenant}
        yield [known[name] for name in COLUMNS]


def _dates(first: dt.date, last: dt.date) -> Iterator[dt.date]:
    for number in range((last - first).days + 1):
        yield first + dt.timedelta(days=number)


# The balance after a movement is the current balance less all later movements, so a page needs no older rows.
_MOVEMENTS = f"""
WITH moved AS (
  SELECT e.posting_id,
         coalesce(sum(e.amount) FILTER (WHERE a.kind = '{AccountKind.AVAILABLE}'), 0) AS available,
         coalesce(sum(e.amount) FILTER (WHERE a.kind = '{AccountKind.HELD}'), 0) AS held,
         coalesce(sum(e.amount) FILTER (WHERE a.kind = '{AccountKind.OWED}'), 0) AS owed
  FROM quota_ledgerentry AS e JOIN quota_account AS a ON a.id = e.account_id
  WHERE a.tenant_id = %(tenant)s GROUP BY e.posting_id
), now AS (
  SELECT coalesce(sum(balance) FILTER (WHERE kind = '{AccountKind.AVAILABLE}'), 0) AS available,
         coalesce(sum(balance), 0) AS balance
  FROM quota_account WHERE tenant_id = %(tenant)s
), summed AS (
  SELECT moved.*,
         now.available - coalesce(sum(moved.available) OVER later, 0) AS available_after,
         now.balance - coalesce(sum(moved.available + moved.held + moved.owed) OVER later, 0) AS balance_after
  FROM moved CROSS JOIN now
  WINDOW later AS (ORDER BY posting_id DESC ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
SELECT p.id, p.occurred_at, p.kind, p.text, p.actor, p.order_id, s.available::bigint, s.held::bigint, s.owed::bigint,
       s.available_after::bigint, s.balance_after::bigint
FROM summed AS s JOIN quota_posting AS p ON p.id = s.posting_id
WHERE (%(since)s::timestamptz IS NULL OR p.occurred_at >= %(since)s)
  AND (%(until)s::timestamptz IS NULL OR p.occurred_at < %(until)s)
ORDER BY p.id DESC OFFSET %(first)s LIMIT %(number)s
"""
_DAYS = f"""
SELECT (p.occurred_at AT TIME ZONE %(zone)s)::date,
       coalesce(sum(e.amount) FILTER (WHERE p.kind <> 'usage' AND e.amount > 0), 0),
       coalesce(sum(e.amount) FILTER (WHERE p.kind = 'usage'), 0),
       coalesce(sum(e.amount) FILTER (WHERE p.kind <> 'usage' AND e.amount < 0), 0)
FROM quota_posting AS p JOIN quota_ledgerentry AS e ON e.posting_id = p.id
JOIN quota_account AS a ON a.id = e.account_id AND a.kind = '{AccountKind.REVENUE}'
WHERE p.tenant_id = %(tenant)s AND p.occurred_at >= %(begin)s AND p.occurred_at < %(end)s
GROUP BY 1 ORDER BY 1
"""
