"""Tests that no page of billing and capacity planning is wider than the screen. With SHOTS=1, they save pictures."""

from __future__ import annotations

import datetime as dt
import math

import pytest
from django.utils import timezone

from quota import clock
from quota.billing.budgets import budget_set
from quota.billing.invoices import invoice_close
from quota.billing.ledger import budget_grant
from quota.models import CellCapacity, PriorityBand, Shortfall, Tenant
from quota.vocabulary import months
from quota.vocabulary.money import CREDIT
from scheduling.models import CapacitySample
from tests.browser.conftest import sign_in
from tests.browser.looks import NARROW, WIDE, look_at, resize, save
from tests.integration import money_rows, rows
from tests.integration.money_rows import a_metered_hour

PAGES = {
    "billing": "/billing/?tenant=ubar",
    "invoice": "/billing/invoices/INV-00000001/",
    "draft": "/billing/draft/?tenant=ubar",
    "costs": "/costs/?tenant=ubar&by=job&over=30",
    "admin-orders": "/admin/quota/order/",
    "admin-order": "/admin/quota/order/{order}/change/",
    "admin-market": "/admin/quota/market/add/",
    "admin-budget": "/admin/quota/budget/",
    "admin-credits": "/admin/quota/budget/grant-credits",
    "admin-ledger": "/admin/quota/posting/",
    "admin-accounts": "/admin/quota/account/",
    "admin-shortfalls": "/admin/quota/shortfall/",
    "admin-invoices": "/admin/quota/invoice/",
    "admin-rules": "/admin/quota/approvalrule/",
    "planning": "/planning/?tenant=ubar",
    "admin-capacity": "/admin/capacity/?cell=cc",
    "admin-capacity-band": "/admin/capacity/?cell=cc&band=production&days=30",
}


@pytest.fixture
def furnished(world):
    """Fill a cell with two weeks of hourly usage that rises and falls daily. Some hours are missing."""
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    CellCapacity.objects.update_or_create(cell="cc", defaults={"capacity": list(rows.LARGE), "revision": 1})
    production, batch = (PriorityBand.objects.get(name=name) for name in ("production", "batch"))
    for number in range(14 * 24):
        at = hour - number * dt.timedelta(hours=1)
        wave = math.sin(2 * math.pi * at.hour / 24)
        for band, part in (("", 1.0), ("production", 0.7), ("batch", 0.3)):
            if 40 < number < 52:
                continue
            cpu = {
                "capacity": 64_000 if band == "" else 0,
                "sold": 52_000,
                "granted": 54_000,
                "asked": 44_000 + 3_000 * wave,
                "limit": 40_000 + 3_000 * wave,
                "reserved": 26_000 + 5_000 * wave,
                "used": 18_000 + 6_000 * wave,
                "stranded": 2_500 if band == "" else 0,
            }
            vectors = {name: [int(value * part), 2**35, 2**38, 0, 0, 1] for name, value in cpu.items()}
            CapacitySample.objects.create(cell=world.cell, band=band, hour=at, sampled_at=at, **vectors)
        for job, band, share in (("web", production, 5), ("indexer", batch, 2)):
            a_metered_hour(
                tenant=world.tenant,
                cell="cc",
                band=band,
                job_uid=job,
                job=job,
                hour=at,
                labels={"team": job},
                limit=[share * 3_600_000, 2**46, 0, 0, 0, 0],
                reserved=[int(share * (2_500_000 + 500_000 * wave)), 2**45, 0, 0, 0, 0],
                used=[int(share * (1_700_000 + 600_000 * wave)), 2**44, 0, 0, 0, 0],
                price=share * 123_457,
            )
    _money(world)
    return world


def _money(world) -> None:
    """Create a budget, orders that are paid, refunded and reserved, a closed month, and a shortfall."""
    now = clock.now()
    last_month = (now.replace(day=1) - dt.timedelta(days=10)).replace(hour=9, minute=0)
    Tenant.objects.create(name="ubar-ads", parent=world.tenant)
    with clock.at(last_month):
        budget_grant(principal=rows.ME, tenant=world.tenant, amount=50_000 * CREDIT, text="budget of the year")
        old = money_rows.charged(world.tenant, 4_321_123_456, begin=last_month)
        money_rows.refunded(old, 1_000_000_001)
    month = months.month_of(last_month, "UTC")
    invoice_close(principal=rows.ME, tenant=world.tenant, month=month)
    budget_set(
        principal=rows.ME,
        tenant=world.tenant,
        monthly=5_000 * CREDIT,
        alerts=[50, 80],
        action="stop-buying",
        overdraft=100 * CREDIT,
    )
    for number, price in enumerate((1_200, 800, 650)):
        with clock.at(max(now.replace(day=1, hour=1), now - dt.timedelta(days=6 * number))):
            money_rows.charged(world.tenant, price * CREDIT, begin=now - dt.timedelta(days=20), band="batch")
    world.order = money_rows.held(world.tenant, 900 * CREDIT, begin=now + dt.timedelta(days=20))
    Shortfall.objects.create(
        cell="cc",
        begins_at=now,
        ends_at=now + dt.timedelta(days=3),
        short=[4_000, 2**34, 0, 0, 0, 0],
        orders=[world.order.pk],
        tenants=["ubar"],
        found_at=now,
    )


def test_pages_of_money_look_right(page, furnished) -> None:
    sign_in(page, "sre")
    for name, path in PAGES.items():
        answer = page.goto(path.format(order=furnished.order.pk))
        assert answer is not None
        assert answer.ok, f"{name}: {answer.status}"
        look_at(page, name, fits=not name.startswith("admin"))
        if name == "invoice":
            page.emulate_media(media="print")
            assert not page.locator("header.top").is_visible()
            assert not page.get_by_role("button", name="Print").is_visible()
            for size in (WIDE, NARROW):  # a sheet of paper is as narrow as a telephone, but still shows a table
                resize(page, size)
                printed = page.locator(".table-box td").first.evaluate(
                    """cell => [
                        getComputedStyle(cell).color, getComputedStyle(cell.closest('.table-box')).backgroundColor,
                        getComputedStyle(cell).display,
                    ]"""
                )
                assert printed == ["rgb(0, 0, 0)", "rgb(255, 255, 255)", "table-cell"]
                save(page, f"invoice-print-{size[0]}")
            resize(page, WIDE)
            page.emulate_media(media="screen")
