"""Functions that read credits. They return only data of tenants whose money the principal may see."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from django.db.models import Count, Q, QuerySet, Sum

from quota import clock
from quota.billing.credits.giving import MOST_EXPECTED, credits_expected
from quota.billing.invoice_table import exact
from quota.billing.statements import billed_tenant, billed_tenants
from quota.models import Credit, Tenant
from quota.models.credits import CORRECTION
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, may, require


class CreditTotal(NamedTuple):
    """What was credited in one cell on the invoices of one month, in micro-credits. `given`: without corrections."""

    cell: str
    month: dt.date
    tenants: int
    jobs: int
    given: int
    corrected: int

    @property
    def total(self) -> int:
        return self.given + self.corrected


class ExpectedCredit(NamedTuple):
    """What the open breaches of one job and kind would be credited now, in micro-credits. `hours`: how many rows of
    hours and causes. `unmetered`: how many of them are not metered yet, so that their amount is not known.
    """

    cell: str
    job: str
    kind: str
    amount: int
    hours: int
    unmetered: int


class Expected(NamedTuple):
    """What a tenant would be credited now. `jobs`: the largest amounts first, at most `MOST_JOBS` of `number`.
    `complete`: false if only the first breaches were priced.
    """

    amount: int
    number: int
    complete: bool
    jobs: list[ExpectedCredit]


def credits_visible(
    principal: Principal, *, tenant: str | None = None, month: dt.date | None = None, cell: str | None = None
) -> QuerySet[Credit]:
    """Return the lines of credit of the tenants whose money the principal may see, newest first."""
    rows = Credit.objects.select_related("tenant").order_by("-id")
    if tenant is not None:
        rows = rows.filter(tenant=billed_tenant(principal, tenant))
    else:
        rows = rows.filter(tenant__in=billed_tenants(principal))
    if month is not None:
        rows = rows.filter(month=month)
    return rows if cell is None else rows.filter(cell=cell)


def credit_numbered(principal: Principal, number: int) -> Credit:
    """Return a line of credit by its id, with its tenant.

    Raises `NotFound` if the principal is not a member of the tenant, and `Forbidden` if the principal is a member who
    may not see its money.
    """
    row = Credit.objects.select_related("tenant").filter(pk=number).first()
    if row is None or not may(principal, Action.TENANT_VIEW, tenant=row.tenant.name):
        raise NotFound("credit", str(number))
    require(principal, Action.BILLING_VIEW, tenant=row.tenant.name)
    return row


def expected(tenant: Tenant, *, until: dt.datetime) -> Expected:
    """Return what the open breaches of a tenant would be credited now. The caller checks permissions."""
    found = credits_expected(tenant, until=until)
    rows = found.breaches[:MOST_EXPECTED]
    sums: dict[tuple[str, str, str], list[int]] = {}
    for row in rows:
        one = sums.setdefault((row.cell, row.job, row.kind), [0, 0, 0])
        one[0] += found.amounts[row.pk]
        one[1] += 1
        one[2] += row.pk in found.open
    jobs = sorted((ExpectedCredit(*key, *one) for key, one in sums.items()), key=lambda job: (-job.amount, job))
    amount = sum(job.amount for job in jobs)
    return Expected(amount, len(jobs), len(rows) == len(found.breaches), jobs[:MOST_JOBS])


def totals(principal: Principal) -> list[CreditTotal]:
    """Return the sums per cell and month of the last 13 months, newest first. Only for SREs. Makes one query."""
    require(principal, Action.PLATFORM_ADMIN)
    first = clock.now().date() - dt.timedelta(days=396)
    correction = Q(kind=CORRECTION)
    rows = (
        Credit.objects.filter(month__gte=first)
        .order_by("-month", "cell")
        .values("cell", "month")
        .annotate(
            tenants=Count("tenant", distinct=True),
            jobs=Count("job_uid", distinct=True),
            given=Sum("amount", filter=~correction, default=0),
            corrected=Sum("amount", filter=correction, default=0),
        )
    )
    return [CreditTotal(**row) for row in rows]


# How many jobs an answer about expected credits names.
MOST_JOBS = 200
# How many credits a CSV file has at most. Users who need more export one month at a time.
MOST_LINES = 2_000
COLUMNS = ("credit", "month", "tenant", "cell", "job", "kind", "hour", "cause", "task", "from", "until", "event")


def table(found: QuerySet[Credit]) -> Iterator[Sequence[object]]:
    """Yield the rows of a CSV file with the evidence of credits, the header first: one row per task, and one row per
    hour for its amount. The last row says so if the file has not all credits.
    """
    yield (*COLUMNS, "credits", "micro_credits")
    for place, row in enumerate(found[: MOST_LINES + 1].iterator(chunk_size=100)):
        if place == MOST_LINES:
            yield (f"only the newest {MOST_LINES} credits are in this file; export one month at a time",)
            return
        head = (row.pk, f"{row.month:%Y-%m}", row.tenant.name, row.cell, row.job, row.kind)
        if not row.evidence:
            yield (*head, "", row.reason, "", "", "", "", exact(row.amount), row.amount)
        for hour in row.evidence:
            yield (*head, hour["hour"], hour["cause"], "", "", "", "", exact(hour["amount"]), hour["amount"])
            for item in hour["items"]:
                since = item.get("from") or item.get("at")
                what = (item["task"], since, item.get("until", ""), item.get("event", ""))
                yield (*head, hour["hour"], hour["cause"], *what, "", "")
