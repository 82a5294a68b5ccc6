"""Tests of the console's pages of the market and of money: only SREs change rows, and only through services."""

from __future__ import annotations

import datetime as dt

import pytest
from django.contrib.auth import get_user_model
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from quota import clock
from quota.billing.ledger import balance_of, budget_grant
from quota.billing.ledger_check import ledger_check
from quota.market.approval_rules import rule_remove, rule_set
from quota.market.orders import order_place
from quota.models import (
    Account,
    ApprovalRule,
    Budget,
    CapabilityRequest,
    CellCapacity,
    Invoice,
    Market,
    Order,
    Record,
    Shortfall,
    Tenant,
)
from quota.vocabulary.errors import Forbidden, NotFound
from quota.vocabulary.money import CREDIT
from quota.vocabulary.permissions import Principal, system
from tests.integration import money_rows, portal_world, rows
from tests.integration.portal_world import signed_in

pytestmark = pytest.mark.django_db
SRE = system("test")
HOUR = dt.timedelta(hours=1)
PAGES = ["order", "shortfall", "market", "approvalrule", "budget", "account", "posting", "invoice"]
MARKET = {
    "selling": "on",
    "headroom_milli": "100",
    "longest_days": "90",
    "quote_minutes": "30",
    "approval_hours": "24",
    "grace_hours": "12",
    "after_grace": "drop",
    "drop_after_hours": "6",
}


@pytest.fixture
def world():
    world = portal_world.make()
    CellCapacity.objects.update_or_create(cell="cc", defaults={"capacity": list(rows.LARGE), "revision": 1})
    return world


@pytest.fixture
def sre(world):
    return signed_in("sre")


def listed(page: str) -> str:
    return reverse(f"admin:quota_{page}_changelist")


def an_order(tenant: Tenant) -> Order:
    """Place an order that begins in an hour and that a rule approves."""
    starts_at = clock.now().replace(microsecond=0) + HOUR
    budget_grant(principal=SRE, tenant=tenant, amount=10**6 * CREDIT, text="start")
    return order_place(
        principal=SRE,
        tenant=tenant,
        cell="cc",
        band="batch",
        amounts={"cpu": "2"},
        starts_at=starts_at,
        ends_at=starts_at + 24 * HOUR,
    )


@pytest.mark.parametrize("page", PAGES)
def test_tenants_see_none_of_it(world, page) -> None:
    for name in ("owner", "stranger"):
        assert signed_in(name).get(listed(page), follow=True).status_code == 403
    assert signed_in("sre").get(listed(page)).status_code == 200


def test_a_market_is_set_through_its_service_and_recorded(sre, world) -> None:
    answer = sre.post(reverse("admin:quota_market_add"), {"cell": "cc", **MARKET}, follow=True)
    assert answer.status_code == 200
    market = Market.objects.get()
    assert (market.headroom_milli, market.longest_days, market.after_grace) == (100, 90, "drop")
    assert Record.objects.get(kind="market.set").actor == "sre"
    path = reverse("admin:quota_market_change", args=[market.pk])
    sre.post(path, {**MARKET, "selling": "", "cell": "other"})
    market.refresh_from_db()
    assert (market.cell, market.selling) == ("cc", False)


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("headroom_milli", "1001", "whole number from 0 to 1000"),
        ("longest_days", "0", "whole number from 1"),
        ("cell", "nowhere", "nowhere"),
    ],
)
def test_what_a_market_can_not_be_is_reported_and_changes_nothing(sre, field, value, told) -> None:
    answer = sre.post(reverse("admin:quota_market_add"), {"cell": "cc", **MARKET, field: value})
    assert told in answer.text
    assert not Market.objects.filter(headroom_milli=100).exists()


def test_rules_are_made_changed_and_removed_through_their_service(sre, world) -> None:
    ApprovalRule.objects.all().delete()
    given = {
        "rank": "5",
        "cell": "cc",
        "band": "",
        "tenant": world.tenant.pk,
        "most_price": "10.5",
        "approver": "owner",
    }
    path = reverse("admin:quota_approvalrule_add")
    for wrong in ({"approver": "me"}, {"cell": "nowhere"}, {"most_price": "-1"}, {"rank": "-1"}, {"rank": "9999999"}):
        assert sre.post(path, {**given, **wrong}).status_code == 200, wrong
    assert not ApprovalRule.objects.exists()
    sre.post(path, given)
    rule = ApprovalRule.objects.get()
    assert (rule.rank, rule.most_price, rule.approver) == (5, 10_500_000, "owner")
    assert sre.post(path, given).status_code == 200  # that rank is taken
    change = reverse("admin:quota_approvalrule_change", args=[rule.pk])
    sre.post(change, {**given, "cell": "", "most_price": "", "rank": "9"})
    rule.refresh_from_db()
    assert (rule.rank, rule.cell, rule.most_price) == (5, "", None)
    sre.post(reverse("admin:quota_approvalrule_delete", args=[rule.pk]), {"post": "yes"})
    assert not ApprovalRule.objects.exists()
    kinds = Record.objects.filter(kind__startswith="approval-rule").order_by("revision")
    assert [row.kind for row in kinds] == ["approval-rule.set", "approval-rule.set", "approval-rule.removed"]
    with pytest.raises(Forbidden):
        rule_set(principal=Principal(name="x"), rank=1, approver="auto")
    with pytest.raises(NotFound):
        rule_remove(principal=SRE, rank=77)


