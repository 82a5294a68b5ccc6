"""Tests of the map of a cell in a browser: keys lead to the page of a machine, and changes appear without a reload."""

from __future__ import annotations

import time

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from scheduling.cell_map import kept_maps
from scheduling.journal import journal
from scheduling.models import Machine, Task
from scheduling.tasks.reservations import reservations_set
from tests.browser.accessibility import faults
from tests.browser.conftest import sign_in
from tests.browser.looks import look_at
from tests.integration import portal_world, rows


def count(page: Page, title: str) -> str:
    """Return the number of machines of an entry of the legend."""
    found = page.get_by_role("list", name="Legend").get_by_role("listitem").filter(has_text=title)
    return found.locator(".soft").text_content()


def test_a_machine_is_found_with_keys_and_a_change_appears_without_a_reload(page, world) -> None:
    for number in range(40):
        rows.a_machine(world.cell, f"node-{number:02}", rack=f"rack-{number % 4}")
    sign_in(page)
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Cells").click()
    page.get_by_role("link", name="Cell map").click()
    page.wait_for_url("**/cells/cc/map/")
    expect(page.locator("[data-map]:not([aria-busy])")).to_be_visible()
    expect(page.locator("[data-live-status].on")).to_be_visible()
    page.evaluate("window.marked = true")
    groups = page.get_by_role("region", name="Groups of machines")
    expect(groups.get_by_role("row", name="rack-2")).to_contain_text("10")

    page.get_by_label("Colour by").select_option("state")
    assert count(page, "up") == "41"
    rows.machine_down(world.machine)
    legend = page.get_by_role("list", name="Legend").get_by_role("listitem").filter(has_text="down")
    expect(legend).to_contain_text("1")
    assert count(page, "up") == "40"
    assert page.evaluate("window.marked === true")
    assert faults(page) == []

    page.get_by_role("searchbox", name="Find a machine").focus()
    page.keyboard.type("node-1")
    page.keyboard.press("Enter")
    canvas = page.get_by_role("application", name="Map of the machines of cell cc")
    expect(canvas).to_be_focused()
    tip = page.locator("[data-map-tip]")
    expect(tip).to_contain_text("node-10")
    expect(page.locator("[data-map-spoken]")).to_contain_text("node-10: State up, Rack rack-2")
    for key in ("ArrowRight", "ArrowLeft", "PageDown", "+", "-", "0", "Home"):
        page.keyboard.press(key)
        expect(tip).to_be_visible()
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    page.keyboard.press("End")
    expect(tip).to_contain_text("node-39")
    look_at(page, "cell-map")
    canvas.focus()
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.wait_for_url("**/cells/cc/machines/node-39/")

    page.get_by_role("link", name="Show on the map").click()
    expect(tip).to_contain_text("node-39")
    portal_world.place(world.job, 1, Machine.objects.get(hostname="node-39"))
    expect(tip).to_contain_text("1 (yours: 1)")

    _reservations_are_read_again(world)

    # A finger has no hover: the first tap shows the facts, and the second one opens the page.
    origin, state = page.url.split("/cells/")[0], page.context.storage_state()
    fingers = page.context.browser.new_context(base_url=origin, has_touch=True, storage_state=state)
    phone = fingers.new_page()
    phone.goto("/cells/cc/map/?group=site&colour=state")
    expect(phone.locator("[data-map]:not([aria-busy])")).to_be_visible()
    box = phone.get_by_role("application").bounding_box()
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    phone.touchscreen.tap(*middle)
    expect(phone.locator("[data-map-tip]")).to_be_visible()
    phone.touchscreen.tap(*middle)
    phone.wait_for_url("**/cells/cc/machines/*/")
    fingers.close()


def _reservations_are_read_again(world) -> None:
    """Check that a thread reads new reservations, and that readers do not wait for it. The rows must be committed."""
    task = Task.objects.filter(machine__isnull=False).first()
    world.cell.refresh_from_db()
    kept = kept_maps.KeptMaps()
    kept.read(world.cell)
    with journal.write(world.cell.id, rows.ME) as entry:
        wanted = np.array([[7, 2**21, 2**22]])
        reservations_set(entry, np.array([task.id]), np.array([task.incarnation], np.int32), wanted)
    world.cell.refresh_from_db()
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(kept_maps, "RENEW_S", -1.0)
        assert kept.read(world.cell).reserved
    until = time.monotonic() + 60
    while (found := kept.read(world.cell)).reserved and time.monotonic() < until:
        time.sleep(0.05)
    assert 7 in found.sums["reservation_cpu"].tolist()
