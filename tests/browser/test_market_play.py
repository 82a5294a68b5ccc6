"""Tests of the quota market in a browser: the first order of a team, from the rejected job to the invoice.

The team compares offers, orders too much, orders less, waits for an SRE's approval, runs the job, and reads its usage.
"""

from __future__ import annotations

import datetime as dt
import re

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from quota import clock
from quota.billing.invoices import invoices_close_due
from quota.billing.metering import MeteredRow, meter
from quota.models import ApprovalRule, Invoice, Order
from quota.pricing.capacity_for_sale import market_of
from quota.vocabulary.money import format_credits
from scheduling.models import Job
from tests.browser.conftest import sign_in
from tests.integration import market_world

JOB = "name: web\ntasks: 2\npriority: 200\ntask: {command: [sleep, '9'], limit: {cpu: 2, ram: 4Gi, disk: 1Gi}}"


@pytest.fixture
def world():
    return None


@pytest.fixture
def market(transactional_db):
    """Return a market without approval rules, so that an SRE must approve every order."""
    made = market_world.make(budget=500 * market_world.CREDIT)
    market_of("cc")
    ApprovalRule.objects.all().delete()
    return made


def price(page: Page) -> str:
    return page.locator(".price strong").inner_text()


def test_a_buyer_and_an_sre_play_their_parts(page, chromium, portal, market) -> None:
    # Without quota the job is rejected, and the page links to an order that is filled in.
    sign_in(page, "owner")
    page.goto("/submit/")
    page.get_by_label("Job file (YAML or JSON)").fill(JOB)
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_role("alert").first).to_contain_text("quota")
    page.locator("a[href^='/shop/']").first.click()
    expect(page.get_by_role("textbox", name="Cores")).to_have_value("4")
    page.wait_for_load_state("load")  # the scripts react to the fields only after this
    expect(page.locator("#offer")).to_contain_text("4 cores, 8 GiB RAM, 2 GiB disk")

    # The price changes while the buyer types, without a reload. Cheaper offers are listed below.
    page.evaluate("window.marked = true")
    before = price(page)
    page.get_by_role("textbox", name="Cores").fill("6")
    expect(page.locator("#offer")).to_contain_text("6 cores, 8 GiB RAM")
    assert price(page) != before
    expect(page.get_by_role("link", name="Choose this offer: in band batch")).to_be_visible()
    page.get_by_role("button", name="a week").click()
    expect(page.locator("#offer")).to_contain_text("for 7 days")
    expect(page.get_by_role("button", name="a week")).to_have_attribute("aria-pressed", "true")

    # A wrong value is reported at its field. Too large amounts are compared with the budget and the cell.
    page.get_by_role("textbox", name="Cores").fill("-6")
    expect(page.locator("#error-cpu")).to_contain_text("is not an amount")
    expect(page.get_by_role("textbox", name="Cores")).to_have_attribute("aria-invalid", "true")
    page.get_by_role("textbox", name="Cores").fill("180")
    expect(page.get_by_role("alert").first).to_contain_text("more than are left in the budget of ubar")
    expect(page.get_by_role("button", name="Continue to the order")).to_be_disabled()
    page.get_by_role("textbox", name="Cores").fill("1000")
    expect(page.locator("#error-cpu")).to_contain_text("only 190 cores free")
    expect(page.get_by_role("textbox", name="Cores")).to_be_focused()

    # The buyer gets a binding price and orders. The order waits for approval.
    page.get_by_role("textbox", name="Cores").fill("6")
    expect(page.locator("#offer")).to_contain_text("6 cores, 8 GiB RAM")
    assert page.evaluate("window.marked === true"), "the page was loaded again"
    page.get_by_role("button", name="Continue to the order").click()
    expect(page.get_by_text("This price is valid until")).to_be_visible()
    page.get_by_label("Purpose").fill("The new shop front.")
    page.get_by_role("button", name=re.compile("Order for .* credits")).click()
    expect(page.get_by_role("heading", name=re.compile(r"Order \d+"))).to_contain_text("waiting for approval")
    order = Order.objects.get()
    assert (order.state, order.approver) == ("pending", "sre")

    # The SRE reads the purpose and the remaining capacity, and approves.
    theirs = chromium.new_context(base_url=portal)
    sre = theirs.new_page()
    sign_in(sre, "sre")
    sre.goto("/approvals/")
    expect(sre.get_by_text("The new shop front.")).to_be_visible()
    sre.get_by_role("link", name="Show details").click()
    expect(sre.get_by_role("region", name="owner waits for your decision")).to_contain_text("184 cores")
    sre.goto("/approvals/")
    sre.get_by_role("button", name=f"Approve order {order.pk}").click()
    expect(sre.get_by_text("No order waits for your decision.")).to_be_visible()
    theirs.close()

    # The buyer sees the approval, and the job is admitted now.
    page.reload()
    expect(page.get_by_role("heading", name=f"Order {order.pk}")).to_contain_text("active")
    expect(page.get_by_text("sre approved the order")).to_be_visible()
    page.goto("/submit/?cell=cc&tenant=ubar")
    page.get_by_label("Job file (YAML or JSON)").fill(JOB)
    page.get_by_role("button", name="Show the plan").click()
    page.get_by_role("button", name="Submit the job").click()
    expect(page.get_by_role("heading", name="web")).to_be_visible()
    page.goto("/quota/")
    expect(page.get_by_role("row", name="ubar cc, production").first).to_contain_text("4 cores / 6 cores")

    # After an hour the page shows the usage of the job.
    _an_hour(market, Job.objects.get(name="web"))
    page.goto("/shop/?cell=cc&band=production")
    used = page.get_by_role("region", name="Your quota in the band production of cell cc")
    expect(used.get_by_role("row", name="Cores")).to_contain_text("0.5 cores")
    used.get_by_role("link", name="Choose the recommended amounts").click()
    expect(page.get_by_role("textbox", name="Cores")).to_have_value("625m")

    # The month ends, and the invoice shows the price of the order.
    with clock.at(timezone.now() + dt.timedelta(days=40)):
        invoices_close_due(clock.now())
    invoice = Invoice.objects.filter(tenant=market.tenant).order_by("month").first()
    assert invoice.total == order.price
    page.goto("/billing/")
    page.get_by_role("link", name=invoice.number).first.click()
    expect(page.get_by_role("main")).to_contain_text(f"order {order.pk}")
    expect(page.get_by_role("main")).to_contain_text(format_credits(order.price))


