"""Tests of orders at the same moment: one order per key, one buyer of the last core, and one sweep that acts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from django.db import connections

from quota import clock
from quota.billing import ledger_check
from quota.market.order_sweep import orders_advance
from quota.market.orders import order_approve, order_cancel
from quota.models import ApprovalRule, Order, Quota
from quota.vocabulary.errors import Rejected
from tests.integration.market_rows import DAY, NOW, SRE, a_rich_tenant, a_selling_cell, buyer, money, place

pytestmark = pytest.mark.django_db(transaction=True)
TABS = 4


def together(act: Callable[[int], object]) -> list[object]:
    """Call `act` with the number of each browser tab at the same moment. Return results, or codes of rejections."""
    barrier = Barrier(TABS)

    def one(number: int) -> object:
        try:
            barrier.wait(timeout=30)
            with clock.at(NOW):
                return act(number)
        except Rejected as refusal:
            return refusal.code
        finally:
            connections.close_all()

    with ThreadPoolExecutor(TABS) as pool:
        return list(pool.map(one, range(TABS)))


def test_the_same_form_sent_at_once_orders_once() -> None:
    a_selling_cell()
    tenant = a_rich_tenant()
    got = together(lambda _: place(tenant, 1, key="form").pk)
    assert (len(set(got)), Order.objects.count(), Quota.objects.count()) == (1, 1, 1)
    assert money(tenant) == (100_000 - 240, 0)


def test_the_same_key_in_two_cells_orders_once() -> None:
    a_selling_cell()
    a_selling_cell("dd")
    tenant = a_rich_tenant()
    got = together(lambda number: place(tenant, 1, key="form", cell=("cc", "dd")[number % 2]).cell)
    assert sorted(map(str, got)).count("key-used") == TABS // 2
    assert Order.objects.count() == 1


def test_the_last_cores_are_sold_once() -> None:
    a_selling_cell(cores=3)
    tenant = a_rich_tenant()
    got = together(lambda _: place(tenant, 2).state)
    assert sorted(map(str, got)) == ["active", *["sold-out"] * (TABS - 1)]
    assert ledger_check.ledger_check() == []


def test_approved_and_cancelled_at_once_it_is_paid_back_once() -> None:
    a_selling_cell()
    ApprovalRule.objects.create(rank=1, approver="sre")
    tenant = a_rich_tenant()
    with clock.at(NOW):
        order = place(tenant, 1)
    assert money(tenant) == (100_000 - 240, 240)

    def act(number: int) -> str:
        if number % 2:
            return order_approve(principal=SRE, order=order).state
        return order_cancel(principal=buyer(), order=order).state

    got = together(act)
    assert got.count("cancelled") == 1, got
    assert got.count("active") <= 1, got
    assert set(got) <= {"cancelled", "active", "order-state"}, got
    order.refresh_from_db()
    assert (order.state, money(tenant)) == ("cancelled", (100_000, 0)), got
    assert ledger_check.ledger_check() == []


def test_sweeps_at_once_begin_and_charge_once() -> None:
    a_selling_cell()
    tenant = a_rich_tenant()
    with clock.at(NOW):
        for _ in range(3):
            place(tenant, 1, begin=1, principal=SRE)
    together(lambda _: orders_advance(NOW + DAY))
    assert Quota.objects.count() == 3
    assert money(tenant) == (100_000 - 720, 0)