def test_a_month_is_closed_once_it_is_over(sre, world) -> None:
    path = reverse("admin:quota_invoice_close_month")
    assert 'name="month"' in sre.get(path).text
    begin = dt.datetime(2026, 3, 1, tzinfo=dt.UTC)
    with clock.at(begin + HOUR):
        budget_grant(principal=SRE, tenant=world.tenant, amount=10 * CREDIT, text="start")
        money_rows.charged(world.tenant, 3 * CREDIT, begin=begin)
        assert "can be closed from" in sre.post(path, {"tenant": world.tenant.pk, "month": "2026-03"}).text
    for wrong in ("2026-13", "March", "", "2026-02"):
        assert sre.post(path, {"tenant": world.tenant.pk, "month": wrong}).status_code == 200
    assert not Invoice.objects.exists()
    done = sre.post(path, {"tenant": world.tenant.pk, "month": "2026-03"}, follow=True)
    assert "3.00 credits" in done.text
    assert Invoice.objects.get().total == 3 * CREDIT
    sre.post(path, {"tenant": world.tenant.pk, "month": "2026-03"})
    assert Invoice.objects.count() == 1


def test_credits_are_granted_with_a_reason_and_the_ledger_holds(sre, world) -> None:
    path = reverse("admin:quota_budget_grant_credits")
    assert 'name="amount"' in sre.get(path).text
    for wrong in ({"amount": "much"}, {"amount": "0"}, {"amount": "-5"}, {"amount": "1", "text": ""}):
        answer = sre.post(path, {"tenant": world.tenant.pk, "amount": "1", "text": "start", **wrong})
        assert answer.status_code == 200, wrong
    assert balance_of(world.tenant).available == 0
    answer = sre.post(path, {"tenant": world.tenant.pk, "amount": "1,200.5", "text": "year 2027"}, follow=True)
    assert "1,200.50" in answer.text
    assert balance_of(world.tenant).available == 1_200_500_000
    ledger = sre.get(listed("posting")).text
    assert "year 2027" in ledger
    assert "-1,200.50" in ledger
    assert ledger_check() == []
    owner = signed_in("owner")
    assert owner.post(path, {"tenant": world.tenant.pk, "amount": "5", "text": "x"}, follow=True).status_code == 403
    assert balance_of(world.tenant).available == 1_200_500_000


def test_every_tenant_with_credits_is_in_the_list_of_budgets(sre, world) -> None:
    tenant = rows.a_tenant("rich")
    budget_grant(principal=SRE, tenant=tenant, amount=1_234 * CREDIT, text="start")
    page = sre.get(listed("budget")).text
    assert "rich" in page
    assert "1,234.00" in page
    assert f"/admin/quota/budget/add/?tenant={tenant.pk}" in page
    Budget.objects.create(tenant=tenant)
    page = sre.get(listed("budget")).text
    assert "1,234.00" in page
    assert "no budget of their own" not in page


def test_a_budget_is_set_through_its_service(sre, world) -> None:
    given = {
        "tenant": world.tenant.pk,
        "monthly": "500",
        "alerts": "80, 50",
        "action": "stop-buying",
        "overdraft": "10",
    }
    sre.post(reverse("admin:quota_budget_add"), given)
    budget = Budget.objects.get(tenant=world.tenant)
    assert (budget.monthly, budget.alerts, budget.overdraft) == (500 * CREDIT, [50, 80], 10 * CREDIT)
    path = reverse("admin:quota_budget_change", args=[budget.pk])
    page = sre.get(path).text
    assert 'value="500.00"' in page
    assert 'value="50, 80"' in page
    wrong = sre.post(path, {**given, "alerts": "50, 900"})
    assert "percentages from 1 to 200" in wrong.text
    sre.post(path, {**given, "monthly": "", "alerts": ""})
    budget.refresh_from_db()
    assert (budget.monthly, budget.alerts) == (None, [])


