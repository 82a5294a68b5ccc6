"""Tests of budgets: monthly limits in the tenant's time zone, alerts sent once, and what stops at the limit."""

from __future__ import annotations

import datetime as dt

import pytest

from quota import clock, records
from quota.billing import ledger
from quota.billing.budgets import budget_set, budgets_watch, spending_of, submitting_stopped
from quota.billing.spending import beyond_month
from quota.models import Budget, Notice, OrderState
from quota.vocabulary.errors import Rejected
from quota.vocabulary.money import MOST
from quota.vocabulary.permissions import Role
from tests.integration import money_rows as market
from tests.integration import rows, world

pytestmark = pytest.mark.django_db
MARCH = dt.datetime(2026, 3, 10, tzinfo=dt.UTC)
APRIL = dt.datetime(2026, 4, 1, tzinfo=dt.UTC)


@pytest.fixture(autouse=True)
def _in_march():
    rows.a_cell()
    with clock.at(MARCH):
        yield


def reported(*kinds: str) -> list[str]:
    return list(Notice.objects.filter(kind__in=kinds).order_by("id").values_list("kind", flat=True))


def use(tenant, amount: int) -> None:
    with records.write(market.ME) as entry:
        ledger.usage(entry, tenant, amount, text="usage", key=f"usage:{amount}")


def test_each_alert_is_reported_once_a_month_and_only_the_highest_that_is_reached() -> None:
    tenant = market.funded(amount=1000)
    budget_set(principal=market.ME, tenant=tenant, monthly=100, alerts=[50, 80, 100])
    market.charged(tenant, 60)
    assert (budgets_watch(), budgets_watch()) == (1, 0)
    market.charged(tenant, 50)
    assert (budgets_watch(), budgets_watch()) == (1, 0)
    alerts = Notice.objects.filter(kind="budget.alert").order_by("id")
    assert [notice.data["alert"] for notice in alerts] == [50, 100]
    with clock.at(APRIL):
        market.charged(tenant, 60, begin=APRIL)
        assert (budgets_watch(), budgets_watch()) == (1, 0)


def test_the_month_is_the_tenants_own() -> None:
    tenant = market.funded(amount=1000)
    tenant.time_zone = "America/New_York"
    tenant.save()
    budget_set(principal=market.ME, tenant=tenant, monthly=100, action="stop-buying")
    with clock.at(APRIL):  # still March in this time zone
        market.charged(tenant, 100)
        assert beyond_month(spending_of(tenant), 1) is not None
    with clock.at(APRIL + dt.timedelta(hours=4)):
        assert beyond_month(spending_of(tenant), 1) is None


def test_buying_stops_at_the_monthly_limit_and_says_so() -> None:
    tenant = market.funded(amount=1000)
    budget_set(principal=market.ME, tenant=tenant, monthly=100, action="stop-buying")
    market.held(tenant, 70)
    with records.write(market.ME) as entry, pytest.raises(Rejected) as refused:
        ledger.hold(entry, market.an_order(tenant, 31, state=OrderState.DRAFT))
    assert refused.value.code == "over-budget"
    assert (refused.value.figures["missing"], refused.value.figures["waiting"]) == (1, 70)
    market.held(tenant, 100, begin=APRIL)  # the next month has a limit of its own
    market.held(tenant, 30)
    assert beyond_month(spending_of(tenant), 1) is not None
    budgets_watch()
    assert reported("budget.stopped") == ["budget.stopped"]
    budget_set(principal=market.ME, tenant=tenant, monthly=101, action="stop-buying")
    assert reported("budget.resumed") == ["budget.resumed"]


def test_a_limit_without_an_action_only_alerts() -> None:
    tenant = market.funded(amount=1000)
    budget_set(principal=market.ME, tenant=tenant, monthly=10, alerts=[100])
    market.held(tenant, 500)
    budgets_watch()
    assert reported("budget.alert", "budget.stopped") == ["budget.alert"]


@pytest.mark.parametrize("action", ["stop-submitting", "drop"])
def test_submitting_stops_when_usage_has_spent_the_budget_and_a_grant_resumes_it(action) -> None:
    tenant = market.funded(amount=100)
    budget_set(principal=market.ME, tenant=tenant, action=action)
    use(tenant, 130)
    assert submitting_stopped([tenant.pk]) == {}
    budgets_watch()
    assert submitting_stopped([tenant.pk]) == {tenant.pk: action}
    ledger.budget_grant(principal=market.ME, tenant=tenant, amount=31)
    assert submitting_stopped([tenant.pk]) == {}
    assert reported("budget.stopped", "budget.resumed") == ["budget.stopped", "budget.resumed"]


def test_a_user_who_has_spent_all_on_quota_may_use_it() -> None:
    tenant = market.funded(amount=100)
    budget_set(principal=market.ME, tenant=tenant, monthly=100, action="stop-submitting")
    market.charged(tenant, 100)
    budgets_watch()
    assert submitting_stopped([tenant.pk]) == {}
    assert beyond_month(spending_of(tenant), 1) is not None


def test_a_new_month_resumes_by_itself() -> None:
    tenant = market.funded(amount=1000)
    budget_set(principal=market.ME, tenant=tenant, monthly=100, action="drop")
    use(tenant, 130)
    assert budgets_watch() == 1
    with clock.at(APRIL):
        assert (budgets_watch(), budgets_watch()) == (1, 0)
    assert submitting_stopped([tenant.pk]) == {}


def test_only_an_sre_gives_credit_and_only_owners_set_limits() -> None:
    tenant = market.funded()
    owner = world.principal("ann", tenant=tenant, role=Role.OWNER)
    budget_set(principal=owner, tenant=tenant, monthly=5, alerts=[80, 50, 50])
    assert Budget.objects.get().alerts == [50, 80]
    with pytest.raises(Rejected, match="ask an SRE"):
        budget_set(principal=owner, tenant=tenant, overdraft=1)
    with pytest.raises(Rejected, match="ask an owner of the tenant for the role owner"):
        budget_set(principal=world.principal("bob", tenant=tenant, role=Role.BUYER), tenant=tenant)
    assert Budget.objects.get().monthly == 5


@pytest.mark.parametrize(
    "given, field",
    [
        ({"monthly": -1}, "monthly"),
        ({"monthly": MOST + 1}, "monthly"),
        ({"overdraft": -1}, "overdraft"),
        ({"alerts": [0]}, "alerts"),
        ({"alerts": list(range(1, 12))}, "alerts"),
        ({"action": "explode"}, "action"),
    ],
    ids=["negative", "too-large", "overdraft", "zero", "many", "action"],
)
def test_a_bad_budget_names_the_field(given, field) -> None:
    with pytest.raises(Rejected) as refused:
        budget_set(principal=market.ME, tenant=market.funded(), **given)
    assert list(refused.value.fields) == [field]
    assert not Budget.objects.exists()


def test_watching_needs_no_query_per_tenant(django_assert_max_num_queries) -> None:
    for n in range(8):
        budget_set(principal=market.ME, tenant=market.funded(f"t{n}"), monthly=10**9, alerts=[50])
    with django_assert_max_num_queries(3):
        budgets_watch()


def test_a_tenant_without_jobs_spends_nothing() -> None:
    state = spending_of(rows.a_tenant())
    assert (state.percent, state.exhausted, state.limit) == (0, False, 0)
