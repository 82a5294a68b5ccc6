"""Tests of the metrics of the market for Prometheus."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from quota.admission.published_capacity import sold_at
from quota.metrics import MarketCollector
from quota.models import (
    Account,
    CellCapacity,
    Notice,
    NoticeChannel,
    NoticeDelivery,
    Order,
    PriceList,
    PriorityBand,
    Shortfall,
)
from quota.pricing.capacity_for_sale import sold_steps
from tests.integration import rows

pytestmark = pytest.mark.django_db
HALF = tuple(value // 2 for value in rows.LARGE)
HOUR = dt.timedelta(hours=1)


@pytest.fixture
def cell():
    cell = rows.a_cell()
    CellCapacity.objects.update_or_create(cell=cell.name, defaults={"capacity": list(rows.LARGE), "revision": 1})
    return cell


def figures() -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in MarketCollector().collect()
        for sample in family.samples
    }


def an_order(cell, state: str, *, tenant: str = "ubar", approver: str = "sre") -> Order:
    now = timezone.now()
    prices, _ = PriceList.objects.get_or_create(
        cell=cell.name, version=1, defaults={"valid_from": now, "created_at": now, "created_by": "me"}
    )
    return Order.objects.create(
        tenant=rows.a_tenant(tenant),
        cell=cell.name,
        band=PriorityBand.objects.get(name="batch"),
        amounts=list(HALF),
        starts_at=now - HOUR,
        ends_at=now + HOUR,
        state=state,
        price=0,
        prices=prices,
        approver=approver,
        placed_by="me",
        created_at=now,
    )


def test_all_is_zero_in_a_market_without_trouble(cell) -> None:
    told = figures()
    assert told["borg_quota_shortfalls", "cc"] == 0
    assert told["borg_orders_waiting", "sre"] == told["borg_orders_waiting", "owner"] == 0
    assert told["borg_notice_deliveries", "waiting"] == told["borg_notice_deliveries", "failed"] == 0
    assert told["borg_ledger_imbalance_microcredits",] == 0
    assert not [key for key in told if key[0] == "borg_quota_sold_share"]


def test_what_is_sold_is_a_share_of_the_capacity(cell) -> None:
    rows.grant(rows.a_tenant(), cell, "production", amounts=HALF)
    an_order(cell, "pending")
    an_order(cell, "cancelled")
    told = figures()
    assert told["borg_quota_sold_share", "cc", "production", "cpu"] == 0.5
    assert told["borg_quota_sold_share", "cc", "batch", "ram"] == 0.5
    assert ("borg_quota_sold_share", "cc", "batch", "disk_bandwidth") not in told  # the cell has no disk bandwidth
    assert told["borg_orders_waiting", "sre"] == 1


def test_what_is_sold_is_what_the_calendar_says(cell) -> None:
    tenant, band = rows.a_tenant(), PriorityBand.objects.get(name="batch")
    active = an_order(cell, "active")
    granted = rows.grant(tenant, cell, "batch", amounts=HALF)
    granted.order, granted.ends_at = active, active.ends_at
    granted.grace_until = granted.ends_at + HOUR
    granted.save()
    larger = an_order(cell, "pending")
    larger.replaces, larger.amounts = active, [value * 3 // 2 for value in HALF]
    larger.save()
    now = timezone.now()
    (found,) = sold_at(now, cell="cc")
    (step, *_) = sold_steps("cc", [band], now)
    assert found.sold[:5] == step.level[:5]
    assert found.sold[0] == HALF[0] * 3 // 2
    assert found.granted == HALF


def test_trouble_is_counted(cell) -> None:
    now = timezone.now()
    for closed in (None, None, now):
        Shortfall.objects.create(cell="cc", begins_at=now, short=list(HALF), found_at=now, closed_at=closed)
    notice = Notice.objects.create(kind="order.approved", subject="s", text="t", created_at=now)
    for state in ("waiting", "failed", "failed", "sent"):
        channel = NoticeChannel.objects.create(
            kind="email", target=f"{NoticeChannel.objects.count()}@example.org", created_by="me", created_at=now
        )
        NoticeDelivery.objects.create(notice=notice, channel=channel, state=state, next_at=now)
    Account.objects.create(kind="treasury", balance=-5)
    Account.objects.create(kind="revenue", balance=4)
    told = figures()
    assert told["borg_quota_shortfalls", "cc"] == 2
    assert (told["borg_notice_deliveries", "waiting"], told["borg_notice_deliveries", "failed"]) == (1, 2)
    assert told["borg_ledger_imbalance_microcredits",] == -1


def test_a_scrape_costs_the_same_whatever_is_sold(cell) -> None:
    def cost() -> int:
        with CaptureQueriesContext(connection) as captured:
            list(MarketCollector().collect())
        return len(captured)

    few = cost()
    for number in range(4):
        rows.grant(rows.a_tenant(f"t{number}"), cell, ("batch", "production")[number % 2])
        an_order(cell, "pending", tenant=f"t{number}", approver=("owner", "sre")[number % 2])
    assert cost() == few == 7


def test_the_metrics_page_has_them(cell) -> None:
    assert "borg_ledger_imbalance_microcredits 0" in Client().get("/metrics").text
