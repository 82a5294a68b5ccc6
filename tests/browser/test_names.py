"""Tests of the pages of DNS and BNS names: search, copy buttons, live updates, and the use without scripts."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from scheduling.core.vocabulary import events
from scheduling.journal import journal
from scheduling.models import Job
from tests.browser.conftest import sign_in
from tests.integration import portal_world, rows

JOB = "/jobs/cc/ubar/jfoo/"
DNS = "jfoo.ubar.cc.borg.internal"


@pytest.fixture
def service(world):
    """Create the service `web` of two jobs: `jfoo` has a placed task that does not serve, `other` has a task that
    serves."""
    portal_world.place(rows.a_job(world.cell, world.tenant, "other", tasks=1), 0, world.machine)
    Job.objects.update(labels={"service": "web"})
    portal_world.report(Job.objects.get(name="other"), 0)
    return world


def live(page: Page) -> None:
    expect(page.locator("[data-live-status].on")).to_be_visible()
    page.evaluate("window.marked = true")


def test_a_name_is_found_copied_and_followed(page, service, portal) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=portal)
    sign_in(page)
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Jobs").click()
    page.get_by_role("navigation", name="Jobs").get_by_role("link", name="Names").click()
    page.get_by_label("Find a name").fill(f"_http._tcp.{DNS.upper()}.")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="jfoo")).to_be_visible()
    live(page)
    button = page.get_by_role("button", name="Copy the DNS name")
    button.click()
    expect(page.get_by_role("button", name="Copied")).to_be_focused()
    assert page.evaluate("navigator.clipboard.readText()") == DNS
    answers = page.locator("#job-answers")
    expect(answers).to_contain_text("No task is serving, so DNS returns the one placed task.")
    portal_world.report(service.job, 0)
    expect(answers).to_contain_text("The only placed task is serving")
    page.get_by_role("link", name="web.service.ubar.cc.borg.internal").click()
    expect(page.get_by_role("heading", name="Service web")).to_be_visible()


def test_a_service_page_follows_the_shares_of_its_jobs(page, service) -> None:
    sign_in(page)
    page.goto("/services/cc/ubar/web/")
    live(page)
    shares = page.get_by_role("row").filter(has=page.get_by_role("link", name="jfoo")).locator(".share")
    expect(shares).to_contain_text("0 %")
    portal_world.report(service.job, 0)
    expect(shares).to_contain_text("50 %")
    portal_world.place(service.job, 1, service.machine)
    portal_world.report(service.job, 1)
    expect(shares).to_contain_text("66.7 %")
    assert page.evaluate("window.marked === true")


def test_a_button_for_copying_works_after_its_region_was_read_again(page, service, portal) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"], origin=portal)
    sign_in(page)
    page.goto("/services/cc/ubar/web/")
    live(page)
    button = page.get_by_role("button", name="Copy the BNS name")
    button.focus()
    page.evaluate("document.querySelector('#name-bns').dataset.old = 'yes'")
    Job.objects.filter(name="other").update(port_names=["admin"])
    other = Job.objects.get(name="other")
    with journal.write(other.cell_id, rows.ME) as entry:
        entry.append(
            events.JobChanged(
                job_id=other.id,
                priority=200,
                latency_sensitive=True,
                spec_version=1,
                labels={"service": "web"},
                port_names=("admin",),
            )
        )
    expect(page.locator("#name-bns:not([data-old])")).to_be_visible()
    expect(button).to_be_focused()
    expect(page.get_by_text("_admin._tcp.web.service.ubar.cc.borg.internal", exact=True)).to_be_visible()
    button.click()
    assert page.evaluate("navigator.clipboard.readText()") == "/bns/cc/ubar/service/web"


def test_pages_of_names_read_without_scripts(chromium, portal, service) -> None:
    context = chromium.new_context(base_url=portal, java_script_enabled=False)
    try:
        page = context.new_page()
        sign_in(page)
        page.goto("/names/")
        page.get_by_label("Find a name").fill("j_foo.ubar.cc.borg.internal")
        page.get_by_role("button", name="Find").click()
        expect(page.get_by_role("alert")).to_contain_text("use hyphens, as in 'j-foo'")
        expect(page.get_by_label("Find a name")).to_have_value("j_foo.ubar.cc.borg.internal")
        page.get_by_label("Find a name").fill("ubar/jfoo")
        page.get_by_role("button", name="Find").click()
        expect(page.get_by_text(DNS, exact=True)).to_be_visible()
        expect(page.get_by_role("button", name="Copy")).to_have_count(0)
    finally:
        context.close()
