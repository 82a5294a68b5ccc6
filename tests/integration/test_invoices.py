"""Tests of invoices: months in any time zone, closed for ever, and equal to the ledger to the last micro-credit."""

from __future__ import annotations

import datetime as dt
import threading

import pytest
from django.db import IntegrityError, connection, transaction
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from quota import clock, records
from quota.billing import ledger
from quota.billing.invoices import invoice_close, invoice_draft, invoices_close_due
from quota.billing.ledger_check import ledger_check
from quota.billing.metering import MeteredRow, meter
from quota.models import Invoice, Notice, Posting
from quota.vocabulary import months
from quota.vocabulary.errors import Conflict, Rejected
from quota.vocabulary.permissions import Role
from tests.integration import money_rows as market
from tests.integration import rows, world
from tests.integration.money_rows import a_metered_hour, invoice_check

pytestmark = pytest.mark.django_db
MARCH = dt.date(2026, 3, 1)
HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)


@pytest.fixture(autouse=True)
def _balanced():
    rows.a_cell()
    yield
    assert ledger_check() == []


def utc(*given: int) -> dt.datetime:
    return dt.datetime(*given, tzinfo=dt.UTC)


def funded(name: str = "ubar", zone: str = "UTC"):
    with clock.at(utc(2020, 1, 1)):
        tenant = market.funded(name, 10**12)
    tenant.time_zone = zone
    tenant.save()
    return tenant


def charged(tenant, moment: dt.datetime, price: int = 100):
    with clock.at(moment):
        return market.charged(tenant, price, begin=moment)


def close(tenant, month: dt.date = MARCH, now: dt.datetime | None = None) -> Invoice:
    with clock.at(now or utc(2026, 12, 1)):
        return invoice_close(principal=market.ME, tenant=tenant, month=month)


def test_an_invoice_lists_charges_refunds_and_usage_and_equals_the_ledger() -> None:
    tenant = funded()
    market.a_price_list(usage={"cpu": 1000})
    order = charged(tenant, utc(2026, 3, 5), 700)
    with clock.at(utc(2026, 3, 20)):
        market.refunded(order, 300)
    used = (1000 * 3600, 0, 0, 0, 0, 0)
    for n, band in enumerate(("production", "batch", "")):
        meter(
            cell="cc",
            hour=utc(2026, 3, 31, 23),
            rows=[MeteredRow(tenant.pk, band, f"{n:032x}", "web", {}, used, used, used)],
        )
    (invoice,) = invoices_close_due(utc(2026, 4, 1, 6))
    assert [(line["kind"], line["band"]) for line in invoice.lines] == [
        ("charge", "production"),
        ("refund", "production"),
        ("usage", "batch"),
        ("usage", "production"),
    ]
    assert invoice.lines[0]["order"] == order.pk
    assert invoice.refunded == 300
    assert invoice.total == 400 + sum(line["amount"] for line in invoice.lines if line["kind"] == "usage")
    assert invoice_check(invoice) == []
    assert Notice.objects.filter(kind="invoice.ready").count() == 1
    assert invoices_close_due(utc(2026, 4, 1, 7)) == []


def test_a_draft_is_what_the_invoice_will_be() -> None:
    tenant = funded()
    charged(tenant, utc(2026, 3, 5))
    with clock.at(utc(2026, 3, 31)):
        draft = invoice_draft(tenant)
    assert (draft.number, draft.pk, draft.total, invoice_check(draft)) == ("draft", None, 100, [])
    assert close(tenant).lines == draft.lines
    assert invoice_draft(tenant, MARCH).pk is not None


def test_a_month_closes_at_six_in_the_morning_of_the_first() -> None:
    tenant = funded(zone="Asia/Tokyo")
    charged(tenant, utc(2026, 3, 5))
    first_of_april = utc(2026, 3, 31, 15)  # midnight in this time zone
    with pytest.raises(Conflict, match="can be closed from 2026-03-31 21:00 UTC"):
        close(tenant, now=first_of_april + 5 * HOUR)
    assert invoices_close_due(first_of_april + 5 * HOUR) == []
    (invoice,) = invoices_close_due(first_of_april + 6 * HOUR)
    assert (invoice.begins_at, invoice.ends_at) == (utc(2026, 2, 28, 15), first_of_april)