def _an_hour(market: market_world.Market, job: Job) -> None:
    """Meter the last hour: the job had limits of 4 cores and used half a core."""
    hour = timezone.now().replace(minute=0, second=0, microsecond=0) - dt.timedelta(hours=1)
    seconds = 3600
    asked = tuple(value * seconds for value in job.requested)
    half = (500 * seconds, 2**29 * seconds, 2**20 * seconds, 0, 0, 0)
    row = MeteredRow(market.tenant.pk, "production", job.uid.hex, job.name, {}, asked, asked, half)
    meter(cell="cc", hour=hour, rows=[row])


def test_the_shop_works_without_scripts(chromium, portal, market) -> None:
    context = chromium.new_context(base_url=portal, java_script_enabled=False)
    try:
        page = context.new_page()
        sign_in(page, "buyer")
        page.goto("/shop/")
        page.get_by_role("textbox", name="Cores").fill("3")
        page.get_by_role("button", name="Show the price").click()
        expect(page.locator("#offer")).to_contain_text("3 cores, 4 GiB RAM")
        page.get_by_role("button", name="a week").click()
        expect(page.locator("#offer")).to_contain_text("for 7 days")
        expect(page.locator("#offer")).to_contain_text("3 cores, 4 GiB RAM")
        page.get_by_role("button", name="Continue to the order").click()
        page.get_by_role("button", name=re.compile("Order for .* credits")).click()
        expect(page.get_by_role("heading", name=re.compile(r"Order \d+"))).to_contain_text("waiting for approval")
    finally:
        context.close()
