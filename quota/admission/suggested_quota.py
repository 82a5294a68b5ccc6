"""Compares a tenant's quota with what its jobs request and use, so that the tenant does not buy too much (§2.5).

    MeteredHour ─► sums by hour ─► peaks and quantiles over the hours ─► suggested amounts of quota

All figures are averages over whole hours. Peaks within an hour are higher, so the suggestion `leaner` adds a margin
(`MARGIN_MILLI`) to the measured usage. Hours in which the tenant had no live jobs in this band of the cell are left
out.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from django.db import connection

from quota import clock
from quota.admission.admission import granted_now
from quota.models import PriorityBand, Tenant
from quota.models.metered_hours import HoursWanted, metered_hours
from quota.vocabulary.errors import NotFound, invalid
from quota.vocabulary.permissions import Action, Principal, require
from quota.vocabulary.resources import NAMES, PORTS, SIZE

HOUR_S = 3600
MOST_DAYS = 366
# The recommended limit, in thousandths of the maximum hourly usage.
MARGIN_MILLI = 1250


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """The amounts of one resource that a tenant owned, requested and used over some days, in the unit of the resource.

    `granted`: the sum of the grants in force now. `asked`: the largest sum of the jobs' limits in any hour. `reserved`:
    the largest sum of the jobs' reservations in any hour. `used_*`: percentiles of the usage per hour. `suggested`: the
    quota to own if jobs continue to request as much; `leaner`: the quota to own if the limits of the jobs are only a
    quarter above their usage.
    """

    name: str
    granted: int
    asked: int
    reserved: int
    used_p50: int
    used_p95: int
    used_max: int
    suggested: int
    leaner: int


@dataclass(frozen=True, slots=True)
class UsageOf:
    """The usage of a tenant in a period. `hours`: the number of hours with live jobs.

    If `hours` is 0, all figures except `granted` are zero.
    """

    tenant: str
    cell: str
    band: str
    since: dt.datetime
    until: dt.datetime
    hours: int
    resources: tuple[ResourceUse, ...]


def usage_of(principal: Principal, tenant: Tenant, cell: str, band: str, days: int = 14) -> UsageOf:
    """Return what the tenant's jobs requested and used at `band` in `cell` in the last `days` days.

    Ports are omitted, because they are not sold. Makes three queries, and a few more if hours are in the archive.
    Raises `Forbidden` if the principal may not see the quota, `NotFound` if the band is unknown, and `Rejected` if
    `days` is out of range or the archive cannot be read.
    """
    require(principal, Action.QUOTA_VIEW, tenant=tenant.name, cell=cell)
    if not 1 <= days <= MOST_DAYS:
        raise invalid("days", f"{days} days are out of range; give 1 to {MOST_DAYS} days")
    row = PriorityBand.objects.filter(name=band).first()
    if row is None:
        raise NotFound("band", band, known=list(PriorityBand.objects.values_list("name", flat=True)))
    until = clock.now()
    since = until - dt.timedelta(days=days)
    granted = granted_now(cell, [(tenant.id, row.id)], at=until)[(tenant.id, row.id)]
    found = _by_resource(tenant.id, cell, row.id, since)
    resources = []
    for index in range(SIZE):
        if index == PORTS:
            continue
        asked, reserved, p50, p95, most = found[index][1:] if index in found else (0,) * 5
        resources.append(
            ResourceUse(
                name=NAMES[index],
                granted=granted[index],
                asked=asked,
                reserved=reserved,
                used_p50=p50,
                used_p95=p95,
                used_max=most,
                suggested=asked,
                leaner=-(-most * MARGIN_MILLI // 1000),
            )
        )
    hours = found[0][0] if found else 0
    return UsageOf(tenant.name, cell, band, since, until, hours, tuple(resources))


def _by_resource(tenant_id: int, cell: str, band_id: int, since: dt.datetime) -> dict[int, tuple[int, ...]]:
    """Return statistics over the hours since `since`, by the index of the resource. Each value is a tuple: the number
    of hours, the maximum requested, the maximum reserved, and the median, 95th percentile and maximum of the usage.
    """
    lines = ", ".join(f"({index}, l{index}, r{index}, u{index})" for index in range(SIZE))
    sums = ", ".join(
        f'sum("limit"[{i + 1}]) AS l{i}, sum(reserved[{i + 1}]) AS r{i}, sum(used[{i + 1}]) AS u{i}'
        for i in range(SIZE)
    )
    columns = ["tenant_id", "cell", "band_id", "hour", "limit", "reserved", "used"]
    wanted = HoursWanted(columns, since=since, tenants=[tenant_id], cell=cell)
    with metered_hours(wanted) as stored, connection.cursor() as cursor:
        cursor.execute(
            f"WITH hourly AS (SELECT hour, {sums} FROM {stored} AS m WHERE tenant_id = %s AND cell = %s"
            " AND band_id = %s AND hour >= %s GROUP BY hour)"
            " SELECT i, count(*), max(l), max(r), percentile_disc(0.5) WITHIN GROUP (ORDER BY u),"
            " percentile_disc(0.95) WITHIN GROUP (ORDER BY u), max(u)"
            f" FROM hourly, LATERAL (VALUES {lines}) AS line(i, l, r, u) GROUP BY i",
            [tenant_id, cell, band_id, since],
        )
        rows = cursor.fetchall()
    return {i: (hours, *(-(-int(value or 0) // HOUR_S) for value in sums)) for i, hours, *sums in rows}