def test_orders_are_decided_with_a_reason(sre, world) -> None:
    Market.objects.get_or_create(cell="cc")
    first, second = an_order(world.tenant), an_order(world.tenant)
    Order.objects.filter(pk__in=[first.pk, second.pk]).update(state="pending")

    def act(action: str, order: Order, **more):
        return sre.post(listed("order"), {"action": action, "_selected_action": order.pk, **more}, follow=True)

    assert 'name="reason"' in act("approve", first).text
    assert "done for 1" in act("approve", first, reason="agreed").text
    assert "done for 1" in act("reject", second, reason="too much").text
    first.refresh_from_db()
    second.refresh_from_db()
    assert (first.state, first.decided_by) == ("approved", "sre")
    assert (second.state, second.reason) == ("rejected", "too much")
    again = act("approve", second, reason="after all")
    assert "rejected" in again.text
    second.refresh_from_db()
    assert second.state == "rejected"


def test_a_shortfall_leads_to_the_orders_it_touches(sre, world) -> None:
    order = an_order(world.tenant)
    now = clock.now()
    Shortfall.objects.create(
        cell="cc", begins_at=now, short=list(rows.SMALL), orders=[order.pk], tenants=["ubar"], found_at=now
    )
    page = sre.get(listed("shortfall") + "?open=yes").text
    path = reverse("admin:quota_order_change", args=[order.pk])
    assert path in page
    assert sre.get(path).status_code == 200
    assert not list(sre.get(listed("shortfall") + "?open=no").context["cl"].result_list)


def test_what_waits_is_reported_on_the_first_page(sre, world) -> None:
    assert "sold than there is" not in sre.get("/admin/").text
    order = an_order(world.tenant)
    Order.objects.update(state="pending", approver="sre")
    Shortfall.objects.create(cell="cc", begins_at=clock.now(), short=list(rows.SMALL), found_at=clock.now())
    page = sre.get("/admin/").text
    assert "The prod quota that was sold exceeds the capacity of cell cc." in page
    assert "1 order waits for an SRE&#x27;s decision." in page
    listed_there = sre.get(listed("order") + "?state__exact=pending&approver__exact=sre")
    assert [row.pk for row in listed_there.context["cl"].result_list] == [order.pk]


def test_a_request_for_a_capability_is_announced_on_the_first_page(sre, world) -> None:
    assert "for a capability" not in sre.get("/admin/").text
    user = get_user_model().objects.get(username="viewer")
    request = CapabilityRequest.objects.create(
        tenant=world.tenant,
        user=user,
        kind="shell",
        reason="debugging",
        until=clock.now() + dt.timedelta(days=1),
        asked_by="viewer",
        asked_at=clock.now(),
    )
    page = sre.get("/admin/").text
    assert "1 request for a capability waits for an SRE&#x27;s decision." in page
    address = reverse("admin:quota_capabilityrequest_changelist") + "?state__exact=open"
    assert address in page
    assert [row.pk for row in sre.get(address).context["cl"].result_list] == [request.pk]


@pytest.mark.parametrize("page", PAGES)
def test_lists_cost_the_same_whatever_there_is_to_show(sre, world, page) -> None:
    def furnish(number: int) -> None:
        tenant = rows.a_tenant(f"team-{number}")
        order = an_order(tenant)
        now = clock.now()
        Shortfall.objects.create(
            cell="cc", begins_at=now, short=list(rows.SMALL), orders=[order.pk], tenants=["x"], found_at=now
        )
        Budget.objects.get_or_create(tenant=tenant)
        Market.objects.get_or_create(cell=f"cell-{number}")
        Invoice.objects.create(
            number=f"N-{number}",
            tenant=tenant,
            month=dt.date(2026, 1, 1),
            time_zone="UTC",
            begins_at=now,
            ends_at=now,
            charged=5,
            refunded=2,
            total=3,
            issued_at=now,
        )

    def cost() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert sre.get(listed(page)).status_code == 200
        return len(captured)

    furnish(0)
    cost()
    few = cost()
    for number in range(1, 5):
        furnish(number)
    assert cost() <= few <= 20


@pytest.mark.parametrize("page", ["account", "posting", "invoice", "order", "shortfall"])
def test_what_happened_is_never_edited(sre, world, page) -> None:
    an_order(world.tenant)
    assert sre.get(reverse(f"admin:quota_{page}_add")).status_code == 403
    model = {"account": Account, "order": Order}.get(page)
    if model is not None:
        path = reverse(f"admin:quota_{page}_change", args=[model.objects.first().pk])
        assert sre.post(path, {"balance": 10**9, "state": "active"}).status_code == 403
    assert ledger_check() == []
