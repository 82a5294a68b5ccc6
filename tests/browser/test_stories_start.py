"""Stories of a newcomer and of an owner in a browser. Each story counts the clicks from the home page to the goal."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect

from quota.models import ApprovalRule, Order
from quota.pricing.capacity_for_sale import market_of
from scheduling.models import Job
from tests.browser import accessibility
from tests.browser.conftest import sign_in
from tests.browser.looks import NARROW, WIDE, assert_fits, resize
from tests.integration import market_world, portal_world


class Clicks:
    """Clicks on elements and counts the clicks."""

    def __init__(self) -> None:
        self.number = 0

    def on(self, element: Locator) -> None:
        element.click()
        self.number += 1


def check_looks(page: Page) -> None:
    """Check that the page is accessible in both themes, and not wider than a phone."""
    for theme in ("dark", "light"):
        page.emulate_media(color_scheme=theme)
        assert accessibility.faults(page) == []
    resize(page, NARROW)
    assert_fits(page, page.url)
    resize(page, WIDE)


@pytest.fixture
def world():
    return None


@pytest.fixture
def market(transactional_db):
    made = market_world.make(budget=500 * market_world.CREDIT)
    market_of("cc")
    return made


def test_buy_quota_and_run_a_job(page: Page, market) -> None:
    """The goal: quota is bought, and a job that uses it is submitted, in at most eight clicks."""
    clicks = Clicks()
    sign_in(page, "owner")
    steps = page.get_by_role("region", name="First steps")
    expect(steps).to_contain_text("0 of 4 done")
    check_looks(page)
    clicks.on(steps.get_by_role("link", name="Buy quota"))
    page.wait_for_load_state("load")  # the scripts react to the fields only after this
    page.get_by_role("textbox", name="Cores").fill("2")
    expect(page.locator("#offer")).to_contain_text("2 cores")
    clicks.on(page.get_by_role("button", name="Continue to the order"))
    clicks.on(page.get_by_role("button", name=re.compile("Order for .* credits")))
    expect(page.get_by_role("heading", name=re.compile(r"Order \d+"))).to_contain_text("active")
    clicks.on(page.get_by_role("link", name="Borg Portal"))
    clicks.on(steps.get_by_role("link", name="Open the filled-in form"))

    # The form and the job file follow each other, errors appear at their field, and the plan appears by itself.
    name, file = page.get_by_label("Name"), page.get_by_label("Job file (YAML or JSON)")
    expect(name).to_have_value("hello")
    expect(page.locator("#submit-check")).to_contain_text("3 tasks")
    page.get_by_label("CPU").fill("-3")
    expect(page.locator("#error-cpu")).to_contain_text("-3")
    check_looks(page)
    page.get_by_label("CPU").fill("200m")
    expect(page.locator("#submit-check")).to_contain_text("credits per 30 days at the list price")
    expect(file).to_have_value(re.compile("cpu: 200m"))
    file.fill(file.input_value().replace("name: hello", "name: mine"))
    expect(name).to_have_value("mine")
    # Changes in both views at once stay, whichever is checked first.
    page.get_by_label("RAM").fill("96Mi")
    file.fill(file.input_value().replace("tasks: 3", "tasks: 2"))
    expect(page.get_by_label("Number of tasks")).to_have_value("2")
    expect(file).to_have_value(re.compile("ram: 96Mi"))
    clicks.on(page.get_by_role("button", name="Submit the job"))
    expect(page.get_by_role("heading", name="mine")).to_be_visible()
    assert Job.objects.get(name="mine").requested[:2] == [400, 2 * 96 * 2**20]
    assert clicks.number <= 8

    # The next step leads to the job. The steps can be hidden and shown again.
    page.goto("/")
    expect(steps).to_contain_text("2 of 4 done")
    expect(steps.get_by_role("listitem").nth(2)).to_have_attribute("aria-current", "step")
    page.get_by_role("button", name="Hide the first steps").click()
    expect(steps).to_have_count(0)
    page.get_by_role("button", name="Show the first steps").click()
    expect(steps).to_be_visible()


def test_approve_an_order(page: Page, market) -> None:
    """The goal: an order is approved after a look at its price, the budget and the free capacity, in three clicks."""
    ApprovalRule.objects.all().delete()
    order = market_world.ordered(market.tenant, market_world.cores(4), days=30)
    assert order.state == "pending"
    clicks = Clicks()
    sign_in(page, "sre")
    clicks.on(page.get_by_role("link", name=re.compile(f"Decide.*Order {order.pk}")))
    decision = page.get_by_role("region", name="waits for your decision")
    for words in ("Price", "Budget left after the order", "Requested amount", "Lowest free quota of the cell"):
        expect(decision).to_contain_text(words)
    clicks.on(page.get_by_role("button", name=f"Approve order {order.pk}"))
    expect(page.get_by_role("heading", name=f"Order {order.pk}")).to_contain_text("active")
    assert Order.objects.get().state == "active"
    assert clicks.number <= 3


def test_times_are_in_the_zone_of_the_browser_or_of_the_settings(chromium, portal, transactional_db) -> None:
    portal_world.make()
    context = chromium.new_context(base_url=portal, timezone_id="Asia/Tokyo")
    try:
        page = context.new_page()
        sign_in(page)
        page.goto("/jobs/")
        time = page.locator("time").first
        expect(time).to_have_attribute("title", re.compile(r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d (GMT\+9|JST)$"))
        page.goto("/settings/")
        expect(page.get_by_role("main")).to_contain_text("in the time zone Asia/Tokyo")
        page.get_by_label("Time zone").fill("Mars/Olympus")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("alert")).to_contain_text("is not a time zone of the IANA database")
        check_looks(page)
        page.get_by_label("Time zone").fill("UTC")
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_role("main")).to_contain_text("in the time zone UTC")
        page.goto("/jobs/")
        expect(time).to_have_attribute("title", re.compile("UTC$"))
    finally:
        context.close()
