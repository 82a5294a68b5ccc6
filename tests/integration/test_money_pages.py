"""Tests of the pages of money: buyers and owners see those of their tenants, and figures equal the ledger."""

from __future__ import annotations

import csv
import datetime as dt
import io
from itertools import pairwise

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from quota import clock
from quota.billing.costs import costs
from quota.billing.invoices import invoice_close
from quota.billing.ledger import balance_of, budget_grant
from quota.billing.ledger_check import ledger_check
from quota.billing.movements import month_days, movements, movements_number
from quota.models import Account, Budget, Invoice, LedgerEntry, Membership, PriorityBand, Tenant
from quota.vocabulary.errors import Forbidden
from quota.vocabulary.money import CREDIT, format_credits
from quota.vocabulary.permissions import Principal, Role, system
from tests.integration import money_rows, portal_world, rows
from tests.integration.money_rows import a_metered_hour
from tests.integration.portal_world import signed_in

pytestmark = pytest.mark.django_db
SRE = system("test")
DAY = dt.timedelta(days=1)
NOON = dt.datetime(2026, 3, 10, 12, tzinfo=dt.UTC)
PAGES = [
    "/billing/?tenant=ubar",
    "/billing/ledger.csv?tenant=ubar",
    "/billing/draft/?tenant=ubar",
    "/billing/draft.pdf?tenant=ubar",
    "/billing/draft.csv?tenant=ubar",
    "/costs/?tenant=ubar",
    "/costs.csv?tenant=ubar",
]


@pytest.fixture
def world():
    """Return a world in which tenant ubar got 1,000 credits, paid 300, was refunded 50, and has 40 held."""
    world = portal_world.make()
    Membership.objects.create(tenant=world.tenant, user=portal_world.person("buyer"), role="buyer")
    with clock.at(NOON - 5 * DAY):
        budget_grant(principal=SRE, tenant=world.tenant, amount=1_000 * CREDIT, text="=HYPERLINK(1)")
        order = money_rows.charged(world.tenant, 300 * CREDIT, begin=NOON - 5 * DAY)
    with clock.at(NOON - 3 * DAY):
        money_rows.refunded(order, 50 * CREDIT + 1)
        money_rows.held(world.tenant, 40 * CREDIT, begin=NOON + 30 * DAY)
    assert ledger_check() == []
    return world


@pytest.fixture
def at_noon():
    with clock.at(NOON):
        yield


@pytest.mark.parametrize("path", PAGES)
def test_money_is_for_buyers_and_owners(world, at_noon, path) -> None:
    for name in ("buyer", "owner", "sre"):
        assert signed_in(name).get(path).status_code == 200, name
    for name in ("viewer", "operator"):
        assert signed_in(name).get(path).status_code == 403, name
    assert signed_in("stranger").get(path).status_code == 404
    bare = path.partition("?")[0]
    assert "ubar" not in signed_in("viewer").get(bare).text
    assert signed_in("stranger").get(bare).status_code == 200


def test_the_balance_and_the_month_are_the_ledger_s(world, at_noon) -> None:
    page = signed_in("owner").get("/billing/?tenant=ubar")
    has = balance_of(world.tenant)
    assert (has.available, has.held) == (710 * CREDIT + 1, 40 * CREDIT)
    assert page.context["spending"].has == has
    for told in ("710.000001", "40.00", "249.999999"):
        assert told in page.text
    days = month_days(SRE, world.tenant, dt.date(2026, 3, 1), until=NOON)
    revenue = sum(
        LedgerEntry.objects.filter(account__kind="revenue", posting__tenant=world.tenant).values_list(
            "amount", flat=True
        )
    )
    assert days[-1].spent == revenue == 250 * CREDIT - 1
    assert [(day.date.day, day.orders, day.refunds) for day in days if day.orders or day.refunds] == [
        (5, 300 * CREDIT, 0),
        (7, 0, -50 * CREDIT - 1),
    ]
    assert len(days) == 10


def test_a_statement_runs_from_nothing_to_the_balance(world) -> None:
    found = movements(SRE, world.tenant)
    assert [one.kind for one in found] == ["hold", "refund", "charge", "hold", "budget"]
    assert found[0].available_after == balance_of(world.tenant).available
    for later, before in pairwise(found):
        assert later.available_after - later.available == before.available_after
        assert later.balance_after - later.change == before.balance_after
    assert found[-1].available_after == found[-1].available == 1_000 * CREDIT
    assert movements(SRE, world.tenant, first=1, number=2) == found[1:3]
    assert movements_number(world.tenant) == len(found)
    with pytest.raises(Forbidden):
        movements(Principal(name="viewer", roles={"ubar": Role.VIEWER}), world.tenant)


