"""Tests of the sweep that begins and ends orders in time, also if it was off, ran twice, or the clock jumped."""

from __future__ import annotations

import datetime as dt

import pytest

from quota import clock
from quota.billing import ledger_check
from quota.market import orders
from quota.market.order_sweep import orders_advance
from quota.models import CellCapacity, Market, Notice, Order, OrderState, Quota, Tenant
from quota.pricing.capacity_for_sale import availability
from quota.vocabulary.permissions import Role
from tests.integration.market_rows import (
    CREDIT,
    DAY,
    HOUR,
    NOW,
    SRE,
    a_rich_tenant,
    a_selling_cell,
    buyer,
    cores,
    grant_of,
    money,
    place,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def ubar() -> Tenant:
    a_selling_cell(grace_hours=72)
    return a_rich_tenant()


def ordered(tenant: Tenant, count: int = 1, *, at: dt.datetime = NOW, **more: object) -> Order:
    with clock.at(at):
        return place(tenant, count, **more)


def advanced(order: Order, days: float) -> str:
    """Run the sweep at `days` days after NOW, and return the state of the order."""
    orders_advance(NOW + days * DAY)
    order.refresh_from_db()
    return order.state


def reported(kind: str) -> int:
    return Notice.objects.filter(kind=kind).count()


def left(days: float) -> int:
    at = NOW + days * DAY
    return availability("cc", "production", at, at + HOUR)[0] // 1000


def test_it_begins_and_expires_on_time_once(ubar: Tenant) -> None:
    order = ordered(ubar, begin=2, days=10)
    assert advanced(order, 1.9) == "approved"
    assert advanced(order, 2) == "active"
    assert orders_advance(NOW + 2 * DAY) == 0
    assert (grant_of(order).starts_at, money(ubar)) == (NOW + 2 * DAY, (100_000 - 240, 0))
    assert advanced(order, 11.9) == "active"
    assert advanced(order, 12) == "expired"
    assert order.ended_at == NOW + 12 * DAY
    assert grant_of(order).grace_until == NOW + 15 * DAY
    assert orders_advance(NOW + 30 * DAY) == 0
    assert [reported(f"order.{kind}") for kind in ("active", "reminder", "expired")] == [1, 1, 1]


@pytest.mark.parametrize(("days", "at"), [(10, 7.5), (60, 53)], ids=["a-quarter", "a-week"])
def test_people_are_reminded_before_the_end_once(ubar: Tenant, days: int, at: float) -> None:
    order = ordered(ubar, days=days)
    if order.state == "pending":
        with clock.at(NOW):
            orders.order_approve(principal=SRE, order=order)
    orders_advance(NOW + (at - 0.01) * DAY)
    assert reported("order.reminder") == 0
    for _ in range(2):
        orders_advance(NOW + at * DAY)
    assert reported("order.reminder") == 1


def test_nobody_decides_in_time_and_it_is_taken_back(ubar: Tenant) -> None:
    order = ordered(ubar, 10, begin=1, days=30)
    assert advanced(order, 6.9) == "pending"
    assert advanced(order, 7) == "cancelled"
    assert (money(ubar), left(7), reported("order.timed-out")) == ((100_000, 0), 100, 1)


def test_an_undecided_order_is_taken_back_when_its_period_is_over(ubar: Tenant) -> None:
    order = ordered(ubar, 50, days=2)
    assert advanced(order, 2) == "cancelled"


def test_away_for_days_only_what_could_be_used_is_paid(ubar: Tenant) -> None:
    late, lost = ordered(ubar, begin=1, days=10), ordered(ubar, begin=1, days=2)
    orders_advance(NOW + 6 * DAY)
    late.refresh_from_db()
    lost.refresh_from_db()
    assert (late.state, late.refunded, grant_of(late).starts_at) == ("active", 120 * CREDIT, NOW + 6 * DAY)
    assert (lost.state, lost.reason) == ("cancelled", "its period ended before it could begin")
    assert money(ubar) == (100_000 - 120, 0)


def test_a_clock_put_back_undoes_nothing(ubar: Tenant) -> None:
    order = ordered(ubar, begin=2, days=10)
    assert advanced(order, 12.5) == "cancelled"
    assert advanced(order, 3) == "cancelled"
    other = ordered(ubar, begin=2, days=10)
    assert advanced(other, 2) == "active"
    assert advanced(other, 1) == "active"
    assert Quota.objects.count() == 1


def test_a_renewal_follows_without_a_gap_and_without_the_grace(ubar: Tenant) -> None:
    order = ordered(ubar, 60, days=10, principal=SRE, renew=True)
    with clock.at(NOW):
        orders.order_approve(principal=SRE, order=order)
    orders_advance(NOW + 7.5 * DAY)
    new = order.successors.get()
    assert (new.state, new.approver, new.starts_at, new.ends_at) == ("pending", "sre", NOW + 10 * DAY, NOW + 20 * DAY)
    assert [left(9), left(11), left(14), left(22)] == [40, 40, 40, 40]
    with clock.at(NOW + 8 * DAY):
        orders.order_approve(principal=SRE, order=new)
    assert [left(9), left(11), left(14)] == [40, 40, 40]
    assert advanced(order, 10) == "expired"
    new.refresh_from_db()
    assert (new.state, new.renew) == ("active", True)
    assert grant_of(order).grace_until == NOW + 10 * DAY
    assert grant_of(new).starts_at == NOW + 10 * DAY
    assert [left(9), left(11), left(14), left(22), left(23)] == [40, 40, 40, 40, 100]
    assert reported("order.renewed") == 1


def test_a_renewal_that_waits_leaves_the_grace_in_force(ubar: Tenant) -> None:
    order = ordered(ubar, 60, days=10, principal=SRE, renew=True)
    with clock.at(NOW):
        orders.order_approve(principal=SRE, order=order)
    assert advanced(order, 8) == "active"
    assert advanced(order, 10) == "expired"
    assert grant_of(order).grace_until == NOW + 13 * DAY
    new = order.successors.get()
    with clock.at(NOW + 11 * DAY):
        new = orders.order_approve(principal=SRE, order=new)
    assert grant_of(order).grace_until == grant_of(new).starts_at == NOW + 11 * DAY
    assert new.refunded == new.price // 10


def test_what_cannot_be_renewed_is_reported_once_a_reason_and_tried_again(ubar: Tenant) -> None:
    poor = a_rich_tenant("poor", credits_=250)
    order = ordered(poor, days=10, renew=True)
    for hours in range(180, 184):
        orders_advance(NOW + hours * HOUR)
    assert (reported("order.renewal-failed"), Order.objects.count()) == (1, 1)
    order.refresh_from_db()
    assert order.renew_error.startswith("over-budget: ")
    CellCapacity.objects.update(capacity=[0, 0, 0, 0, 0, 0])
    orders_advance(NOW + 190 * HOUR)
    assert reported("order.renewal-failed") == 2
    CellCapacity.objects.update(capacity=[10_000, 0, 0, 0, 0, 0])
    from quota.billing.ledger import budget_grant

    budget_grant(principal=SRE, tenant=poor, amount=1000 * CREDIT, text="more")
    assert advanced(order, 10.5) == "expired"
    assert order.successors.get().state == "active"
    assert order.renew_error == ""


def test_after_the_grace_nobody_tries_to_renew(ubar: Tenant) -> None:
    poor = a_rich_tenant("poor", credits_=250)
    order = ordered(poor, days=10, renew=True)
    assert advanced(order, 14) == "expired"
    assert (order.renew_next_at, orders_advance(NOW + 20 * DAY)) == (None, 0)


def test_renewal_switched_off_takes_back_the_one_that_waits(ubar: Tenant) -> None:
    order = ordered(ubar, 1, days=10, renew=True)
    orders_advance(NOW + 8 * DAY)
    assert order.successors.get().state == "approved"
    with clock.at(NOW + 9 * DAY):
        orders.order_renewal_set(principal=buyer(), order=order, renew=False)
        assert (order.successors.get().state, money(ubar)) == ("cancelled", (100_000 - 240, 0))
        orders.order_renewal_set(principal=buyer(), order=order, renew=True)
    orders_advance(NOW + 9 * DAY)
    assert order.successors.order_by("-id")[0].state == "approved"


def test_renewals_over_daylight_saving_keep_the_day(ubar: Tenant) -> None:
    Tenant.objects.update(time_zone="Europe/Berlin")
    midnight = dt.datetime(2027, 3, 26, 23, tzinfo=dt.UTC)
    order = ordered(Tenant.objects.get(), at=midnight, starts_at=midnight, ends_at=midnight + DAY, renew=True)
    orders_advance(midnight + DAY - HOUR)
    new = order.successors.get()
    assert (new.ends_at - new.starts_at, new.price) == (23 * HOUR, 23 * CREDIT)


def test_a_change_begins_where_the_old_order_stops(ubar: Tenant) -> None:
    order = ordered(ubar, 60, days=10, principal=SRE)
    with clock.at(NOW):
        orders.order_approve(principal=SRE, order=order)
    with clock.at(NOW + 9.5 * DAY):
        new = orders.order_change(principal=buyer(), order=order, ends_at=NOW + 40 * DAY)
    assert advanced(order, 10) == "expired"
    with clock.at(NOW + 10.5 * DAY):
        new = orders.order_approve(principal=SRE, order=new)
    assert (new.state, grant_of(new).starts_at) == ("active", NOW + 10.5 * DAY)
    assert grant_of(order).grace_until == NOW + 10.5 * DAY


def test_money_and_states_agree_after_a_year(ubar: Tenant) -> None:
    olga = buyer("ubar", name="olga", role=Role.OWNER)
    for number in range(12):
        order = ordered(ubar, 1 + number, begin=number, days=30, renew=number % 2 == 0)
        if order.state == "pending" and number % 3:
            with clock.at(NOW):
                orders.order_approve(principal=olga, order=order)
    Market.objects.update(longest_days=31)
    for week in range(53):
        orders_advance(NOW + 7 * week * DAY)
    live = Order.objects.filter(state__in=[OrderState.PENDING.value, OrderState.APPROVED.value])
    assert money(ubar)[1] * CREDIT == sum(order.price for order in live)
    assert ledger_check.ledger_check() == []
    assert left(365) >= 0
    assert cores(0) == (0,) * 6
