"""Metering: what jobs requested, reserved and used in each hour, and the cost of the usage if it has a price (§5.5).

    scheduling ──meter(cell, hour, rows)──► MeteredHour, priced ──usage_charge──► one posting per tenant, cell and day

Only usage is charged, not reservations or requests. The price is: used quantity × hours × the usage price of that hour
× the band's factor. The free priority is free. The price of each job and hour is rounded down to a whole micro-credit.
Reports may arrive late and more than once: a later report replaces an earlier one until the hour is charged. The first
report of a job and band is stored and charged at any time. If it is in the archive, later reports are ignored.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import structlog
from django.db import connection

from quota import clock, records
from quota.billing import ledger
from quota.models import MeteredHour, Posting, PriorityBand, Tenant, metered_months
from quota.models.fields import WideVectorField
from quota.models.metered_hours import HoursWanted, archived_hours
from quota.pricing.price_formula import FULL_MILLI, UNIT
from quota.pricing.price_lists import price_list_at
from quota.vocabulary import months
from quota.vocabulary.errors import NotFound, invalid
from quota.vocabulary.money import MOST
from quota.vocabulary.permissions import system
from quota.vocabulary.resources import NAMES, SIZE, Vector

log = structlog.get_logger(__name__)

# The reports of a day's last hour have arrived after this time. Later ones are charged with the next day.
SETTLE = dt.timedelta(hours=2)
HOUR = dt.timedelta(hours=1)
_MOST_SUM = 10**WideVectorField.DIGITS - 1


class MeteredRow(NamedTuple):
    """The usage of one job at one band in one hour. Each vector has one value per resource, in unit·seconds.

    `band`: "" for the free priority.

    `job_uid`: 32 hexadecimal digits; `labels`: the labels of the job in that hour.
    """

    tenant_id: int
    band: str
    job_uid: str
    job: str
    labels: Mapping[str, str]
    limit: Vector
    reserved: Vector
    used: Vector


def meter(*, cell: str, hour: dt.datetime, rows: Sequence[MeteredRow]) -> int:
    """Store how much the jobs of a cell used in one hour, and return the number of stored rows.

    A repeated report replaces the rows of this hour that are neither charged nor archived. `hour`: the start of the
    hour, with a time zone. Raises `Rejected` if a row is not valid; the error names the row. Makes five SQL statements
    for any number of rows, and some more for the first hour of a month and for an hour that may be in the archive.
    Locks only the rows that it writes. Raises `Rejected` if the archive has to be searched and cannot be read.
    """
    if hour.tzinfo is None or hour.astimezone(dt.UTC) != hour.replace(minute=0, second=0, microsecond=0):
        raise invalid(
            "hour",
            f"{hour.isoformat()} has no time zone or is not a full hour; give a time such as 2026-11-28T07:00:00Z",
        )
    if not rows:
        return 0
    bands = {band.name: band for band in PriorityBand.objects.all()}
    prices = price_list_at(cell, hour)
    values: list[tuple[Any, ...]] = []
    for position, row in enumerate(rows):
        if row.band and row.band not in bands:
            raise NotFound("band", row.band, known=list(bands))
        band = bands.get(row.band)
        price = usage_price(row.used, prices.usage, band.price_milli if band else 0)
        sums = (*row.limit, *row.reserved, *row.used)
        if min(sums) < 0 or max(sums) > _MOST_SUM or price > MOST:
            raise invalid(
                f"rows.{position}",
                f"row {position} has a value that is negative, has more than {WideVectorField.DIGITS} digits, or costs"
                " more than 64 bits can hold; correct the value",
            )
        given = (
            row.tenant_id,
            cell,
            band.pk if band else None,
            row.job_uid,
            row.job,
            json.dumps(dict(row.labels)),
            _array(row.limit),
            _array(row.reserved),
            _array(row.used),
            price,
        )
        values.append(given)
    wanted = HoursWanted(["job_uid", "band_id"], since=hour, until=hour + HOUR, cell=cell)
    with archived_hours(wanted) as archived:
        metered_months.ensure(hour)
        return _upsert(hour, [list(column) for column in zip(*values, strict=True)], archived)


def usage_price(used: Sequence[int], usage: Mapping[str, int], band_milli: int) -> int:
    """Return the price of `used` (unit·seconds by resource) in micro-credits, rounded down once.

    `usage`: the usage prices of a price list; `band_milli`: the band's factor in thousandths.
    """
    exact = sum(
        (
            Fraction(quantity * usage[name] * band_milli, UNIT[name] * FULL_MILLI * 3600)
            for name, quantity in zip(NAMES, used[:SIZE], strict=False)
            if usage.get(name)
        ),
        start=Fraction(0),
    )
    return exact.numerator // exact.denominator


def usage_charge(now: dt.datetime | None = None) -> list[Posting]:
    """Charge the usage until the end of yesterday. "Yesterday" follows each tenant's time zone. Idempotent.

    Each call writes one posting per tenant, cell and month with usage that was not charged before. Usage in a closed
    month is charged in the open month. Each tenant has its own transaction. If one tenant cannot be charged, the other
    tenants are still charged, and the first error is raised at the end.
    """
    moment = now or clock.now()
    due: dict[int, set[str]] = {}
    for tenant_id, cell in (
        MeteredHour.objects.filter(posting=None, price__gt=0, hour__lt=moment)
        .order_by()
        .values_list("tenant_id", "cell")
        .distinct()
    ):
        due.setdefault(tenant_id, set()).add(cell)
    tenants = Tenant.objects.in_bulk(list(due))
    made: list[Posting] = []
    failures: list[Exception] = []
    for tenant_id in sorted(due):
        try:
            made += _charge_tenant(tenants[tenant_id], sorted(due[tenant_id]), moment)
        except Exception as error:
            log.exception("cannot charge a tenant for its usage", tenant=tenants[tenant_id].name)
            failures.append(error)
    if failures:
        raise failures[0]
    return made


def _charge_tenant(tenant: Tenant, cells: Sequence[str], now: dt.datetime) -> list[Posting]:
    """Charge the usage of one tenant until the end of yesterday that is not charged yet. Locks the accounts of the
    tenant.
    """
    zone = tenant.time_zone
    today = months.day_of(now - SETTLE, zone)
    until = months.begin_of(today, zone)
    made = []
    with records.write(system("metering")) as entry:
        ledger.accounts_locked(tenant)
        for cell in cells:
            for month in _months_due(tenant, cell, until):
                begin, end = months.bounds(month, zone)
                key = f"usage:{tenant.pk}:{cell}:{month:%Y-%m}:{today}"
                if Posting.objects.filter(key=key).exists():
                    continue  # later reports are charged tomorrow
                pk, amount = _claim(tenant, cell, begin, min(end, until))
                if amount:
                    made.append(
                        ledger.usage(
                            entry,
                            tenant,
                            amount,
                            text=f"usage in {cell}",
                            key=key,
                            pk=pk,
                            occurred_at=months.last_instant(min(end, until)),
                        )
                    )
    return made


def _months_due(tenant: Tenant, cell: str, until: dt.datetime) -> list[dt.date]:
    due = MeteredHour.objects.filter(tenant=tenant, cell=cell, posting=None, price__gt=0, hour__lt=until)
    found = []
    while (first := due.order_by("hour").values_list("hour", flat=True).first()) is not None:
        month = months.month_of(first, tenant.time_zone)
        found.append(month)
        due = due.filter(hour__gte=months.bounds(month, tenant.time_zone)[1])
    return found


def _claim(tenant: Tenant, cell: str, begin: dt.datetime, end: dt.datetime) -> tuple[int, int]:
    """Mark the usage from `begin` to `end` as charged. Return the id that is reserved for its posting, and the sum of
    its prices.

    The caller must then write the posting with this id in the same transaction.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "WITH next AS (SELECT nextval(pg_get_serial_sequence('quota_posting', 'id')) AS id),"
            " claimed AS (UPDATE quota_meteredhour AS m SET posting_id = next.id FROM next"
            " WHERE m.tenant_id = %s AND m.cell = %s AND m.hour >= %s AND m.hour < %s AND m.price > 0"
            " AND m.posting_id IS NULL RETURNING m.price)"
            " SELECT next.id, COALESCE((SELECT sum(price) FROM claimed), 0) FROM next",
            [tenant.pk, cell, begin, end],
        )
        pk, amount = cursor.fetchone()
    return int(pk), int(amount)


