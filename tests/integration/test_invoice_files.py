"""Tests of invoices as PDF and CSV: the bytes never change, any letter is printed, and CSV has no formulas."""

from __future__ import annotations

import csv
import datetime as dt
import io
import re

import pytest

from quota.billing.invoice_pdf import _marked, invoice_pdf
from quota.billing.invoice_table import COLUMNS, exact, table_of
from quota.csv_files import csv_of
from quota.models import Invoice, Tenant

LINE = {
    "kind": "charge",
    "order": 7,
    "cell": "cc",
    "band": "production",
    "text": "order 7 begins",
    "at": "2026-03-05T00:30:00+00:00",
    "starts_at": "2026-03-05T00:00:00+00:00",
    "ends_at": "2026-04-05T00:00:00+00:00",
    "amount": 1_234_567_890,
}


def an_invoice(lines, *, title: str = "Ubar", closed: bool = True) -> Invoice:
    amounts = [line["amount"] for line in lines]
    charged, refunded = sum(a for a in amounts if a > 0), -sum(a for a in amounts if a < 0)
    at = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    return Invoice(
        pk=1 if closed else None,
        number="INV-00000001" if closed else "draft",
        tenant=Tenant(name="ubar", title=title),
        month=at.date(),
        time_zone="America/New_York",
        begins_at=at,
        ends_at=at + dt.timedelta(days=31),
        lines=lines,
        charged=charged,
        refunded=refunded,
        total=charged - refunded,
        issued_at=at,
    )


def pages(pdf: bytes) -> int:
    return len(re.findall(rb"/Type /Page\b", pdf))


def test_the_same_invoice_has_the_same_bytes() -> None:
    assert invoice_pdf(an_invoice([LINE])) == invoice_pdf(an_invoice([LINE]))
    assert invoice_pdf(an_invoice([LINE])) != invoice_pdf(an_invoice([LINE | {"amount": 1}]))


@pytest.mark.parametrize("lines, least", [(0, 1), (1, 1), (300, 8)])
def test_it_has_as_many_pages_as_it_takes(lines: int, least: int) -> None:
    pdf = invoice_pdf(an_invoice([LINE | {"order": n} for n in range(lines)]))
    assert pdf.startswith(b"%PDF-")
    assert least <= pages(pdf) <= 2 * least


@pytest.mark.parametrize(
    "title",
    ["Łódź & Ženeva <b>", "Ομάδα Ωμέγα", "команда", "团队 テスト", "\x00\x07 control", "👩‍🚀", "a" * 200, "</font><b"],
    ids=["latin", "greek", "cyrillic", "cjk", "control", "emoji", "long", "markup"],
)
def test_any_name_is_printed(title: str) -> None:
    assert pages(invoice_pdf(an_invoice([LINE | {"kind": "refund", "text": title}], title=title))) == 1


def test_letters_come_from_the_first_font_that_has_them() -> None:
    fonts = (("One", str.isascii), ("Two", lambda letter: letter == "ß"))
    assert _marked("aß中&", fonts) == (
        '<font name="One">a</font><font name="Two">ß</font><font name="One">?&amp;</font>'
    )


def test_a_draft_says_so() -> None:
    draft = invoice_pdf(an_invoice([LINE], closed=False))
    (title,) = re.findall(rb"/Title \((.*?)\)", draft)
    assert b"Draft" in title


def test_csv_is_exact_local_and_harmless() -> None:
    lines = [LINE, LINE | {"kind": "refund", "text": '=cmd|"/c calc"!A1\r\n', "amount": -1}]
    text = csv_of(table_of(an_invoice(lines), "+tenant"))
    assert text.count("\r\n") == 4, "three rows, and one within quotes"
    head, charge, refund = csv.reader(io.StringIO(text, newline=""))
    assert tuple(head) == COLUMNS
    first = dict(zip(head, charge, strict=True))
    assert (first["credits"], first["micro_credits"]) == ("1234.567890", "1234567890")
    assert first["posted_at"] == "2026-03-04T19:30:00-05:00"
    assert first["tenant"] == "'+tenant"
    assert refund[7].startswith("'=cmd")
    assert refund[-3:] == ["-0.000001", "-1", ""]


@pytest.mark.parametrize("amount, told", [(0, "0.000000"), (-1, "-0.000001"), (2**63 - 1, "9223372036854.775807")])
def test_exact_credits(amount: int, told: str) -> None:
    assert exact(amount) == told
