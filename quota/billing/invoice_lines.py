"""The lines of an invoice as rows of a table, the same for CSV, PDF and pages (pure)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol
from zoneinfo import ZoneInfo

from quota.vocabulary.money import CREDIT


class InvoiceFields(Protocol):
    """The fields that are read of `quota.models.Invoice`."""

    number: str
    month: dt.date
    time_zone: str
    lines: list[dict[str, Any]]


class InvoiceLine(NamedTuple):
    """Times are in the invoice's zone; `at` is none for usage. `amount`: micro-credits, refunds below zero."""

    kind: str
    order: int | None
    cell: str
    band: str
    text: str
    at: dt.datetime | None
    starts_at: dt.datetime | None
    ends_at: dt.datetime | None
    amount: int


COLUMNS = (
    "invoice",
    "month",
    "tenant",
    "kind",
    "order",
    "cell",
    "band",
    "text",
    "posted_at",
    "starts_at",
    "ends_at",
    "credits",
    "micro_credits",
)


def lines_of(invoice: InvoiceFields) -> list[InvoiceLine]:
    zone = ZoneInfo(invoice.time_zone)
    return [
        InvoiceLine(
            line["kind"],
            line["order"],
            line["cell"],
            line["band"],
            line["text"],
            _local(line, "at", zone),
            _local(line, "starts_at", zone),
            _local(line, "ends_at", zone),
            line["amount"],
        )
        for line in invoice.lines
    ]


def table_of(invoice: InvoiceFields, tenant: str) -> Iterator[tuple[object, ...]]:
    """A head, then a row per line. Credits with all six decimals: the column adds up to the total exactly."""
    yield COLUMNS
    for line in lines_of(invoice):
        yield (
            invoice.number,
            f"{invoice.month:%Y-%m}",
            tenant,
            line.kind,
            line.order,
            line.cell,
            line.band,
            line.text,
            _iso(line.at),
            _iso(line.starts_at),
            _iso(line.ends_at),
            exact(line.amount),
            line.amount,
        )


def exact(amount: int) -> str:
    """Credits with all six decimals and no grouping."""
    whole, rest = divmod(abs(amount), CREDIT)
    return f"{'-' if amount < 0 else ''}{whole}.{rest:06d}"


def _local(line: Mapping[str, Any], name: str, zone: ZoneInfo) -> dt.datetime | None:
    given = line[name]
    return None if given is None else dt.datetime.fromisoformat(given).astimezone(zone)


def _iso(moment: dt.datetime | None) -> str:
    return "" if moment is None else moment.isoformat(timespec="seconds")