@pytest.mark.parametrize(
    "zone, month",
    [
        ("UTC", dt.date(2028, 2, 1)),
        ("Europe/Berlin", MARCH),
        ("America/St_Johns", dt.date(2026, 11, 1)),
        ("America/Santiago", dt.date(2026, 9, 1)),
        ("Australia/Lord_Howe", dt.date(2026, 10, 1)),
        ("Pacific/Kiritimati", dt.date(2026, 12, 1)),
        ("Africa/Casablanca", dt.date(2026, 3, 1)),
    ],
    ids=["leap", "spring", "newfoundland", "santiago", "half-hour", "far-east", "ramadan"],
)
def test_the_first_and_last_microsecond_of_a_month_are_its_own(zone: str, month: dt.date) -> None:
    tenant = funded(zone=zone)
    begin, end = months.bounds(month, zone)
    for moment, price in ((begin, 1), (months.last_instant(end), 10), (months.last_instant(begin), 100), (end, 1000)):
        charged(tenant, moment, price)
    with clock.at(utc(2030, 1, 1)):
        closed = invoices_close_due()
    assert [invoice.total for invoice in closed] == [100, 11, 1000]
    assert [invoice.month for invoice in closed][1] == month


def test_nothing_is_posted_into_a_closed_month_not_even_by_a_clock_that_lags() -> None:
    tenant = funded()
    charged(tenant, utc(2026, 3, 5))
    invoice = close(tenant)
    late = charged(tenant, utc(2026, 3, 6))
    assert Posting.objects.get(order=late, kind="charge").occurred_at == invoice.ends_at
    with pytest.raises(IntegrityError, match="has closed all before"), transaction.atomic():
        Posting.objects.create(
            kind="charge",
            tenant=tenant,
            text="x",
            actor="x",
            occurred_at=invoice.ends_at - dt.timedelta(microseconds=1),
        )
    assert invoice_check(Invoice.objects.get()) == []


def test_an_invoice_is_never_changed() -> None:
    tenant = funded()
    charged(tenant, utc(2026, 3, 5))
    close(tenant)
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        Invoice.objects.update(issued_at=utc(2026, 1, 1))


def test_numbers_have_no_gaps_and_empty_months_no_invoice() -> None:
    first, second = funded("one"), funded("two")
    charged(first, utc(2026, 1, 5))
    charged(second, utc(2026, 1, 6))
    charged(first, utc(2026, 3, 7))
    with pytest.raises(Conflict, match="nothing was charged"):
        close(first, dt.date(2025, 12, 1))
    with transaction.atomic():
        close(first, dt.date(2026, 1, 1))
        transaction.set_rollback(True)
    closed = invoices_close_due(utc(2026, 6, 1))
    assert [invoice.number for invoice in closed] == ["INV-00000001", "INV-00000002", "INV-00000003"]
    assert close(first) == closed[1]


def test_months_stay_seamless_when_the_time_zone_changes() -> None:
    tenant = funded()
    charged(tenant, utc(2026, 3, 5), 1)
    close(tenant)
    tenant.time_zone = "America/Los_Angeles"
    tenant.save()
    charged(tenant, utc(2026, 4, 1, 3), 10)  # March in this time zone, and March is closed
    charged(tenant, utc(2026, 5, 1, 3), 100)  # April in this time zone
    (april,) = invoices_close_due(utc(2026, 5, 2))
    assert (april.begins_at, april.ends_at, april.total) == (utc(2026, 4, 1), utc(2026, 5, 1, 7), 110)


def test_a_month_that_began_before_an_empty_one_is_not_lost() -> None:
    tenant = funded()
    charged(tenant, utc(2026, 1, 5))
    charged(tenant, utc(2026, 4, 5))
    assert [invoice.month.month for invoice in invoices_close_due(utc(2026, 6, 1))] == [1, 4]


