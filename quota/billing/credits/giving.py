"""Credits a tenant for the broken promises of a month, before the invoice of the month is closed.

    open breaches ─┐
    metered hours ─┼─► credit_rules ─► one posting per cell, one line (`Credit`) per job and kind, breaches settled
    costs of quota ┘

The transaction that writes the lines also settles their breaches, while the accounts of the tenant are locked. So a
repeated run, or two runs at once, credit a breach once. A breach whose hour is not metered yet stays open, and the next
month credits it. Reports that arrive after that open a new row.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import Min, Sum

from quota import clock, records
from quota.billing import costs, ledger
from quota.billing.credits import credit_rules
from quota.billing.credits.credit_rules import CapKey, HourCharge, HourKey
from quota.models import Credit, Invoice, PromiseBreach, Tenant
from quota.notifications import notices
from quota.vocabulary import months
from quota.vocabulary.money import format_credits

# An hour that is not metered this long after its end never is: its breaches are settled without credit.
GIVEN_UP = dt.timedelta(days=40)
# How many tasks per hour and cause a line of credit names, and for how many hours. The other hours have only sums.
MOST_NAMED = 10
MOST_HOURS_NAMED = 200
# How many breaches are priced when somebody asks what is expected.
MOST_EXPECTED = 20_000
HOUR = dt.timedelta(hours=1)


class Credited(NamedTuple):
    """What the breaches of a tenant are worth. `amounts`: micro-credits by breach. `open`: ids of the breaches whose
    hours are not metered yet.
    """

    breaches: Sequence[PromiseBreach]
    amounts: dict[int, int]
    open: frozenset[int]


def tenants_due() -> dict[int, dt.datetime]:
    """Return the first hour with an open breach, by tenant id. Makes one query."""
    rows = PromiseBreach.objects.filter(settled_at=None).order_by().values_list("tenant_id").annotate(Min("hour"))
    return dict(rows)


def credits_expected(tenant: Tenant, *, until: dt.datetime) -> Credited:
    """Return what the open breaches of a tenant before `until` would be credited now, without evidence. Changes
    nothing. Returns one breach more than `MOST_EXPECTED` if there are more.
    """
    rows = PromiseBreach.objects.filter(tenant=tenant, settled_at=None, hour__lt=until).defer("evidence")
    return _worth(tenant, list(rows.order_by("hour", "id")[: MOST_EXPECTED + 1]))


def credits_give(entry: records.RecordEntry, tenant: Tenant, month: dt.date, *, until: dt.datetime) -> list[Credit]:
    """Credit the open breaches of a tenant before `until`, the end of the month. Return the new lines. Idempotent.

    `month`: the month of the invoice, which is open. Locks the accounts of the tenant, then the breaches. A month is
    credited once: what becomes known later is credited in the next month. A closed month is not credited. Makes a few
    statements per cell with credits, and a fixed number of others.
    """
    ledger.accounts_locked(tenant)
    if (
        Credit.objects.filter(tenant=tenant, month=month, corrects=None).exists()
        or Invoice.objects.filter(tenant=tenant, month__gte=month).exists()
    ):
        return []
    rows = PromiseBreach.objects.select_for_update().filter(tenant=tenant, settled_at=None, hour__lt=until)
    found = _worth(tenant, list(rows.order_by("id")))
    now = clock.now()
    settled = [row for row in found.breaches if row.pk not in found.open]
    for row in settled:
        row.credited = found.amounts[row.pk]
    _settle(settled, now)
    lines: list[Credit] = []
    by_cell: dict[str, list[PromiseBreach]] = defaultdict(list)
    for row in settled:
        if row.credited:
            by_cell[row.cell].append(row)
    for cell in sorted(by_cell):
        posting = ledger.credit(
            entry,
            tenant,
            sum(row.credited for row in by_cell[cell]),
            text=f"credit for broken promises in {cell}",
            key=f"credit:{tenant.pk}:{cell}:{month:%Y-%m}",
            occurred_at=months.last_instant(until),
        )
        shared = {"tenant": tenant, "cell": cell, "month": month, "posting": posting, "created_at": now}
        lines += [Credit(**shared, actor=entry.principal.name, **line) for line in lines_of(by_cell[cell])]
    lines = Credit.objects.bulk_create(lines)
    if lines:
        _notify(entry, tenant, month, lines)
    return lines


def _settle(rows: Sequence[PromiseBreach], now: dt.datetime) -> None:
    """Store that breaches are settled, and what was credited. Makes one statement."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE quota_promisebreach AS b SET credited = n.credited, settled_at = %s, evidence = '[]'::jsonb"
            " FROM unnest(%s::bigint[], %s::bigint[]) AS n(id, credited) WHERE b.id = n.id",
            [now, [row.pk for row in rows], [row.credited for row in rows]],
        )