def _upsert(hour: dt.datetime, columns: list[list[Any]], archived: str | None) -> int:
    """Insert or replace the rows of an hour. `archived`: the table with the jobs and bands whose rows are archived."""
    new = (
        f"NOT EXISTS (SELECT FROM {archived} AS a WHERE a.job_uid = given.job_uid"
        " AND a.band_id IS NOT DISTINCT FROM given.band)"
        if archived
        else "true"
    )
    with connection.cursor() as cursor:
        cursor.execute(
            'INSERT INTO quota_meteredhour (tenant_id, cell, band_id, job_uid, job, labels, "limit", reserved, used,'
            " price, hour)"
            " SELECT DISTINCT ON (cell, job_uid, band) tenant, cell, band, job_uid, job, labels::jsonb, l::numeric[],"
            " r::numeric[], u::numeric[], price, %s FROM unnest(%s::bigint[], %s::text[], %s::bigint[], %s::text[],"
            " %s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[]) WITH ORDINALITY"
            f" AS given(tenant, cell, band, job_uid, job, labels, l, r, u, price, place) WHERE {new}"
            " ORDER BY cell, job_uid, band, place DESC"
            " ON CONFLICT (cell, hour, job_uid, band_id) DO UPDATE SET"
            ' "limit" = excluded."limit", reserved = excluded.reserved, used = excluded.used, price = excluded.price,'
            " labels = excluded.labels WHERE quota_meteredhour.posting_id IS NULL",
            [hour, *columns],
        )
        return int(cursor.rowcount)


def _array(vector: Vector) -> str:
    return "{" + ",".join(str(value) for value in vector[:SIZE]) + "}"
