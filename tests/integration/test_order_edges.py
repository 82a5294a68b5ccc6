"""Tests of rare cases of orders: changed or transferred before they begin, or with rules that have changed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pytest

from quota import clock
from quota.market import order_sweep, orders
from quota.market.grants import quota_grant
from quota.models import ApprovalRule, OrderState, Quota, Tenant
from quota.pricing import capacity_for_sale
from quota.tenancy.authentication import principal_of_user
from quota.tenancy.service_accounts import service_account_create
from quota.vocabulary import calendar
from quota.vocabulary.errors import Forbidden, Rejected
from tests.integration.market_rows import (
    DAY,
    HOUR,
    ME,
    NOW,
    SRE,
    a_rich_tenant,
    a_selling_cell,
    buyer,
    cores,
    grant_of,
    place,
)
from tests.integration.world import a_user

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _time() -> Iterator[None]:
    with clock.at(NOW):
        yield


@pytest.fixture
def ubar() -> Tenant:
    return a_rich_tenant()


def most_sold(begin: float, end: float) -> int:
    """Return the largest number of production cores sold at an instant from `begin` to `end`, in days from NOW."""
    band = capacity_for_sale.band_named("production")
    first, last = NOW + begin * DAY, NOW + end * DAY
    return calendar.peak(capacity_for_sale.sold_steps("cc", [band], first, last), first, last)[0] // 1000


def test_a_change_of_a_change_that_waits_replaces_the_order_that_runs(ubar: Tenant) -> None:
    a_selling_cell(cores=100)
    runs = place(ubar, 4)
    with clock.at(NOW + DAY):
        waits = orders.order_change(principal=buyer(), order=runs, amounts=cores(20))
        assert waits.state == OrderState.PENDING
        again = orders.order_change(principal=buyer(), order=waits, amounts=cores(15), key="k")
        assert orders.order_change(principal=buyer(), order=waits, amounts=cores(15), key="k") == again
        assert most_sold(1, 10) == 15
    with clock.at(NOW + 2 * DAY):
        orders.order_approve(principal=SRE, order=again)
        runs.refresh_from_db()
        assert runs.state == OrderState.CANCELLED
        assert runs.refunded == runs.price * 8 // 10
        assert grant_of(runs).grace_until == NOW + 2 * DAY
        assert most_sold(2, 10) == 15


def test_a_renewal_that_is_changed_still_follows_in_the_place_of_the_first(ubar: Tenant) -> None:
    a_selling_cell(cores=10, grace_hours=72)
    first = place(ubar, 10, days=4, renew=True)
    with clock.at(NOW + 3 * DAY):
        order_sweep.orders_advance()
        renewal = first.successors.get()
        less = orders.order_change(principal=buyer(), order=renewal, amounts=cores(9))
        assert (less.replaces, less.replaced_as, less.state) == (first, "renewal", OrderState.APPROVED)
        assert most_sold(3, 50) == 10
    with clock.at(NOW + 4 * DAY):
        order_sweep.orders_advance()
        assert grant_of(first).grace_until == NOW + 4 * DAY


def test_a_renewal_that_is_to_begin_earlier_comes_beside_the_first(ubar: Tenant) -> None:
    a_selling_cell(cores=10, grace_hours=72)
    first = place(ubar, 6, days=4, renew=True)
    with clock.at(NOW + 3 * DAY):
        order_sweep.orders_advance()
        renewal = first.successors.get()
        with pytest.raises(Rejected) as refused:
            orders.order_change(principal=buyer(), order=renewal, starts_at=NOW + 3.5 * DAY)
        assert refused.value.code == "sold-out"
        orders.order_change(principal=buyer(), order=renewal, starts_at=NOW + 3.5 * DAY, amounts=cores(4))
        assert most_sold(0, 30) == 10


def test_a_renewal_handed_on_is_not_sold_over_the_grace_of_the_first(ubar: Tenant) -> None:
    a_selling_cell(cores=10, grace_hours=72)
    other = a_rich_tenant("foo")
    first = place(ubar, 10, days=3, renew=True)
    with clock.at(NOW + 2.5 * DAY):
        order_sweep.orders_advance()
        renewal = first.successors.get()
        assert renewal.state == OrderState.APPROVED
        with pytest.raises(Rejected) as refused:
            orders.order_transfer(principal=buyer("ubar", "foo"), order=renewal, tenant=other)
        assert refused.value.code == "sold-out"
        assert most_sold(0, 20) == 10


def test_a_renewal_is_handed_on_where_there_is_room_beside_the_grace(ubar: Tenant) -> None:
    a_selling_cell(cores=10, grace_hours=72)
    other = a_rich_tenant("foo")
    first = place(ubar, 5, days=3, renew=True)
    with clock.at(NOW + 2.5 * DAY):
        order_sweep.orders_advance()
        renewal = first.successors.get()
        handed = orders.order_transfer(principal=buyer("ubar", "foo"), order=renewal, tenant=other)
    assert handed.state == OrderState.APPROVED
    assert most_sold(0, 20) == 10


def test_shrinking_keeps_the_grace_that_was_sold(ubar: Tenant) -> None:
    a_selling_cell(cores=10)
    first = place(ubar, 10, days=4)
    place(ubar, 10, begin=4, days=4)
    capacity_for_sale.market_set(principal=SRE, cell="cc", grace_hours=72)
    with clock.at(NOW + DAY):
        orders.order_change(principal=buyer(), order=first, amounts=cores(9))
    assert most_sold(0, 20) == 10


def test_what_waits_beyond_its_beginning_is_changed_from_now_on(ubar: Tenant) -> None:
    a_selling_cell()
    waits = place(ubar, 20)
    with clock.at(NOW + 2 * DAY):
        new = orders.order_change(principal=buyer(), order=waits, amounts=cores(10))
        assert (new.starts_at, new.ends_at) == (NOW + 2 * DAY, NOW + 10 * DAY)


def test_a_grant_to_the_end_of_time_has_no_room_for_a_grace(ubar: Tenant) -> None:
    a_selling_cell(grace_hours=72)
    last = dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    given = quota_grant(principal=ME, tenant=ubar, cell="cc", band="production", amounts=cores(1), ends_at=last)
    assert given.grace_until >= last


def test_a_renewal_that_keeps_failing_can_be_switched_off_in_the_grace(ubar: Tenant) -> None:
    a_selling_cell(cores=10, grace_hours=72)
    first = place(ubar, 10, days=4, renew=True)
    capacity_for_sale.market_set(principal=SRE, cell="cc", selling=False)
    with clock.at(NOW + 4 * DAY + HOUR):
        order_sweep.orders_advance()
        first.refresh_from_db()
        assert first.state == OrderState.EXPIRED
        assert first.renew_next_at is not None
        orders.order_renewal_set(principal=buyer(), order=first, renew=False)
        capacity_for_sale.market_set(principal=SRE, cell="cc", selling=True)
    with clock.at(NOW + 5 * DAY):
        order_sweep.orders_advance()
    assert not first.successors.exists()
    assert Quota.objects.filter(order=first).count() == 1


def test_what_ends_within_the_second_is_not_handed_on(ubar: Tenant) -> None:
    a_selling_cell()
    other = a_rich_tenant("foo")
    short = place(ubar, 1, days=1 / 86_400)
    with pytest.raises(Rejected, match="about to end"):
        orders.order_transfer(principal=buyer("ubar", "foo"), order=short, tenant=other)


def test_nobody_decides_about_what_a_service_account_of_theirs_ordered(ubar: Tenant) -> None:
    a_selling_cell()
    ApprovalRule.objects.all().delete()
    ApprovalRule.objects.create(rank=1, approver="owner")
    ann, bob = a_user("ann", tenant=ubar), a_user("bob", tenant=ubar)
    robot = service_account_create(
        principal=principal_of_user(ann), tenant=ubar, name="robot", role="buyer", description="orders"
    )
    order = place(ubar, principal=principal_of_user(robot.user))
    with pytest.raises(Forbidden, match="robot@ubar placed order"):
        orders.order_approve(principal=principal_of_user(ann), order=order)
    assert orders.order_approve(principal=principal_of_user(bob), order=order).state == OrderState.ACTIVE.value
