"""Tests of the gallery, the page that shows all parts of which pages are built.

They check accessibility in both themes and two widths, the use by keyboard, and the use without scripts.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.accessibility import faults
from tests.browser.conftest import WAIT_MS, faults_of, sign_in
from tests.browser.looks import NARROW, WIDE, assert_fits, resize, save
from tests.integration import portal_server

JOB = "/jobs/cc/ubar/jfoo/"


@pytest.fixture(scope="module")
def debugging(django_db_setup, tmp_path_factory) -> Iterator[str]:
    """Yield the address of a portal that runs with `DEBUG`, because the gallery exists only there."""
    log = tmp_path_factory.mktemp("gallery") / "log"
    with portal_server.running(log, DJANGO_SETTINGS_MODULE="portal.settings.test", BORG_DEBUG="1") as url:
        yield url


@pytest.fixture
def page(chromium, debugging, world) -> Iterator[Page]:
    context = chromium.new_context(base_url=debugging, viewport={"width": WIDE[0], "height": WIDE[1]})
    context.set_default_timeout(WAIT_MS)
    violations = faults_of(context)
    page = context.new_page()
    sign_in(page, "sre")
    yield page
    context.close()
    assert violations == []


def test_the_gallery_is_accessible_in_each_theme_and_width(page) -> None:
    for theme in ("light", "dark"):
        for size in (WIDE, NARROW):
            _show(page, "/gallery/", theme, size)
            assert faults(page) == [], f"{theme}, {size[0]} px"
            assert_fits(page, f"the gallery at {size[0]} px")


def test_the_parts_fit_into_the_console(page) -> None:
    for theme, size in (("light", WIDE), ("dark", NARROW)):
        _show(page, "/admin/gallery/", theme, size)
        sideways = page.evaluate(
            "(({ scrollWidth, clientWidth }) => scrollWidth - clientWidth)(document.querySelector('.sigma'))"
        )
        assert sideways <= 0
        assert [one for one in faults(page) if one.startswith("contrast") and "timeline" in one] == []


def _show(page: Page, path: str, theme: str, size: tuple[int, int]) -> None:
    """Open a page, unfold the tables below its charts and timelines, and save a picture of it."""
    page.emulate_media(color_scheme=theme)
    resize(page, size)
    page.goto(path)
    page.wait_for_load_state("load")
    for summary in page.locator("figure > details > summary").all():
        summary.click()
    save(page, f"{path.strip('/').replace('/', '-')}-{theme}-{size[0]}")


def test_faults_are_found(page) -> None:
    """Several accessibility faults are added to a page, and `faults` must report each of them."""
    page.goto("/gallery/")
    page.evaluate("""() => {
        const add = (name, attributes, text = "") => {
            const element = document.createElement(name);
            for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
            element.textContent = text;
            document.querySelector("main").append(element);
            return element;
        };
        add("button", { class: "button" });
        const pale = add("p", { "aria-describedby": "nowhere" }, "pale");
        pale.animate({ color: "#aaa" }, { fill: "forwards" });
        add("h5", { id: "table" }, "too deep");
        document.querySelector("td[data-label=State]").dataset.label = "Weather";
    }""")
    found = "\n".join(faults(page))
    for words in (
        "a button has no name",
        'contrast 2.22: "pale"',
        "a heading skips a level",
        "an id is used twice: table",
        "aria-describedby names a missing element nowhere",
        '"Weather" is in the column "state"',
    ):
        assert words in found


def test_arrow_keys_walk_along_a_timeline_that_is_one_stop_of_the_tab_key(page) -> None:
    page.goto("/gallery/")
    figure = page.locator("[data-timeline]").first
    links = figure.locator(".timeline-track a")
    assert links.evaluate_all("(all) => all.filter((one) => one.getAttribute('tabindex') === '0').length") == 1
    links.first.focus()
    page.keyboard.press("ArrowRight")
    expect(links.nth(1)).to_be_focused()
    page.keyboard.press("End")
    expect(links.last).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(links.last).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")  # goes to the row of the table, which unfolds
    row = figure.locator("tr:target")
    expect(row).to_be_visible()
    expect(row).to_contain_text("pending")


def test_the_slider_sets_the_field_and_sends_the_form(page) -> None:
    page.goto("/gallery/")
    form = page.locator("[data-moment]").first
    slider, field = form.get_by_role("slider"), form.locator("[type=datetime-local]")
    expect(field).to_have_value("2026-11-27T12:20:05")
    slider.press("ArrowRight")
    page.wait_for_url("**/gallery/?at=2026-11-27T12%3A20%3A06")
    field.fill("2026-11-27T10:00:00")
    assert slider.input_value() == str(1795770000)
    form.get_by_role("link", name="Next event").click()
    page.wait_for_url("**/gallery/?at=2026-11-27T13%3A00%3A00%2B01%3A00")
    form.get_by_role("link", name="Return to now").click()
    page.wait_for_url("**/gallery/?")


def test_columns_order_the_rows_and_chips_remove_filters(page) -> None:
    page.goto("/gallery/?q=node&state=dead")
    table = page.get_by_role("table", name="Jobs of the tenant ubar")
    assert table.locator("tbody th a").all_inner_texts() == ["web", "indexer", "crawler"]
    table.get_by_role("link", name="CPU").click()
    page.wait_for_url("**sort=-cpu")
    assert table.locator("tbody th a").all_inner_texts() == ["indexer", "web", "crawler"]
    expect(table.get_by_role("columnheader", name="CPU")).to_have_attribute("aria-sort", "descending")
    page.get_by_role("link", name="Remove the filter Search: node").click()
    page.wait_for_url("**/gallery/?state=dead&sort=-cpu")
    expect(page.get_by_role("link", name="Remove the filter Search: node")).to_have_count(0)


def test_without_scripts_a_moment_is_chosen_with_the_field(chromium, debugging, page) -> None:
    context = chromium.new_context(
        base_url=debugging, java_script_enabled=False, storage_state=page.context.storage_state()
    )
    try:
        plain = context.new_page()
        plain.goto("/gallery/")
        form = plain.locator("[data-moment]").first
        expect(form.locator(".moment-range")).to_be_hidden()
        form.locator("[type=datetime-local]").fill("2026-11-27T11:00:00")
        form.get_by_role("button", name="Show").click()
        plain.wait_for_url("**/gallery/?at=2026-11-27T11%3A00*")
    finally:
        context.close()


def test_pages_made_of_parts_are_accessible(page) -> None:
    paths = (
        "/",
        "/jobs/?q=jfoo",
        "/cells/",
        "/cells/cc/",
        JOB,
        f"{JOB}0/",
        f"{JOB}events/",
        "/packages/?q=x",
        "/orders/",
    )
    found = {}
    for theme, size in (("light", WIDE), ("dark", NARROW)):
        page.emulate_media(color_scheme=theme)
        resize(page, size)
        for path in (*paths, "/costs/?tenant=ubar", "/tenants/ubar/records/", "/notices/"):
            page.goto(path)
            page.wait_for_load_state("load")
            found[f"{path}, {theme}, {size[0]} px"] = faults(page)
    assert [f"{place}: {line}" for place, lines in found.items() for line in lines] == []
