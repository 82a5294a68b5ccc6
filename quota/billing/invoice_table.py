"""The lines of an invoice as rows of a table, for CSV, PDF and pages (pure)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from quota.vocabulary.money import CREDIT


class InvoiceFields(Protocol):
    """The fields of `quota.models.Invoice` that this module reads."""

    number: str
    month: dt.date
    time_zone: str
    lines: list[dict[str, Any]]


class InvoiceLine(NamedTuple):
    """A line of an invoice.

    `at`: time in the time zone of the invoice; None for usage. `amount`: micro-credits, negative for refunds and
    credits. `credit`: the id of a credit, whose page shows the evidence.
    """

    kind: str
    order: int | None
    cell: str
    band: str
    text: str
    at: dt.datetime | None
    starts_at: dt.datetime | None
    ends_at: dt.datetime | None
    amount: int
    credit: int | None = None


COLUMNS = (
    *("invoice", "month", "tenant", "kind", "order", "cell", "band", "text"),
    *("posted_at", "starts_at", "ends_at", "credits", "micro_credits", "credit_id"),
)


def lines_of(invoice: InvoiceFields) -> list[InvoiceLine]:
    zone = ZoneInfo(invoice.time_zone)
    times = ("at", "starts_at", "ends_at")
    return [InvoiceLine(**{**line, **{name: _local(line[name], zone) for name in times}}) for line in invoice.lines]


def table_of(invoice: InvoiceFields, tenant: str) -> Iterator[Sequence[object]]:
    """Return the header and one row per line of the invoice. Amounts in credits have six decimals, so the column adds
    up to the exact total.
    """
    yield COLUMNS
    for line in lines_of(invoice):
        cells = [cell.isoformat(timespec="seconds") if isinstance(cell, dt.datetime) else cell for cell in line[:-2]]
        amounts = (exact(line.amount), line.amount, line.credit)
        yield (invoice.number, f"{invoice.month:%Y-%m}", tenant, *cells, *amounts)


def exact(amount: int) -> str:
    """Return an amount of micro-credits as text in credits, with six decimals and without separators: `1234.500000`."""
    whole, rest = divmod(abs(amount), CREDIT)
    return f"{'-' if amount < 0 else ''}{whole}.{rest:06d}"


def _local(given: str | None, zone: ZoneInfo) -> dt.datetime | None:
    return None if given is None else dt.datetime.fromisoformat(given).astimezone(zone)
