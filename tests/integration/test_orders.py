"""Tests of quota orders: placed, decided, begun, cancelled, changed and transferred, with capacity and money."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth import get_user_model

from quota import clock
from quota.market import orders
from quota.market.order_steps import TRANSITIONS, OrderEvent, step
from quota.market.order_sweep import orders_advance
from quota.models import (
    ApprovalRule,
    CellCapacity,
    Market,
    Notice,
    Order,
    OrderState,
    PriorityBand,
    Quota,
    ServiceAccount,
    Tenant,
)
from quota.pricing.capacity_for_sale import availability
from quota.pricing.price_lists import quote_make
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected
from quota.vocabulary.permissions import Principal, Role
from tests.integration.market_rows import (
    CREDIT,
    DAY,
    HOUR,
    NOW,
    SRE,
    a_rich_tenant,
    a_selling_cell,
    an_owner,
    buyer,
    cores,
    grant_of,
    money,
    place,
)

pytestmark = pytest.mark.django_db

OWNER = buyer("ubar", name="olga", role=Role.OWNER)
BIG = 2**63 - 1


@pytest.fixture(autouse=True)
def _time() -> Iterator[None]:
    with clock.at(NOW):
        yield


@pytest.fixture
def ubar() -> Tenant:
    a_selling_cell()
    return a_rich_tenant()


def left(begin: float = 0, days: float = 1) -> int:
    return availability("cc", "production", NOW + begin * DAY, NOW + (begin + days) * DAY)[0] // 1000


def test_a_small_order_is_approved_by_rule_and_active_at_once(ubar: Tenant) -> None:
    order = place(ubar, 1, days=1)
    assert (order.state, order.approver, order.decided_by, order.price) == ("active", "auto", "rule 100", 24 * CREDIT)
    grant = grant_of(order)
    assert (grant.amounts, grant.starts_at, grant.ends_at) == (order.amounts, order.starts_at, order.ends_at)
    assert money(ubar) == (100_000 - 24, 0)
    assert left() == 99


def test_an_order_for_later_waits_and_holds(ubar: Tenant) -> None:
    order = place(ubar, 1, begin=5, days=1)
    assert order.state == "approved"
    assert not Quota.objects.exists()
    assert money(ubar) == (100_000 - 24, 24)
    assert [left(0), left(5)] == [100, 99]


@pytest.mark.parametrize(("count", "approver"), [(4, "auto"), (5, "owner"), (41, "owner"), (42, "sre")])
def test_the_price_decides_who_approves(ubar: Tenant, count: int, approver: str) -> None:
    assert place(ubar, count, days=10).approver == approver  # 240 credits per core


def test_rules_fit_by_rank_cell_band_and_tenant(ubar: Tenant) -> None:
    ApprovalRule.objects.create(rank=1, cell="dd", approver="sre")
    ApprovalRule.objects.create(rank=2, band=PriorityBand.objects.get(name="batch"), approver="sre")
    ApprovalRule.objects.create(rank=3, tenant=ubar, cell="cc", approver="owner")
    assert place(ubar, 1).approver == "owner"
    ApprovalRule.objects.all().delete()
    assert place(ubar, 1).approver == "sre"


def test_a_person_approves_and_it_begins(ubar: Tenant) -> None:
    order = place(ubar, 10)
    assert (order.state, money(ubar)) == ("pending", (100_000 - 2400, 2400))
    assert left() == 90
    order = orders.order_approve(principal=OWNER, order=order, reason="fine")
    assert (order.state, order.decided_by, order.reason) == ("active", "olga", "fine")
    assert money(ubar) == (100_000 - 2400, 0)
    assert left() == 90


@pytest.mark.parametrize(
    "who", [buyer("ubar", name="bob"), buyer("other", name="eve", role=Role.OWNER)], ids=["a-buyer", "a-stranger"]
)
def test_others_do_not_decide(ubar: Tenant, who: Principal) -> None:
    order = place(ubar, 10)
    for decide in (orders.order_approve, orders.order_reject):
        with pytest.raises((Forbidden, NotFound)):
            decide(principal=who, order=order, reason="x")
    assert Order.objects.get().state == "pending"


def test_nobody_decides_about_an_order_of_their_own_but_sres(ubar: Tenant) -> None:
    an_owner(ubar, "otto")
    order = place(ubar, 10, principal=OWNER)
    with pytest.raises(Forbidden, match="ask another owner"):
        orders.order_approve(principal=OWNER, order=order)
    own = place(ubar, 50, principal=SRE)
    assert orders.order_approve(principal=SRE, order=own).state == "active"


def test_an_order_of_the_only_owner_goes_to_the_sres(ubar: Tenant) -> None:
    order = place(ubar, 10, principal=OWNER)
    assert (order.state, order.approver) == ("pending", "sre")
    (notice,) = Notice.objects.filter(tenant=None, kind="order.placed")
    assert "the tenant has no other owner" in notice.text
    assert orders.order_approve(principal=SRE, order=order).state == "active"


def test_an_order_of_the_only_owners_service_account_goes_to_the_sres(ubar: Tenant) -> None:
    robot = get_user_model().objects.create(username="robot")
    ServiceAccount.objects.create(user=robot, tenant=ubar, created_by="olga", created_at=NOW)
    assert place(ubar, 10, principal=buyer("ubar", name="robot")).approver == "sre"
    an_owner(ubar, "otto")
    assert place(ubar, 10, principal=buyer("ubar", name="robot")).approver == "owner"


@pytest.mark.parametrize("how", ["left", "inactive", "viewer"])
def test_an_order_goes_to_the_sres_when_the_last_other_owner_goes(ubar: Tenant, how: str) -> None:
    other = an_owner(ubar, "otto")
    order = place(ubar, 10, principal=OWNER)
    assert order.approver == "owner"
    orders_advance(NOW)
    order.refresh_from_db()
    assert order.approver == "owner"
    if how == "left":
        other.delete()
    elif how == "inactive":
        other.user.is_active = False
        other.user.save()
    else:
        other.role = Role.VIEWER.value
        other.save()
    orders_advance(NOW)
    order.refresh_from_db()
    assert (order.state, order.approver) == ("pending", "sre")
    assert Notice.objects.filter(tenant=None, kind="order.passed-on").count() == 1
    orders_advance(NOW)
    assert Notice.objects.filter(tenant=None, kind="order.passed-on").count() == 1


def test_an_owner_does_not_decide_what_is_left_to_sres(ubar: Tenant) -> None:
    order = place(ubar, 50)
    with pytest.raises(Forbidden):
        orders.order_approve(principal=OWNER, order=order)
    assert Notice.objects.filter(tenant=None, kind="order.placed").exists()


def test_a_rejection_says_why_and_frees_everything(ubar: Tenant) -> None:
    order = place(ubar, 10)
    with pytest.raises(Rejected, match="give a reason"):
        orders.order_reject(principal=OWNER, order=order, reason=" ")
    order = orders.order_reject(principal=OWNER, order=order, reason="too much")
    assert (order.state, order.reason, order.decided_by) == ("rejected", "too much", "olga")
    assert (money(ubar), left()) == ((100_000, 0), 100)
    with pytest.raises(Conflict, match="is rejected"):
        orders.order_approve(principal=OWNER, order=order)


def test_what_comes_late_is_paid_from_then_on(ubar: Tenant) -> None:
    order = place(ubar, 10)
    with clock.at(NOW + 4 * DAY):
        order = orders.order_approve(principal=OWNER, order=order)
    assert (order.price, order.refunded) == (2400 * CREDIT, 960 * CREDIT)
    assert grant_of(order).starts_at == NOW + 4 * DAY
    assert money(ubar) == (100_000 - 1440, 0)


@pytest.mark.parametrize(
    ("field", "given", "told"),
    [
        ("starts_at", NOW - 2 * HOUR, "past"),
        ("starts_at", NOW + dt.timedelta(microseconds=1), "whole seconds"),
        ("starts_at", dt.datetime(2027, 1, 5), "time zone"),
        ("starts_at", NOW + 20 * DAY, "not after"),
        ("ends_at", NOW + 367 * DAY, "at most 366 days per order"),
        ("ends_at", dt.datetime(2027, 1, 6), "time zone"),
        ("ends_at", NOW - DAY, "not after"),
        ("amounts", cores(0), "all amounts are zero"),
        ("amounts", (0, 0, 0, 0, 0, 5), "has no resource that is sold"),
        ("amounts", (-1, 0, 0, 0, 0, 0), "0 or more"),
        ("amounts", (1,), "quantities"),
        ("amounts", (2**63, 0, 0, 0, 0, 0), "too large"),
        ("amounts", {"cpu": "many"}, "many"),
        ("amounts", {"gold": 1}, "gold"),
        ("note", "x" * 501, "500"),
        ("key", "x" * 65, "64"),
        ("key", "a\0", "NUL"),
    ],
    ids=[f"case{n}" for n in range(17)],
)
def test_a_tampered_form_is_rejected_by_field_and_changes_nothing(
    ubar: Tenant, field: str, given: Any, told: str
) -> None:
    with pytest.raises(Rejected, match=told) as refused:
        place(ubar, **{field: given})
    assert any(name.split(".")[0] in (field, "ends_at") for name in refused.value.fields)
    assert not Order.objects.exists()
    assert money(ubar) == (100_000, 0)


def test_nothing_to_sell_is_reported(ubar: Tenant) -> None:
    with pytest.raises(NotFound, match="no cell"):
        place(ubar, cell="nowhere")
    with pytest.raises(NotFound, match="no band"):
        place(ubar, band="gold")
    PriorityBand.objects.filter(name="batch").update(oversell_milli=0)
    with pytest.raises(Rejected, match="not sold"):
        place(ubar, band="batch")
    Market.objects.update(selling=False)
    with pytest.raises(Conflict, match="sells no quota"):
        place(ubar)
    with pytest.raises(Forbidden):
        place(ubar, principal=buyer("other"))


def test_more_than_is_left_is_refused_with_the_first_free_date(ubar: Tenant) -> None:
    place(ubar, 90, days=10, principal=SRE)
    with pytest.raises(Rejected, match="10 cores left") as refused:
        place(ubar, 11, begin=5, days=10)
    assert refused.value.code == "sold-out"
    assert refused.value.figures["first_free"] == (NOW + 10 * DAY).isoformat()
    assert refused.value.fields == {"amounts.cpu": "the cell can sell only 10 cores; give a smaller amount"}
    assert place(ubar, 10, begin=5, days=10).state == "pending"


def test_the_grace_is_sold_with_the_order_and_never_longer_than_it(ubar: Tenant) -> None:
    Market.objects.update(grace_hours=72)
    order = place(ubar, 1, days=10)
    assert grant_of(order).grace_until == NOW + 13 * DAY
    assert [left(12), left(13)] == [99, 100]
    assert grant_of(place(ubar, 1, days=1)).grace_until == NOW + 2 * DAY


def test_over_budget_is_refused_with_figures(ubar: Tenant) -> None:
    poor = a_rich_tenant("poor", credits_=100)
    with pytest.raises(Rejected) as refused:
        place(poor, 1, days=10)
    assert refused.value.code == "over-budget"
    assert not Order.objects.exists()
    assert left() == 100


def test_the_same_key_orders_once(ubar: Tenant) -> None:
    first = place(ubar, 1, key="k1")
    assert place(ubar, 1, key="k1").pk == first.pk
    assert Order.objects.count() == 1
    with pytest.raises(Conflict, match="which differs from this order"):
        place(ubar, 2, key="k1")
    assert place(a_rich_tenant("kubar"), 1, key="k1").pk != first.pk


def test_a_quoted_price_holds_for_exactly_this_and_once(ubar: Tenant) -> None:
    given = {"cell": "cc", "band": "production", "amounts": cores(1), "ends_at": NOW + 2 * DAY}
    quote = quote_make(principal=buyer(), tenant=ubar, starts_at=NOW, **given)
    with pytest.raises(Rejected, match="for exactly this order"):
        place(ubar, 2, days=2, quote=quote)
    with clock.at(NOW + HOUR / 2):
        order = place(ubar, 1, days=2, quote=quote.pk)
    assert (order.price, order.quote) == (quote.price, quote)
    with pytest.raises(Conflict, match="already"):
        place(ubar, 1, days=2, quote=quote)
    with pytest.raises(NotFound):
        place(a_rich_tenant("kubar"), 1, days=2, quote=quote)


def test_cancelled_before_it_begins_everything_is_free(ubar: Tenant) -> None:
    for count in (1, 10):
        order = place(ubar, count, begin=1)
        order = orders.order_cancel(principal=buyer(), order=order)
        assert (order.state, money(ubar), left(1)) == ("cancelled", (100_000, 0), 100)
        with pytest.raises(Conflict, match="is cancelled"):
            orders.order_cancel(principal=buyer(), order=order)


def test_cancelled_while_active_whole_days_are_refunded(ubar: Tenant) -> None:
    Market.objects.update(grace_hours=72)
    order = place(ubar, 1, days=10)
    with clock.at(NOW + 2 * DAY + HOUR):
        order = orders.order_cancel(principal=buyer(), order=order, reason="done")
    assert (order.state, order.refunded, order.reason) == ("cancelled", 7 * 24 * CREDIT, "done")
    assert grant_of(order).grace_until == NOW + 2 * DAY + HOUR
    assert money(ubar) == (100_000 - 72, 0)
    assert left(2 + 1 / 24) == 100


def test_days_of_a_refund_are_the_tenants(ubar: Tenant) -> None:
    Tenant.objects.update(time_zone="Europe/Berlin")
    ubar.refresh_from_db()
    spring = dt.datetime(2027, 3, 27, 23, tzinfo=dt.UTC)  # midnight in this time zone; the next day has 23 hours
    with clock.at(spring):
        order = place(ubar, 1, starts_at=spring, ends_at=spring + 47 * HOUR)
    with clock.at(spring + HOUR):
        assert orders.order_cancel(principal=buyer(), order=order).refunded == 24 * CREDIT


def test_grown_only_the_difference_is_paid(ubar: Tenant) -> None:
    old = place(ubar, 1, days=10)
    with clock.at(NOW + 5 * DAY):
        new = orders.order_change(principal=buyer(), order=old, amounts=cores(3))
        old.refresh_from_db()
        assert (old.state, old.refunded, new.state) == ("cancelled", 120 * CREDIT, "active")
        assert (new.price, new.replaces_id, new.replaced_as) == (360 * CREDIT, old.pk, "change")
        assert money(ubar) == (100_000 - 480, 0)
        assert [left(5), left(9), left(10)] == [97, 97, 100]


def test_growing_into_the_last_core_counts_ones_own_once(ubar: Tenant) -> None:
    old = place(ubar, 60, principal=SRE)
    orders.order_approve(principal=SRE, order=old)
    old.refresh_from_db()
    with pytest.raises(Rejected, match="left"):
        orders.order_change(principal=buyer(), order=old, amounts=cores(101))
    with clock.at(NOW + HOUR):
        new = orders.order_change(principal=buyer(), order=old, amounts=cores(100))
        assert (new.state, left(1), left(10)) == ("pending", 0, 100)
        assert Quota.objects.get().amounts[0] == 60_000
        with pytest.raises(Conflict, match="has a pending change"):
            orders.order_change(principal=buyer(), order=old, amounts=cores(50))
        orders.order_approve(principal=SRE, order=new)
        assert left(1) == 0
        assert [q.amounts[0] for q in Quota.objects.order_by("id")] == [60_000, 100_000]
        assert money(ubar)[1] == 0


def test_shrinking_needs_nobody(ubar: Tenant) -> None:
    old = place(ubar, 40, principal=SRE)
    orders.order_approve(principal=SRE, order=old)
    Market.objects.update(selling=False)
    with clock.at(NOW + 5 * DAY):
        new = orders.order_change(principal=buyer(), order=old, amounts=cores(20), ends_at=NOW + 8 * DAY)
    assert (new.state, new.decided_by) == ("active", "nothing more")
    assert [left(5), left(8)] == [80, 100]
    assert money(ubar) == (100_000 - 40 * 24 * 5 - 20 * 24 * 3, 0)


def test_what_has_not_begun_is_changed_in_one_piece(ubar: Tenant) -> None:
    old = place(ubar, 1, begin=5)
    new = orders.order_change(
        principal=buyer(), order=old, starts_at=NOW + 2 * DAY, ends_at=NOW + 4 * DAY, amounts=cores(2)
    )
    assert (new.state, Order.objects.get(pk=old.pk).state) == ("approved", "cancelled")
    assert (money(ubar), left(2), left(5)) == ((100_000 - 96, 96), 98, 100)
    with pytest.raises(Rejected, match="the request changes nothing"):
        orders.order_change(principal=buyer(), order=new, amounts=cores(2))


def test_a_change_that_is_too_dear_changes_nothing(ubar: Tenant) -> None:
    poor = a_rich_tenant("poor", credits_=300)
    old = place(poor, 1, days=10)
    with pytest.raises(Rejected) as refused:
        orders.order_change(principal=buyer("poor"), order=old, amounts=cores(2))
    assert refused.value.code == "over-budget"
    assert (Order.objects.get().state, money(poor), left()) == ("active", (60, 0), 99)


def test_handed_to_another_team_which_pays_the_rest(ubar: Tenant) -> None:
    kubar = a_rich_tenant("kubar", credits_=1000)
    old = place(ubar, 1, days=10)
    both = buyer("ubar", "kubar")
    with clock.at(NOW + 4 * DAY):
        with pytest.raises(Forbidden):
            orders.order_transfer(principal=buyer("ubar"), order=old, tenant=kubar)
        with pytest.raises(Rejected, match="already"):
            orders.order_transfer(principal=both, order=old, tenant=ubar)
        new = orders.order_transfer(principal=both, order=old, tenant=kubar)
    assert (new.state, new.price, new.tenant) == ("active", 144 * CREDIT, kubar)
    assert (money(ubar), money(kubar)) == ((100_000 - 96, 0), (1000 - 144, 0))
    assert [left(4), left(10)] == [99, 100]
    assert [q.tenant_id for q in Quota.objects.filter(ends_at__gt=NOW + 4 * DAY)] == [kubar.pk]


def test_handed_on_before_it_begins(ubar: Tenant) -> None:
    kubar = a_rich_tenant("kubar", credits_=1000)
    old = place(ubar, 1, begin=3)
    new = orders.order_transfer(principal=buyer("ubar", "kubar"), order=old, tenant=kubar)
    assert (new.state, money(ubar), money(kubar)) == ("approved", (100_000, 0), (760, 240))


def test_an_order_at_the_edge_of_64_bits(ubar: Tenant) -> None:
    CellCapacity.objects.update(capacity=[BIG, BIG, BIG, 0, 0, 0])
    order = place(ubar, band="monitoring", amounts=(1, BIG, 0, 0, 0, 0), days=1)
    assert availability("cc", "production", NOW, NOW + DAY)[1] == 0
    with pytest.raises(Rejected, match="left"):
        place(ubar, amounts=(1, 1, 0, 0, 0, 0), days=1)
    with pytest.raises(Rejected) as refused:
        place(ubar, amounts=(BIG - 1, 0, 0, 0, 0, 0), days=366)
    assert refused.value.code in ("too-large", "over-budget")
    assert order.state == "active"


@pytest.mark.parametrize("state", list(OrderState), ids=[s.value for s in OrderState])
@pytest.mark.parametrize("event", list(OrderEvent), ids=[e.value for e in OrderEvent])
def test_every_pair_of_state_and_event_is_decided(state: OrderState, event: OrderEvent) -> None:
    order = Order(pk=7, state=state.value)
    after = TRANSITIONS.get((state, event))
    if after is None:
        with pytest.raises(Conflict, match=f"order 7 is {state.value}"):
            step(order, event)
        assert order.state == state.value
    else:
        step(order, event)
        assert order.state == after.value
