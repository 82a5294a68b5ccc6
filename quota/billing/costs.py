"""Costs of a tenant's quota and usage in a period, split by job, team, band, cell or label.

An order's charge, less refunds, is spread evenly over the time of its grant. The charge is split by resource in the
same proportions as the price. In each hour, a job is charged a share of the cost of each resource in the job's band and
cell. The share is the job's limit, divided by the larger of the bought quota and the sum of all limits. The rest is the
cost of unused quota. A job also pays for its own usage. Quota that an SRE granted costs nothing.

The costs of a month are the sum of the costs of its hours. This sum differs from the total of the invoice, which lists
the postings of the month: the whole price of an order for three months is on one invoice.

Metered hours come from PostgreSQL and from the archive (`quota.models.metered_hours`). Costs are computed when they are
read, so a refund also changes the costs of archived hours.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Sequence
from decimal import Decimal
from typing import NamedTuple

from django.db import connection

from quota import clock
from quota.models import Tenant
from quota.models.metered_hours import HoursWanted, archived_parts, metered_hours
from quota.vocabulary.errors import invalid
from quota.vocabulary.resources import NAMES

# The keys by which costs are split, each as SQL over a metered row `m` and over a pool `p` of bought quota.
_KEYS = {
    "job": ("m.tenant || '/' || m.cell || '/' || m.job", "''"),
    "team": ("m.tenant", "p.tenant"),
    "band": ("m.band", "p.band"),
    "cell": ("m.cell", "p.cell"),
    "label": ("COALESCE(m.label, '')", "''"),
}
SPLITS = tuple(_KEYS)
LONGEST = dt.timedelta(days=400)

# The unique index of metered hours begins with cell and hour. One access per hour finds the rows of a job.
_RECENT_PRICE = """
SELECT coalesce(sum(price), 0) FROM quota_meteredhour
WHERE cell = %(cell)s AND job_uid = %(job_uid)s AND hour >= %(since)s AND hour = ANY(ARRAY(SELECT generate_series(
    greatest(%(since)s::timestamptz, (SELECT min(hour) FROM quota_meteredhour WHERE cell = %(cell)s)), %(now)s,
    interval '1 hour')))"""

_SPLIT = """
WITH paid AS (
    SELECT o.id, o.tenant_id, o.cell, o.band_id, o.amounts, o.parts, sum(e.amount) AS net
    FROM quota_order o JOIN quota_posting po ON po.order_id = o.id JOIN quota_ledgerentry e ON e.posting_id = po.id
    JOIN quota_account a ON a.id = e.account_id AND a.kind = 'revenue'
    WHERE o.tenant_id = ANY(%(tenants)s) AND o.starts_at < %(until)s AND o.ends_at > %(since)s
    GROUP BY o.id HAVING sum(e.amount) > 0
), granted AS (
    SELECT paid.*, COALESCE(g.begins, o.starts_at) AS begins, COALESCE(g.ends, o.ended_at, o.ends_at) AS ends
    FROM paid JOIN quota_order o ON o.id = paid.id LEFT JOIN LATERAL (
        SELECT min(q.starts_at) AS begins, max(q.ends_at) AS ends FROM quota_quota q WHERE q.order_id = paid.id
    ) g ON true
), part AS (
    SELECT g.id, g.tenant_id, g.cell, g.band_id, g.begins, g.ends, g.net,
        extract(epoch FROM g.ends - g.begins) AS lasts,
        COALESCE(x.place, 0) AS place, COALESCE(g.amounts[x.place], 0) AS amount, COALESCE(x.share, 1) AS share,
        COALESCE(x.whole, 1) AS whole
    FROM granted g LEFT JOIN LATERAL (
        SELECT array_position(%(names)s::text[], r.resource) AS place, r.amount AS share, sum(r.amount) OVER () AS whole
        FROM jsonb_to_recordset(g.parts) AS r(resource text, amount numeric) WHERE r.amount > 0
    ) x ON true
    WHERE g.ends > g.begins
), pool AS (
    SELECT t.name AS tenant, part.tenant_id, part.cell, part.band_id, COALESCE(b.name, '') AS band, h.hour, part.place,
        sum(part.net * part.share * s.seconds / (part.whole * part.lasts)) AS cost,
        sum(part.amount * s.seconds) AS bought
    FROM part JOIN quota_tenant t ON t.id = part.tenant_id LEFT JOIN quota_priorityband b ON b.id = part.band_id
    CROSS JOIN LATERAL generate_series(
        date_trunc('hour', greatest(part.begins, %(since)s), 'UTC'),
        least(part.ends, %(until)s) - interval '1 microsecond', interval '1 hour') AS h(hour)
    CROSS JOIN LATERAL (SELECT extract(epoch FROM least(h.hour + interval '1 hour', part.ends, %(until)s)
                                                  - greatest(h.hour, part.begins, %(since)s)) AS seconds) s
    GROUP BY t.name, part.tenant_id, part.cell, part.band_id, b.name, h.hour, part.place
), m AS (
    SELECT m.tenant_id, t.name AS tenant, m.cell, m.band_id, COALESCE(b.name, '') AS band, m.job, {label} AS label,
        m.hour, m."limit", m.price, {job_uid} AS job_uid
    FROM {hours} m JOIN quota_tenant t ON t.id = m.tenant_id
    LEFT JOIN quota_priorityband b ON b.id = m.band_id
    WHERE m.tenant_id = ANY(%(tenants)s) AND m.hour > %(since)s - interval '1 hour' AND m.hour < %(until)s
), asked AS (
    SELECT p.tenant_id, p.cell, p.band_id, p.hour, p.place, sum(m."limit"[p.place]) AS asked
    FROM pool p JOIN m ON (m.tenant_id, m.cell, m.band_id, m.hour) = (p.tenant_id, p.cell, p.band_id, p.hour)
    GROUP BY p.tenant_id, p.cell, p.band_id, p.hour, p.place
), split AS (
    SELECT p.*, COALESCE(a.asked, 0) AS asked, greatest(p.bought, COALESCE(a.asked, 0)) AS whole
    FROM pool p LEFT JOIN asked a ON (a.tenant_id, a.cell, a.band_id, a.hour, a.place)
        = (p.tenant_id, p.cell, p.band_id, p.hour, p.place)
)
"""
_COSTS = (
    _SPLIT
    + """