def test_no_month_is_closed_before_an_earlier_one_that_has_something_in_it() -> None:
    tenant = funded()
    charged(tenant, utc(2026, 3, 10), 100)
    charged(tenant, utc(2026, 4, 10), 200)
    with pytest.raises(Conflict, match="2026-03 of ubar is still open"):
        close(tenant, dt.date(2026, 4, 1), utc(2026, 5, 2))
    assert close(tenant, MARCH, utc(2026, 5, 2)).total == 100
    assert close(tenant, dt.date(2026, 4, 1), utc(2026, 5, 2)).total == 200


def test_only_an_sre_closes_and_only_months() -> None:
    tenant = funded()
    with pytest.raises(Rejected, match="may not"):
        invoice_close(principal=world.principal("ann", tenant=tenant, role=Role.OWNER), tenant=tenant, month=MARCH)
    with pytest.raises(Rejected, match="not the first day"):
        close(tenant, dt.date(2026, 3, 2))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Asia/Kathmandu", "Pacific/Apia", "America/Santiago"]),
    st.lists(
        st.tuples(
            st.sampled_from(["order", "take", "back", "refund", "usage", "grant", "close", "zone"]),
            st.integers(1, 10**12),
            st.integers(-5, 40 * 24),
        ),
        min_size=4,
        max_size=25,
    ),
)
@example("UTC", [("order", 5, 0), ("take", 1, 0), ("close", 1, 900), ("refund", 3, -5), ("close", 1, 900)])
def test_whatever_happens_the_ledger_adds_up_and_invoices_equal_it(zone, happenings) -> None:
    with transaction.atomic():
        play(zone, happenings)
        assert ledger_check() == []
        for invoice in Invoice.objects.all():
            assert invoice_check(invoice) == []
        transaction.set_rollback(True)


def play(zone: str, happenings) -> None:
    """Do each (kind, amount, hours) in order for a new tenant. Before each one, the clock moves by `hours`."""
    tenant, now = funded(zone=zone), utc(2027, 12, 25)
    waiting, running = [], []
    for number, (what, amount, hours) in enumerate(happenings):
        now += hours * HOUR
        with clock.at(now), records.write(market.ME) as entry:
            if what == "order":
                waiting.append(order := market.an_order(tenant, amount, begin=now))
                try:
                    with transaction.atomic():
                        ledger.hold(entry, order)
                except Rejected:
                    market.moved(waiting.pop(), market.OrderState.REJECTED)
            elif what in ("take", "back") and waiting:
                order = waiting.pop(amount % len(waiting))
                done = ledger.charge(entry, order) if what == "take" else ledger.unhold(entry, order)
                assert done is not None
                market.moved(order, market.OrderState.ACTIVE if what == "take" else market.OrderState.CANCELLED)
                running += [order] if what == "take" else []
            elif what == "refund" and running:
                order = running[amount % len(running)]
                market.refunded(order, amount % (order.price - order.refunded + 1))
            elif what == "usage":
                ledger.usage(entry, tenant, amount, text="usage", key=f"u{number}")
                meter_as_posted(tenant, now, amount, number)
            elif what == "grant":
                ledger.budget_grant(principal=market.ME, tenant=tenant, amount=amount)
            elif what == "close":
                invoices_close_due()
            elif what == "zone":
                tenant.time_zone = ["UTC", "Pacific/Kiritimati", "America/Los_Angeles"][amount % 3]
                tenant.save()


def meter_as_posted(tenant, now, amount: int, number: int) -> None:
    """Create the metered hour that belongs to usage posting `number`, as `usage_charge` does."""
    posting = Posting.objects.get(key=f"u{number}")
    a_metered_hour(
        tenant=tenant,
        cell="cc",
        job_uid=f"{number:032x}",
        job="web",
        hour=now,
        limit=[0] * 6,
        reserved=[0] * 6,
        used=[0] * 6,
        price=amount,
        posting=posting,
    )


@pytest.mark.django_db(transaction=True)
def test_months_closed_by_many_at_once_are_closed_once_with_numbers_in_a_row() -> None:
    tenants = [funded(f"t{n}") for n in range(4)]
    for tenant in tenants:
        charged(tenant, utc(2026, 3, 5))

    def run() -> None:
        try:
            invoices_close_due(utc(2026, 4, 2))
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(Invoice.objects.values_list("number", flat=True)) == [f"INV-{n:08d}" for n in range(1, 5)]
