"""Tests of previews in the SRE console: it shows the effects of a changed band or price list before it saves the
change.

`tests/integration/test_admin_console.py` tests that a confirmed change is saved.
"""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import transaction

from quota import clock
from quota.admission import published_capacity
from quota.billing.ledger import budget_grant
from quota.market.orders import order_place
from quota.models import PriceList, PriorityBand
from quota.vocabulary.permissions import system
from tests.browser.conftest import SHOTS, sign_in
from tests.integration import rows

SRE = system("test")
SIZES = ((1280, 900), (390, 844))


@pytest.fixture
def sold(world):
    with transaction.atomic():
        published_capacity.publish(cell="cc", capacity=rows.LARGE, revision=1)
    budget_grant(principal=SRE, tenant=world.tenant, amount=10**12)
    now = clock.now()
    for days in (7, 30):
        order_place(
            principal=SRE,
            tenant=world.tenant,
            cell="cc",
            band="batch",
            amounts={"cpu": 20, "ram": "64Gi"},
            ends_at=now.replace(microsecond=0) + dt.timedelta(days=days),
        )
    return world


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_an_sre_sees_what_a_change_does_before_it_is_made(sold, page, theme) -> None:
    SHOTS.mkdir(exist_ok=True)
    page.emulate_media(color_scheme=theme)
    sign_in(page, "sre")
    band = PriorityBand.objects.get(name="batch")
    page.goto(f"/admin/quota/priorityband/{band.pk}/change/")
    page.locator("input[name=oversell_milli]").fill("300")
    page.locator("button[name=_save], input[name=_save]").first.click()
    page.get_by_text("More quota is already sold than the change allows").first.wait_for()
    _shots(page, f"admin-band-preview-{theme}")
    page.get_by_role("link", name="Cancel").click()
    page.locator("input[name=oversell_milli]").wait_for()
    assert PriorityBand.objects.get(name="batch").oversell_milli == 1000

    page.goto("/admin/quota/pricelist/add/")
    _shots(page, f"admin-prices-form-{theme}")
    page.locator("input[name=base_cpu]").fill("0.05")
    page.locator("button[name=_save], input[name=_save]").first.click()
    page.get_by_text("Examples: prices for 30 days").wait_for()
    assert page.get_by_text("ubar").count() >= 1
    _shots(page, f"admin-prices-preview-{theme}")
    assert not PriceList.objects.filter(version=1).exists()
    page.goto("/admin/quota/pricelist/")
    _shots(page, f"admin-prices-{theme}")


def _shots(page, name: str) -> None:
    for width, height in SIZES:
        page.set_viewport_size({"width": width, "height": height})
        page.screenshot(path=SHOTS / f"{name}-{width}.png", full_page=True)
        within = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
        assert page.evaluate(within), (name, width)
    page.set_viewport_size({"width": 1280, "height": 900})