def test_the_ledger_s_csv_is_exact_and_harmless(world) -> None:
    answer = signed_in("owner").get("/billing/ledger.csv?tenant=ubar")
    assert answer["Content-Disposition"] == 'attachment; filename="ledger-ubar.csv"'
    read = list(csv.DictReader(io.StringIO(answer.text)))
    assert sum(int(row["available"]) for row in read) == balance_of(world.tenant).available
    assert sum(int(row["held"]) for row in read) == balance_of(world.tenant).held
    assert [row["text"] for row in read if row["kind"] == "budget"] == ["'=HYPERLINK(1)"]


def test_the_ledger_s_csv_of_a_month_is_that_month_s(world) -> None:
    with clock.at(NOON + 40 * DAY):
        budget_grant(principal=SRE, tenant=world.tenant, amount=CREDIT, text="later")
    client = signed_in("owner")
    april = client.get("/billing/ledger.csv?tenant=ubar&month=2026-04")
    assert april["Content-Disposition"] == 'attachment; filename="ledger-ubar-2026-04.csv"'
    (row,) = csv.DictReader(io.StringIO(april.text))
    assert (row["text"], int(row["available_after"])) == ("later", balance_of(world.tenant).available)
    march = list(csv.DictReader(io.StringIO(client.get("/billing/ledger.csv?tenant=ubar&month=2026-03").text)))
    assert int(march[0]["available_after"]) == 710 * CREDIT + 1
    for wrong in ("2026-13", "March", "2026-04-01", "0001-01", "9999-12", "٢٠٢٦-٠١"):
        assert client.get(f"/billing/ledger.csv?tenant=ubar&month={wrong}").status_code == 422, wrong


def test_an_invoice_is_a_page_a_pdf_and_a_csv_that_say_the_same(world) -> None:
    with clock.at(dt.datetime(2026, 4, 2, tzinfo=dt.UTC)):
        row = invoice_close(principal=SRE, tenant=world.tenant, month=dt.date(2026, 3, 1))
        client = signed_in("buyer")
        page = client.get(f"/billing/invoices/{row.number}/")
        assert page.status_code == 200
        for told in (row.number, "300.00", "50.000001", "249.999999"):
            assert told in page.text
        read = list(csv.DictReader(io.StringIO(client.get(f"/billing/invoices/{row.number}.csv").text)))
        assert sum(int(line["micro_credits"]) for line in read) == row.total == 250 * CREDIT - 1
        pdf = client.get(f"/billing/invoices/{row.number}.pdf")
        assert pdf["Content-Type"] == "application/pdf"
        assert pdf.content.startswith(b"%PDF")
        assert row.number in client.get("/billing/?tenant=ubar").text
        for path in ("/", ".pdf", ".csv"):
            assert signed_in("stranger").get(f"/billing/invoices/{row.number}{path}").status_code == 404
            assert signed_in("viewer").get(f"/billing/invoices/{row.number}{path}").status_code == 403
            assert client.get(f"/billing/invoices/INV-99999999{path}").status_code == 404


def test_a_draft_is_said_to_be_one_and_stored_nowhere(world, at_noon) -> None:
    page = signed_in("owner").get("/billing/draft/?tenant=ubar")
    assert "The month has not ended" in page.text
    assert "249.999999" in page.text
    assert not Invoice.objects.exists()


def test_owners_set_the_budget_and_nobody_else(world) -> None:
    given = {"tenant": "ubar", "monthly": "500", "alerts": "80 %, 50", "action": "stop-buying", "overdraft": "99999"}
    for name in ("buyer", "viewer", "operator"):
        assert signed_in(name).post("/billing/budget/", given).status_code == 403
    assert signed_in("stranger").post("/billing/budget/", given).status_code == 404
    assert not Budget.objects.exists()
    owner = signed_in("owner")
    assert owner.get("/billing/budget/").status_code == 405
    done = owner.post("/billing/budget/", given)
    assert (done.status_code, done["Location"]) == (302, "/billing/?tenant=ubar")
    budget = Budget.objects.get()
    assert (budget.monthly, budget.alerts, budget.action) == (500 * CREDIT, [50, 80], "stop-buying")
    assert budget.overdraft == 0  # only SREs give credit


@pytest.mark.parametrize(
    "wrong",
    [
        {"tenant": "\x00"},
        {"monthly": "-1"},
        {"monthly": "lots"},
        {"monthly": "1e9"},
        {"monthly": "99999999999999999"},
        {"alerts": "0"},
        {"alerts": "201"},
        {"alerts": "fifty"},
        {"alerts": "١"},
        {"action": "kill"},
        {"action": ""},
    ],
    ids=["nul", "negative", "word", "exponent", "huge", "zero", "above", "text", "arabic", "kill", "none"],
)
def test_what_a_budget_can_not_be_is_reported_beside_what_was_given(world, wrong) -> None:
    answer = signed_in("owner").post(
        "/billing/budget/", {"tenant": "ubar", "monthly": "5", "alerts": "50", "action": "none", **wrong}
    )
    assert 400 <= answer.status_code < 500
    assert next(iter(wrong)) in answer.context["problem"].fields
    assert not Budget.objects.exists()


