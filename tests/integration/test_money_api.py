"""Tests of the REST API of money: who may read it, what it returns, and what it rejects."""

from __future__ import annotations

import csv
import datetime as dt
import io

import pytest

from quota import clock
from quota.billing.ledger_check import ledger_check
from quota.models import Budget, Invoice, Order, Posting
from quota.vocabulary.money import MOST
from quota.vocabulary.permissions import Role
from tests.integration import money_rows as money
from tests.integration import rows, world

pytestmark = pytest.mark.django_db
JSON = "application/json"
QUOTA = "/api/v1/quota/"


@pytest.fixture
def tenant():
    rows.a_cell()
    tenant = money.funded("ubar", 100_000_000)
    money.an_invoice(tenant)
    yield tenant
    assert ledger_check() == []


@pytest.fixture
def owner(tenant):
    return world.bearer(world.a_user("ann", tenant=tenant))


@pytest.fixture
def root(tenant):
    return world.bearer(world.a_user("root", sre=True))


def test_the_ledger_shows_postings_that_add_up_of_ones_own_tenants(tenant, owner, root) -> None:
    money.funded("other")
    found = owner.get(f"{QUOTA}ledger/").json()["results"]
    assert [posting["kind"] for posting in found] == ["charge", "hold", "budget", "budget"]
    assert all(sum(entry["amount"] for entry in posting["entries"]) == 0 for posting in found)
    assert {posting["tenant"] for posting in found} == {"ubar"}
    assert len(root.get(f"{QUOTA}ledger/").json()["results"]) == 5
    assert len(root.get(f"{QUOTA}ledger/?tenant=ubar&kind=budget").json()["results"]) == 2
    order = Order.objects.get().pk
    assert len(owner.get(f"{QUOTA}ledger/?order={order}").json()["results"]) == 2
    first = owner.get(f"{QUOTA}ledger/?limit=3").json()
    assert len(owner.get(first["next"]).json()["results"]) == 1


def test_queries_of_the_ledger_do_not_grow(tenant, owner, django_assert_max_num_queries) -> None:
    for _ in range(10):
        money.held(tenant, 1)
    with django_assert_max_num_queries(12):
        assert len(owner.get(f"{QUOTA}ledger/").json()["results"]) == 14


def test_viewers_see_no_money(tenant) -> None:
    viewer = world.bearer(world.a_user("vic", tenant=tenant, role=Role.VIEWER))
    for path in ("ledger/", "balances/", "invoices/"):
        assert viewer.get(QUOTA + path).json()["results"] == []
    assert viewer.get(f"{QUOTA}costs/").json() == []
    for path in ("ledger/?tenant=ubar", "budgets/ubar/", "invoices/?tenant=ubar", "costs/?tenant=ubar"):
        assert viewer.get(QUOTA + path).status_code == 403, path


def test_a_budget_is_set_shown_and_granted(tenant, owner, root) -> None:
    body = {"monthly": 50_000_000, "alerts": [80, 100], "action": "stop-buying"}
    answer = owner.put(f"{QUOTA}budgets/ubar/", body, content_type=JSON).json()
    assert {name: answer[name] for name in body} == body
    assert (answer["available"], answer["running"]["percent"]) == (100_000_000, 0)
    assert root.post(f"{QUOTA}budgets/ubar/grants/", {"amount": 5}, content_type=JSON).status_code == 201
    (balance,) = owner.get(f"{QUOTA}balances/").json()["results"]
    assert (balance["tenant"], balance["available"], balance["monthly"]) == ("ubar", 100_000_005, 50_000_000)


def test_money_is_handed_to_a_team(tenant, owner) -> None:
    team = rows.a_tenant("team")
    team.parent = tenant
    team.save()
    answer = owner.post(f"{QUOTA}budgets/ubar/hand-down/", {"to": "team", "amount": 40}, content_type=JSON)
    assert (answer.status_code, answer.json()["available"]) == (201, 99_999_960)


