"""Tests that no page of the quota market is wider than the screen. With SHOTS=1, they save pictures."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone

from quota.models import ApprovalRule
from tests.browser.conftest import sign_in
from tests.browser.looks import look_at
from tests.integration import market_world

PAGES = {
    "shop": "/shop/",
    "shop-short": "/shop/?cpu=120&ram=64Gi&disk=0",
    "shop-over": "/shop/?cpu=100&ram=400Gi&preset=quarter",
    "quote": "/shop/quotes/{quote}/",
    "orders": "/orders/",
    "order": "/orders/{active}/",
    "order-pending": "/orders/{pending}/",
    "order-change": "/orders/{active}/change/",
    "approvals": "/approvals/",
    "quota": "/quota/",
    "home": "/",
    "shop-wrong": "/shop/?cpu=-1&ram=12Zi&from=2020-01-01",
}


@pytest.fixture
def world():
    return None


@pytest.fixture
def furnished(transactional_db):
    """Return a market with orders, quotes and quota in each state that its pages can show."""
    made = market_world.make()
    now = timezone.now()
    day = dt.timedelta(days=1)
    market_world.sold(made.other, market_world.cores(60), now - 9 * day, now + 5 * day)
    market_world.sold(made.other, market_world.cores(40), now + 3 * day, now + 20 * day)
    market_world.sold(made.tenant, market_world.cores(20), now - 30 * day, now + 12 * day)
    for number in range(3):
        placed = market_world.ordered(made.tenant, market_world.cores(number + 1), days=20 + number, note="a sale")
    made.numbers["active"] = placed.pk
    ApprovalRule.objects.update(approver="owner")
    asked = market_world.ordered(made.tenant, market_world.cores(4), days=40, note="The sale needs twice as much.")
    made.numbers["pending"] = asked.pk
    made.numbers["quote"] = market_world.quoted(made.tenant, market_world.cores(2), days=30).pk
    return made


def test_pages_of_the_market_look_right(page, furnished) -> None:
    sign_in(page, "owner")
    for name, path in PAGES.items():
        page.goto(path.format(**furnished.numbers))
        look_at(page, f"market-{name}")
