"""Tests of shortfalls, which are sold capacity that a cell has lost: reported once, and closed when it is back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import transaction

from quota import clock
from quota.admission import published_capacity
from quota.market import orders
from quota.market.shortfalls import shortfalls_examine, shortfalls_examine_all, shortfalls_examine_lowered
from quota.models import CellCapacity, Notice, Order, Shortfall, Tenant
from quota.vocabulary.errors import Rejected
from tests.integration.market_rows import DAY, NOW, SRE, a_rich_tenant, a_selling_cell, buyer, place

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _time() -> Iterator[None]:
    with clock.at(NOW):
        yield


@pytest.fixture
def sold() -> list[Order]:
    """Return orders of 60 cores (day 0 to 10), 30 cores (day 5 to 15) and 5 cores (from day 20, not approved)."""
    a_selling_cell(headroom_milli=100)
    ubar, kubar = a_rich_tenant(), a_rich_tenant("kubar")
    made = [place(ubar, 60, principal=SRE), place(kubar, 30, begin=5), place(ubar, 5, begin=20)]
    for order in made[:2]:
        orders.order_approve(principal=SRE, order=order)
    return made


def lose(cores: int, revision: int = 2) -> None:
    """Publish that the cell now has `cores` cores, as scheduling does."""
    with transaction.atomic():
        published_capacity.publish(cell="cc", capacity=[1000 * cores, 2**40, 2**40, 0, 0, 0], revision=revision)


def reports(kind: str) -> int:
    return Notice.objects.filter(tenant=None, kind=kind).count()


def test_nothing_is_short_while_the_headroom_suffices(sold: list[Order]) -> None:
    lose(90)
    assert shortfalls_examine("cc") == 0
    assert not Shortfall.objects.exists()


def test_what_is_short_is_reported_with_its_time_and_orders_newest_first(sold: list[Order]) -> None:
    lose(70)
    assert shortfalls_examine_lowered() == 1
    row = Shortfall.objects.get()
    assert (row.begins_at, row.ends_at, row.short[0]) == (NOW + 5 * DAY, NOW + 10 * DAY, 20_000)
    assert (row.orders, row.tenants) == ([sold[1].pk, sold[0].pk], ["kubar", "ubar"])
    assert reports("shortfall.found") == 1
    for _ in range(2):
        shortfalls_examine_all()
    assert (Shortfall.objects.count(), Notice.objects.filter(kind__startswith="shortfall").count()) == (1, 1)
    assert shortfalls_examine_lowered() == 0


def test_nothing_more_is_sold_and_nothing_is_approved_meanwhile(sold: list[Order]) -> None:
    lose(4)
    ubar = Tenant.objects.get(name="ubar")
    with pytest.raises(Rejected, match="never available") as refused:
        place(ubar, 5, begin=40)
    assert refused.value.code == "sold-out"
    with pytest.raises(Rejected, match="lost capacity"):
        orders.order_approve(principal=SRE, order=sold[2])
    assert orders.order_cancel(principal=buyer(), order=sold[2]).state == "cancelled"


def test_it_grows_shrinks_and_closes_when_capacity_is_back(sold: list[Order]) -> None:
    lose(70)
    shortfalls_examine("cc")
    lose(50, 3)
    shortfalls_examine("cc")
    row = Shortfall.objects.get()
    assert (row.begins_at, row.ends_at, row.short[0]) == (NOW, NOW + 10 * DAY, 40_000)
    assert reports("shortfall.changed") == 1
    lose(100, 4)
    assert shortfalls_examine("cc") == 0
    row.refresh_from_db()
    assert (row.closed_at, reports("shortfall.over")) == (NOW, 1)
    assert not CellCapacity.objects.get().lowered or shortfalls_examine_lowered()


def test_it_closes_when_its_time_is_over_or_an_order_is_cancelled(sold: list[Order]) -> None:
    lose(70)
    shortfalls_examine("cc")
    with clock.at(NOW + 6 * DAY):
        shortfalls_examine("cc")
        assert Shortfall.objects.get().begins_at == NOW + 5 * DAY
        orders.order_cancel(principal=buyer("kubar"), order=sold[1])
        shortfalls_examine("cc")
    assert Shortfall.objects.get().closed_at == NOW + 6 * DAY


def test_an_older_report_lowers_nothing(sold: list[Order]) -> None:
    lose(10, revision=1)
    assert (CellCapacity.objects.get().lowered, shortfalls_examine_lowered()) == (False, 0)
    lose(200, revision=2)
    assert not CellCapacity.objects.get().lowered