SELECT key, sum(quota), sum(unused), sum(usage) FROM (
    SELECT {job} AS key, sum(p.cost * m."limit"[p.place] / p.whole) AS quota, 0 AS unused, 0 AS usage
    FROM split p JOIN m ON (m.tenant_id, m.cell, m.band_id, m.hour) = (p.tenant_id, p.cell, p.band_id, p.hour)
    WHERE p.whole > 0 AND m."limit"[p.place] > 0 GROUP BY 1
    UNION ALL
    SELECT {pool}, 0, sum(CASE WHEN p.whole > 0 THEN p.cost * (p.whole - p.asked) / p.whole ELSE p.cost END), 0
    FROM split p GROUP BY 1
    UNION ALL
    SELECT {job}, 0, 0, sum(m.price) FROM m WHERE m.hour >= %(since)s GROUP BY 1
) AS parts GROUP BY key HAVING sum(quota) + sum(unused) + sum(usage) > 0 ORDER BY key
"""
)
# The charges of some jobs in some hours, each with the sum of all charges of the job in the period.
_JOB_HOURS = (
    _SPLIT
    + """, hours AS (
    SELECT m.cell, m.job_uid, m.band_id, m.hour, m."limit" AS asked_limit, m.price,
        array_agg(p.place) FILTER (WHERE p.place > 0) AS places,
        array_agg(p.cost * m."limit"[p.place] / p.whole) FILTER (WHERE p.place > 0) AS costs,
        m.price + COALESCE(sum(p.cost * m."limit"[p.place] / p.whole), 0) AS charge
    FROM m LEFT JOIN split p ON (p.tenant_id, p.cell, p.band_id, p.hour) = (m.tenant_id, m.cell, m.band_id, m.hour)
        AND p.whole > 0 AND m."limit"[p.place] > 0
    WHERE m.hour >= %(since)s AND (m.cell, m.job_uid) IN (SELECT * FROM unnest(%(cells)s::text[], %(uids)s::text[]))
    GROUP BY m.cell, m.job_uid, m.band_id, m.hour, m."limit", m.price
), charged AS (
    SELECT hours.*, sum(charge) OVER (PARTITION BY cell, job_uid) AS of_job FROM hours
)
SELECT cell, job_uid, band_id, hour, asked_limit, price, COALESCE(places, '{{}}'), COALESCE(costs, '{{}}'), of_job
FROM charged WHERE (cell, job_uid, hour) IN (
    SELECT * FROM unnest(%(cells)s::text[], %(uids)s::text[], %(hours)s::timestamptz[]))
