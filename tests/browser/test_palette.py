"""Tests of the search that Ctrl-K opens, in Sigma and in the console: two steps to any machine, with the keyboard."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.browser.accessibility import faults
from tests.browser.conftest import sign_in
from tests.browser.looks import NARROW, WIDE, resize, save
from tests.integration import rows


def test_two_steps_lead_to_any_machine_by_name(page, world) -> None:
    for number in range(3):
        rows.a_machine(world.cell, f"node-{number}")
    sign_in(page, "sre")
    for place, path in (("sigma", "/"), ("console", "/admin/scheduling/machine/")):
        page.goto(path)
        page.keyboard.press("Control+k")  # the first step: open the search, and write the name
        field = page.get_by_role("combobox", name="Search jobs, machines")
        expect(field).to_be_focused()
        page.keyboard.type("node-2")
        chosen = page.get_by_role("option", name="node-2 machine in cell cc, up", exact=False)
        expect(chosen).to_have_attribute("aria-selected", "true")
        assert field.get_attribute("aria-activedescendant") == chosen.get_attribute("id")
        assert field.get_attribute("aria-expanded") == "true"
        if place == "sigma":
            assert faults(page) == []
        save(page, f"palette-{place}", full_page=False)
        page.keyboard.press("Enter")  # the second step
        page.wait_for_url("**/cells/cc/machines/node-2/")
    for size in (WIDE, NARROW):
        resize(page, size)
        save(page, f"machine-{size[0]}")


def test_arrows_choose_and_escape_returns_the_focus(page, world) -> None:
    sign_in(page, "operator")
    opener = page.get_by_role("link", name="Search")
    opener.focus()
    page.keyboard.press("Enter")
    field = page.get_by_role("combobox")
    expect(field).to_be_focused()
    options = page.get_by_role("option")
    expect(options.first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowDown")
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    expect(options.first).to_have_attribute("aria-selected", "false")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")
    expect(options.last).to_have_attribute("aria-selected", "true")
    page.keyboard.type("zzzz")
    expect(page.get_by_role("status").filter(has_text="Nothing that you may see matches.")).to_be_visible()
    expect(field).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(opener).to_be_focused()
    page.keyboard.press("Control+k")
    page.keyboard.press("Control+k")  # the same keys close it
    expect(page.get_by_role("dialog")).to_have_count(0)
    resize(page, NARROW)
    opener.click()
    page.get_by_role("button", name="Close the search").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