@pytest.mark.parametrize(
    "method, path, body, field",
    [
        ("put", "budgets/ubar/", {"monthly": -1}, "monthly"),
        ("put", "budgets/ubar/", {"monthly": MOST + 1}, "monthly"),
        ("put", "budgets/ubar/", {"action": "explode"}, "action"),
        ("put", "budgets/ubar/", {"alerts": [101, 900]}, "alerts"),
        ("put", "budgets/ubar/", {"colour": 1}, "colour"),
        ("put", "budgets/ubar/", '{"action": "\\ud800"}', "action"),
        ("put", "budgets/ubar/", '{"\\ud800": 1}', "\\ud800"),
        ("post", "budgets/ubar/grants/", {"amount": 0}, "amount"),
        ("post", "budgets/ubar/grants/", {"amount": MOST}, "amount"),
        ("post", "budgets/ubar/grants/", {"amount": "much"}, "amount"),
        ("post", "budgets/ubar/grants/", {"amount": -(10**9)}, "amount"),
        ("post", "budgets/ubar/hand-down/", {"to": "other", "amount": 1}, "to"),
        ("post", "invoices/", {"tenant": "ubar", "month": "2026-13"}, "month"),
        ("get", "costs/?by=colour", None, "by"),
        ("get", "costs/?by=label", None, "label"),
        ("get", "costs/?colour=1", None, "colour"),
        ("get", "costs/?month=March", None, "month"),
        ("get", "costs/?month=2026-03&since=2026-03-01T00:00Z", None, "month"),
        ("get", "costs/?since=0001-01-01T00:00Z&until=9999-12-31T00:00Z", None, "until"),
        ("get", "invoices/drafts/ubar/?month=9999-12", None, "month"),
        ("get", "ledger/?order=x", None, "order"),
        ("get", "ledger/?order=9999999999999999999", None, "order"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_changes(tenant, root, method, path, body, field) -> None:
    rows.a_tenant("other")
    before = Posting.objects.count()
    more = {} if body is None else {"data": body, "content_type": JSON}
    answer = getattr(root, method)(QUOTA + path, **more)
    assert answer.status_code == 422, answer.content
    assert field in answer.json()["fields"]
    assert (Posting.objects.count(), Budget.objects.count()) == (before, 0)


@pytest.mark.parametrize(
    "method, path, body, status",
    [
        ("put", "budgets/ubar/", {"monthly": 5}, 200),
        ("post", "budgets/ubar/grants/", {"amount": 5}, 201),
        ("post", "invoices/", {"tenant": "ubar", "month": "2026-05"}, 201),
    ],
)
def test_a_rehearsed_write_changes_nothing(tenant, root, method, path, body, status) -> None:
    with clock.at(dt.datetime(2026, 5, 3, tzinfo=dt.UTC)):
        money.charged(tenant, 5)

    def facts():
        return Posting.objects.count(), Budget.objects.count(), Invoice.objects.count()

    before = facts()
    answer = getattr(root, method)(f"{QUOTA}{path}?dry_run=1", body, content_type=JSON)
    assert (answer.status_code, facts()) == (status, before), answer.content
    assert getattr(root, method)(QUOTA + path, body, content_type=JSON).status_code == status
    assert facts() != before


def test_invoices_as_json_pdf_and_csv(tenant, owner) -> None:
    (listed,) = owner.get(f"{QUOTA}invoices/?tenant=ubar").json()["results"]
    assert (listed["month"], listed["total"]) == ("2026-03", 3_000_000)
    number = listed["number"]
    whole = owner.get(f"{QUOTA}invoices/{number}/").json()
    assert sum(line["amount"] for line in whole["lines"]) == whole["total"]
    pdf = owner.get(f"{QUOTA}invoices/{number}.pdf", headers={"accept": "application/pdf"})
    assert (pdf["Content-Type"], pdf.content[:5]) == ("application/pdf", b"%PDF-")
    assert number in pdf["Content-Disposition"]
    table = owner.get(f"{QUOTA}invoices/{number}.csv", headers={"accept": "text/csv"})
    _head, row = csv.reader(io.StringIO(table.content.decode(), newline=""))
    assert row[-3:] == ["3.000000", "3000000", ""]
    assert owner.get(f"{QUOTA}invoices/INV-99999999/").status_code == 404
    draft = owner.get(f"{QUOTA}invoices/drafts/ubar/").json()
    assert (draft["number"], draft["total"]) == ("draft", 0)


def test_costs_as_json_and_csv(tenant, owner) -> None:
    (cost,) = owner.get(f"{QUOTA}costs/?tenant=ubar&month=2026-03&by=cell").json()
    assert (cost["key"], cost["unused"], cost["total"]) == ("cc", 3_000_000, 3_000_000)
    table = owner.get(f"{QUOTA}costs.csv?month=2026-03&by=cell")
    assert table.content.decode() == "cell,quota,unused,usage,total\r\ncc,0.000000,3.000000,0.000000,3.000000\r\n"