ORDER BY cell, job_uid, hour, band_id
"""
)


class Cost(NamedTuple):
    """A cost in micro-credits. `quota`: bought quota that jobs requested; `unused`: bought quota that no job requested;
    `usage`: charged usage.

    `key`: the job, team, band, cell or label value; empty for unused quota and for jobs without the label.
    """

    key: str
    quota: int
    unused: int
    usage: int

    @property
    def total(self) -> int:
        return self.quota + self.unused + self.usage


def costs(
    tenants: Sequence[Tenant], *, since: dt.datetime, until: dt.datetime, by: str = "job", label: str = ""
) -> list[Cost]:
    """Return the costs of tenants in a period, highest first. `by`: job, team, band, cell or label.

    Usage is counted for hours that begin in the period. Makes one query, and a few more if hours are in the archive.
    Costs are rounded so that their sum is the rounded total. Raises `Rejected` if an argument is not valid; the error
    names the argument. Raises `Rejected` with status 503 if the archive cannot be read.
    """
    if by not in _KEYS:
        raise invalid("by", f"costs cannot be split by {by!r}; give one of {', '.join(SPLITS)}")
    if by == "label" and not label:
        raise invalid("label", "the label is missing; give the key of the label by which the costs are split")
    if not dt.timedelta(0) < until - since <= LONGEST:
        raise invalid(
            "until", f"the period is empty or too long; give a time later than `since`, by at most {LONGEST.days} days"
        )
    if not tenants:
        return []
    job, pool = _KEYS[by]
    ids = [tenant.pk for tenant in tenants]
    labels = ["labels"] if by == "label" else []
    wanted = HoursWanted(
        ["tenant_id", "cell", "band_id", "job", "hour", "limit", "price", *labels],
        since=_hour_of(since),
        until=until,
        tenants=ids,
    )
    with metered_hours(wanted) as hours, connection.cursor() as cursor:
        cursor.execute(
            _COSTS.format(
                job=job, pool=pool, hours=hours, label="m.labels ->> %(label)s" if labels else "NULL", job_uid="NULL"
            ),
            {"tenants": ids, "since": since, "until": until, "names": list(NAMES), "label": label},
        )
        rows = cursor.fetchall()
    whole = iter(_rounded([Decimal(value) for row in rows for value in row[1:]]))
    found = [Cost(row[0], next(whole), next(whole), next(whole)) for row in rows]
    return sorted(found, key=lambda cost: (-cost.total, cost.key))


class JobHour(NamedTuple):
    """The charge of a job at a band in one hour, in micro-credits. `limit`: its limit in unit·seconds, by resource.
    `quota`: the cost of its quota, by resource. `usage`: the price of its usage. `of_job`: the sum of all charges of
    the job in the period, rounded down.
    """

    cell: str
    job_uid: str
    band_id: int | None
    hour: dt.datetime
    limit: tuple[int, ...]
    quota: tuple[Decimal, ...]
    usage: int
    of_job: int


def job_hours(
    tenant: Tenant, wanted: Collection[tuple[str, str, dt.datetime]], *, since: dt.datetime, until: dt.datetime
) -> list[JobHour]:
    """Return the charges of jobs of a tenant in some hours of a period. Hours that are not metered are left out.
    `wanted`: the cell, the UID of the job without hyphens, and the hour.

    Makes one query, and a few more if hours are in the archive. Raises `Rejected` with status 503 if the archive cannot
    be read.
    """
    if not wanted:
        return []
    columns = ["tenant_id", "cell", "band_id", "job", "hour", "limit", "price", "job_uid"]
    selection = HoursWanted(columns, since=_hour_of(since), until=until, tenants=[tenant.pk])
    cells, uids, hours_wanted = map(list, zip(*sorted(wanted), strict=True))
    with metered_hours(selection) as hours, connection.cursor() as cursor:
        cursor.execute(
            _JOB_HOURS.format(hours=hours, label="NULL", job_uid="m.job_uid"),
            {
                "tenants": [tenant.pk],
                "since": since,
                "until": until,
                "names": list(NAMES),
                "cells": cells,
                "uids": uids,
                "hours": hours_wanted,
            },
        )
        return [_job_hour(*row) for row in cursor.fetchall()]


def _job_hour(
    cell: str,
    job_uid: str,
    band_id: int | None,
    hour: dt.datetime,
    limit: Sequence[Decimal],
    price: int,
    places: Sequence[int],
    costs: Sequence[Decimal],
    of_job: Decimal,
) -> JobHour:
    by_place = dict(zip(places, costs, strict=True))
    quota = tuple(by_place.get(place, Decimal(0)) for place in range(1, len(limit) + 1))
    return JobHour(cell, job_uid, band_id, hour, tuple(map(int, limit)), quota, int(price), int(of_job))


def job_usage_price(*, tenant: int, cell: str, job_uid: str, since: dt.datetime) -> int:
    """Return the price of all metered usage of a job, in micro-credits. `tenant`: its id; `job_uid`: without hyphens;
    `since`: when the job was created. The cost of the quota that the job requests is not included. Makes one query, and
    two more if hours can be in the archive. Raises `Rejected` with status 503 if the archive cannot be read.
    """
    wanted = HoursWanted(["price"], since=_hour_of(since), tenants=[tenant], cell=cell, job_uid=job_uid)
    with archived_parts(wanted) as parts:
        archived = sum(int(price) for part in parts for price in part.split())
        with connection.cursor() as cursor:
            cursor.execute(_RECENT_PRICE, {"cell": cell, "job_uid": job_uid, "since": wanted.since, "now": clock.now()})
            ((recent,),) = cursor.fetchall()
    return archived + int(recent)


def _hour_of(moment: dt.datetime) -> dt.datetime:
    """Return the start of the metered hour that contains `moment`. Hours are those of UTC."""
    return moment.astimezone(dt.UTC).replace(minute=0, second=0, microsecond=0)


def _rounded(exact: Sequence[Decimal]) -> Iterator[int]:
    """Yield each number of `exact` as a whole number. The sum of the results is the rounded sum of `exact`.

    The numbers with the largest fractions are rounded up, the others down.
    """
    floors = [int(value // 1) for value in exact]
    missing = int(sum(exact, start=Decimal(0)).to_integral_value()) - sum(floors)
    by_remainder = sorted(range(len(exact)), key=lambda place: (floors[place] - exact[place], place))
    up = set(by_remainder[:missing])
    return (floor + (place in up) for place, floor in enumerate(floors))
