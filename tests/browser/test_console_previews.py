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
from tests.browser.conftest import sign_in
from tests.browser.looks import look_at
from tests.integration import rows

SRE = system("test")


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


def test_an_sre_sees_what_a_change_does_before_it_is_made(sold, page) -> None:
    sign_in(page, "sre")
    band = PriorityBand.objects.get(name="batch")
    page.goto(f"/admin/quota/priorityband/{band.pk}/change/")
    page.locator("input[name=oversell_milli]").fill("300")
    page.locator("button[name=_save], input[name=_save]").first.click()
    page.get_by_text("More quota is already sold than the change allows").first.wait_for()
    look_at(page, "admin-band-preview")
    page.get_by_role("link", name="Cancel").click()
    page.locator("input[name=oversell_milli]").wait_for()
    assert PriorityBand.objects.get(name="batch").oversell_milli == 1000

    page.goto("/admin/quota/pricelist/add/")
    look_at(page, "admin-prices-form")
    page.locator("input[name=base_cpu]").fill("0.05")
    page.locator("button[name=_save], input[name=_save]").first.click()
    page.get_by_text("Examples: prices for 30 days").wait_for()
    assert page.get_by_text("ubar").count() >= 1
    look_at(page, "admin-prices-preview")
    assert not PriceList.objects.filter(version=1).exists()
    page.goto("/admin/quota/pricelist/")
    look_at(page, "admin-prices")