def test_credits_are_handed_to_teams_and_to_nobody_else(world) -> None:
    team = Tenant.objects.create(name="ubar-ads", parent=world.tenant)
    owner = signed_in("owner")
    given = {"tenant": "ubar", "to": "ubar-ads", "amount": "10.5", "text": "start"}
    assert signed_in("buyer").post("/billing/hand-down/", given).status_code == 403
    for wrong in ({"to": "other"}, {"to": ""}, {"amount": "-1"}, {"amount": "0"}, {"amount": ""}, {"amount": "9999"}):
        answer = owner.post("/billing/hand-down/", {**given, **wrong})
        assert 400 <= answer.status_code < 500, wrong
    assert balance_of(team).available == 0
    assert owner.post("/billing/hand-down/", given).status_code == 302
    assert balance_of(team).available == 10_500_000
    assert movements(SRE, world.tenant)[0].available == movements(SRE, team)[0].available * -1 == -10_500_000
    assert ledger_check() == []


def test_costs_add_up_on_the_page_and_in_the_file(world, at_noon) -> None:
    band = PriorityBand.objects.get(name="production")
    for job, milli in (("web", 500), ("-danger", 250)):
        a_metered_hour(
            tenant=world.tenant,
            cell="cc",
            band=band,
            job_uid=job,
            job=job,
            hour=NOON - DAY,
            labels={"team": job},
            limit=[milli * 3600, milli * 2**20 * 3600, 0, 0, 0, 0],
            reserved=[0] * 6,
            used=[0] * 6,
            price=7,
        )
    client = signed_in("owner")
    for by in ("job", "team", "band", "cell", "label"):
        query = f"tenant=ubar&by={by}&label=team&over=30"
        expected = costs([world.tenant], since=NOON - 30 * DAY, until=NOON, by=by, label="team")
        page = client.get(f"/costs/?{query}")
        assert (everything := sum(one.total for one in expected)) > 0
        assert page.context["table"].total[-2] == format_credits(everything)
        cheapest = client.get(f"/costs/?{query}&sort=total").context["table"].rows
        assert [row["cost"].total for row in cheapest] == sorted(one.total for one in expected)
        read = list(csv.DictReader(io.StringIO(client.get(f"/costs.csv?{query}").text)))
        assert [int(row["total"]) for row in read] == [one.total for one in expected]
        assert [int(row["quota"]) + int(row["unused"]) + int(row["usage"]) for row in read] == [
            one.total for one in expected
        ]
    labels = {row["key"] for row in read}
    assert "'-danger" in labels
    assert "Enter the name of the label to group by" in client.get("/costs/?tenant=ubar&by=label").text
    assert client.get("/costs/?tenant=ubar&by=<x>&over=9&teams=yes").status_code == 200


def test_pages_cost_the_same_whatever_there_is_to_show(world, at_noon) -> None:
    client = signed_in("owner")
    paths = ["/billing/?tenant=ubar", "/costs/?tenant=ubar&over=30", "/billing/draft/?tenant=ubar"]

    def cost() -> list[int]:
        found = []
        for path in paths:
            client.get(path)
            with CaptureQueriesContext(connection) as captured:
                assert client.get(path).status_code == 200
            found.append(len(captured))
        return found

    before = cost()
    for number in range(5):
        money_rows.charged(world.tenant, CREDIT, begin=NOON - 2 * DAY)
        Invoice.objects.create(
            number=f"INV-{number + 1:08d}",
            tenant=world.tenant,
            month=dt.date(2025, number + 1, 1),
            time_zone="UTC",
            begins_at=NOON - 300 * DAY,
            ends_at=NOON - 280 * DAY,
            charged=3,
            refunded=1,
            total=2,
            issued_at=NOON,
        )
    assert cost() == before
    assert max(before) <= 25


def test_another_time_zone_moves_the_days(world, at_noon) -> None:
    with clock.at(dt.datetime(2026, 3, 9, 23, 30, tzinfo=dt.UTC)):
        money_rows.charged(world.tenant, CREDIT, begin=NOON)
    Tenant.objects.filter(pk=world.tenant.pk).update(time_zone="Asia/Tokyo")
    tenant = Tenant.objects.get(pk=world.tenant.pk)
    days = {day.date.day: day.orders for day in month_days(SRE, tenant, dt.date(2026, 3, 1), until=NOON)}
    assert (days[9], days[10]) == (0, CREDIT)
    assert signed_in("owner").get("/billing/?tenant=ubar").status_code == 200


def test_a_tenant_without_money_reads_where_it_comes_from(world) -> None:
    assert not Account.objects.filter(tenant__name="other").exists()
    page = signed_in("stranger").get("/billing/")
    assert "An SRE or your organisation can give you credits" in page.text
    assert "had no costs in this period" in signed_in("stranger").get("/costs/").text
    assert rows.a_tenant("other").accounts.count() == 0
