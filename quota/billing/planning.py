"""The quota of a tenant in a band over time, and what its jobs requested, reserved and used, for planning (§2.5).

Quota: grants at the start of a step ─┐
MeteredHour: vectors of jobs ─────────┴─► one row per step: the quota, and the mean of each resource
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from django.db import connection

from quota import clock
from quota.models import PriorityBand, Tenant
from quota.models.metered_hours import HoursWanted, metered_hours
from quota.vocabulary.permissions import Action, Principal, require
from quota.vocabulary.resources import SIZE, Vector

# The usage of an hour is reported some minutes after its end. Until then the hour would count as zero.
METERED_AFTER = dt.timedelta(minutes=15)


@dataclass(frozen=True, slots=True)
class Planned:
    """Mean quantities in one time step that starts at `at`.

    `owned`: quota from grants in force; `asked`, `reserved`, `used`: limits, reservations and usage of jobs. `seconds`:
    the part of the step for which data exists, in seconds. Only the first and the last step can have less than the
    whole step.
    """

    at: dt.datetime
    seconds: int
    owned: Vector
    asked: Vector
    reserved: Vector
    used: Vector


@dataclass(frozen=True, slots=True)
class TenantHours:
    """The metered hours of a tenant from `since` until `until`. `relation`: the SQL of a relation that has them."""

    principal: Principal
    tenant: Tenant
    since: dt.datetime
    until: dt.datetime
    relation: str

    def places(self) -> list[tuple[str, str]]:
        """Return the pairs (cell, band) in which the tenant has grants, or had jobs in the period. The band is empty
        for the free priority. Makes one query.
        """
        with connection.cursor() as cursor:
            cursor.execute(
                _PLACES.format(hours=self.relation), [self.tenant.id, self.tenant.id, self.since, self.until]
            )
            return [(cell, band or "") for cell, band in cursor.fetchall()]

    def planned(self, cell: str, band: PriorityBand | None, *, step: dt.timedelta) -> list[Planned]:
        """Return the time steps of the period that have data, oldest first.

        `band`: None for the free priority. Data begins with the tenant's first grant, or its first metered hour in the
        period, in the cell and band, and ends with the last metered hour. Hours in between without jobs count as zero.
        Makes one query. Raises `Forbidden` if the caller may not see the quota of the tenant in the cell.
        """
        require(self.principal, Action.QUOTA_VIEW, tenant=self.tenant.name, cell=cell)
        last = clock.now() - METERED_AFTER
        given = {
            "metered": min(self.until, last.replace(minute=0, second=0, microsecond=0)),
            "tenant": self.tenant.id,
            "cell": cell,
            "band": band.id if band else None,
            "since": self.since,
            "until": self.until,
            "step": step,
            "step_s": int(step.total_seconds()),
        }
        with connection.cursor() as cursor:
            cursor.execute(_PLANNED.format(hours=self.relation), given)  # type: ignore[arg-type]
            return [
                Planned(at, seconds, *(tuple(map(int, sums[SIZE * i : SIZE * (i + 1)])) for i in range(4)))
                for at, seconds, *sums in cursor.fetchall()
            ]


@contextmanager
def hours_of(principal: Principal, tenant: Tenant, *, since: dt.datetime, until: dt.datetime) -> Iterator[TenantHours]:
    """Yield the metered hours of a tenant in a period, until the `with` block ends. Archived hours are read once for
    all its queries.

    Raises `Forbidden` if the caller may not see the quota of the tenant, and `Rejected` with status 503 if the archive
    cannot be read.
    """
    require(principal, Action.QUOTA_VIEW, tenant=tenant.name)
    columns = ["tenant_id", "cell", "band_id", "hour", *_METERED]
    with metered_hours(HoursWanted(columns, since=since, until=until, tenants=[tenant.id])) as relation:
        yield TenantHours(principal, tenant, since, until, relation)


def _columns(form: str, *names: str) -> str:
    return ", ".join(form.format(name=name, i=i) for name in names for i in range(1, SIZE + 1))


_METERED = ("limit", "reserved", "used")
_PLANNED = f"""
WITH span AS (
  SELECT greatest(%(since)s::timestamptz, least(
           (SELECT min(starts_at) FROM quota_quota
             WHERE tenant_id = %(tenant)s AND cell = %(cell)s AND band_id IS NOT DISTINCT FROM %(band)s),
           (SELECT min(hour) FROM {{hours}} AS m
             WHERE tenant_id = %(tenant)s AND cell = %(cell)s AND band_id IS NOT DISTINCT FROM %(band)s
               AND hour >= %(since)s AND hour < %(until)s)
         )) AS first, %(metered)s::timestamptz AS last
), steps AS (
  SELECT at, greatest(at, first) AS begins, least(at + %(step)s, last) AS ends
  FROM span, generate_series(%(since)s::timestamptz, %(until)s::timestamptz, %(step)s) AS at
  WHERE at < last AND at + %(step)s > first AND at < %(until)s
), metered AS (
  SELECT %(since)s::timestamptz
           + floor(extract(epoch FROM hour - %(since)s::timestamptz) / %(step_s)s) * %(step)s AS at,
         {_columns('sum("{name}"[{i}]) AS "{name}{i}"', *_METERED)}
  FROM {{hours}} AS m
  WHERE tenant_id = %(tenant)s AND cell = %(cell)s AND band_id IS NOT DISTINCT FROM %(band)s
    AND hour >= %(since)s AND hour < %(metered)s
  GROUP BY 1
), owned AS (
  SELECT steps.at, {_columns("sum(q.amounts[{i}]) AS owned{i}", "")} FROM steps JOIN quota_quota AS q
    ON q.tenant_id = %(tenant)s AND q.cell = %(cell)s AND q.band_id IS NOT DISTINCT FROM %(band)s
    AND q.starts_at <= steps.begins AND (q.ends_at IS NULL OR q.ends_at > steps.begins)
  GROUP BY steps.at
)
SELECT steps.at, extract(epoch FROM ends - begins)::int, {_columns("coalesce(owned{i}, 0)", "")},
       {_columns('round(coalesce(metered."{name}{i}", 0) / extract(epoch FROM ends - begins))', *_METERED)}
FROM steps LEFT JOIN metered USING (at) LEFT JOIN owned USING (at) ORDER BY steps.at
"""
_PLACES = """
SELECT DISTINCT place.cell, b.name FROM (
  SELECT cell, band_id FROM quota_quota WHERE tenant_id = %s
  UNION SELECT cell, band_id FROM {hours} AS m WHERE tenant_id = %s AND hour >= %s AND hour < %s
) AS place LEFT JOIN quota_priorityband AS b ON b.id = place.band_id ORDER BY 1, 2
"""