def lines_of(breaches: Iterable[PromiseBreach]) -> list[dict[str, Any]]:
    """Return one line per job and kind, with its evidence, from the settled breaches of one cell."""
    groups: dict[tuple[str, str], list[PromiseBreach]] = defaultdict(list)
    for row in breaches:
        groups[row.job_uid, row.kind].append(row)
    return [
        {
            "job_uid": job_uid,
            "job": rows[-1].job,
            "kind": kind,
            "amount": sum(row.credited for row in rows),
            "since": min(row.hour for row in rows),
            "until": max(row.hour for row in rows) + HOUR,
            "evidence": [
                evidence_of(row, named=MOST_NAMED if place < MOST_HOURS_NAMED else 0)
                for place, row in enumerate(sorted(rows, key=lambda row: (row.hour, row.cause, row.pk)))
            ],
        }
        for (job_uid, kind), rows in sorted(groups.items())
    ]


def evidence_of(row: PromiseBreach, *, named: int) -> dict[str, Any]:
    """Return the evidence of one breach in small form, for JSON. `named`: how many tasks it names."""
    return {
        "hour": row.hour.astimezone(dt.UTC).isoformat(),
        "cause": row.cause,
        "terms": row.terms,
        "tasks": row.tasks,
        "task_seconds": round(row.task_seconds, 1),
        "evictions": row.evictions,
        "amount": row.credited,
        "items": row.evidence[:named],
    }


def _worth(tenant: Tenant, rows: Sequence[PromiseBreach]) -> Credited:
    """Return what breaches of a tenant are worth. Makes four queries for the breaches of one month."""
    zone = tenant.time_zone
    by_month: dict[dt.date, list[PromiseBreach]] = defaultdict(list)
    for row in rows:
        by_month[months.month_of(row.hour, zone)].append(row)
    charges: dict[HourKey, HourCharge] = {}
    caps: dict[CapKey, int] = {}
    for month, of_month in sorted(by_month.items()):
        since, until = (_next_hour(moment) for moment in months.bounds(month, zone))
        wanted = {(row.cell, row.job_uid, row.hour) for row in of_month}
        for found in costs.job_hours(tenant, wanted, since=since, until=until):
            key = HourKey(found.cell, found.job_uid, found.band_id or 0, found.hour)
            charges[key] = HourCharge(found.limit, tuple(map(Fraction, found.quota)), found.usage)
            caps[CapKey(found.cell, found.job_uid, month)] = found.of_job
        earlier = (
            PromiseBreach.objects.filter(tenant=tenant, hour__gte=since, hour__lt=until, credited__gt=0)
            .filter(job_uid__in={row.job_uid for row in of_month})
            .order_by()
            .values_list("cell", "job_uid")
            .annotate(Sum("credited"))
        )
        for cell, job_uid, credited in earlier:
            cap = CapKey(cell, job_uid, month)
            caps[cap] = caps.get(cap, 0) - int(credited)
    breaches = [
        credit_rules.Breach(
            row.pk,
            _key(row),
            months.month_of(row.hour, zone),
            row.kind,
            tuple(map(int, row.affected)),
            int(row.terms.get("share_milli", credit_rules.FULL_MILLI)),
        )
        for row in rows
    ]
    amounts = credit_rules.amounts(breaches, charges, caps, max(0, ledger.revenue_from(tenant)) if rows else 0)
    late = clock.now() - GIVEN_UP
    open_ids = frozenset(row.pk for row in rows if _key(row) not in charges and row.hour > late)
    return Credited(rows, amounts, open_ids)


def _next_hour(moment: dt.datetime) -> dt.datetime:
    """Return the first full hour at or after `moment`. The hours of a month are those that begin in it, also in time
    zones whose midnight is not at a full hour.
    """
    floor = moment.replace(minute=0, second=0, microsecond=0)
    return floor if floor == moment else floor + HOUR


def _key(row: PromiseBreach) -> HourKey:
    return HourKey(row.cell, row.job_uid, row.band_id, row.hour)


def _notify(entry: records.RecordEntry, tenant: Tenant, month: dt.date, lines: Sequence[Credit]) -> None:
    amount = sum(line.amount for line in lines)
    jobs = sorted({line.job for line in lines})
    named = ", ".join(jobs[:MOST_NAMED]) + (f" and {len(jobs) - MOST_NAMED} more" if len(jobs) > MOST_NAMED else "")
    notices.notify(
        entry,
        tenant,
        "credit.given",
        f"{tenant.name} gets {format_credits(amount)} credits back for {month:%Y-%m}",
        "Tasks were pending or evicted beyond the published promise of their cell. The jobs are: "
        f"{named}. The page lists the events.",
        url=f"/billing/credits/?tenant={tenant.name}&month={month:%Y-%m}",
        month=f"{month:%Y-%m}",
        amount=amount,
    )
