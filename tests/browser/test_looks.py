"""Tests that measure pages: overlapping texts, contrast, underlined links, and the bytes of a first visit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.conf import settings

from quota import records
from quota.notifications.notices import notify
from quota.vocabulary.permissions import system
from tests.browser.conftest import sign_in
from tests.integration import portal_server, portal_world, rows

MOST_BYTES = 300_000
JOB = "/jobs/cc/ubar/jfoo/"
# Luminance and contrast as WCAG 2 defines them. A canvas converts any notation of a colour into bytes.
CONTRAST = """(element) => {
    const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const bytes = (colour) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
    };
    const light = (colour) => {
        const [r, g, b] = bytes(colour).map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const style = getComputedStyle(element);
    const [a, b] = [light(style.color), light(style.backgroundColor)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
}"""
OVERLAPS = """() => {
    const boxes = [...document.querySelectorAll(".bar-text > span")]
        .filter((one) => one.textContent.trim()).map((one) => [one.textContent, one.getBoundingClientRect()]);
    const found = [];
    for (const [i, [text, a]] of boxes.entries())
        for (const [other, b] of boxes.slice(i + 1))
            if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)
                found.push(`${text} | ${other}`);
    return found;
}"""


@pytest.fixture
def large_quota(world):
    """Grant quota with amounts that need many digits."""
    for band in ("monitoring", "batch"):
        rows.grant(world.tenant, world.cell, band, amounts=(1_234_567_000, 2**50 + 2**41, 2**50, 0, 0, 2**20))


def test_amounts_of_quota_do_not_overlap(page, large_quota) -> None:
    sign_in(page)
    for path in ("/", "/quota/"):
        page.goto(path)
        page.locator(".bar-text").first.wait_for()
        for width in (320, 390, 768, 1280):
            page.set_viewport_size({"width": width, "height": 844})
            assert page.evaluate(OVERLAPS) == [], f"{path} at {width} px"


def test_the_number_of_unread_notices_can_be_read(page, world) -> None:
    with records.write(system("test")) as entry:
        notify(entry, world.tenant, "order.approved", "Approved", "It was.")
    sign_in(page)
    for path in ("/", "/accounts/password/change/"):
        page.goto(path)
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            assert page.locator(".bell-count").evaluate(CONTRAST) >= 4.5, f"{path}, {theme}"


def test_links_among_words_are_underlined(page, world) -> None:
    sign_in(page)
    seen = 0
    for path in ("/", "/jobs/", JOB, f"{JOB}0/", "/quota/", "/tokens/", "/notices/", "/no/such/page"):
        page.goto(path)
        links = page.locator("main p a:not(.button), main li a:not(.button), main dd a:not(.button)")
        for link in links.all():
            seen += 1
            line = link.evaluate("(one) => getComputedStyle(one).textDecorationLine")
            assert line == "underline", f"{path}: {link.inner_text()}"
    assert seen >= 3


@pytest.fixture
def first_visit(chromium, world, tmp_path) -> Iterator[Callable[[str], dict[str, int]]]:
    """Yield a function that opens a page in a new browser, and returns the bytes of each response by its path.

    The portal runs with the settings of production.
    """
    session = portal_world.signed_in("sre").cookies[settings.SESSION_COOKIE_NAME].value

    with portal_server.running(tmp_path / "log", BORG_SECRET_KEY=settings.SECRET_KEY) as url:

        def visit(path: str) -> dict[str, int]:
            context = chromium.new_context(base_url=url)
            context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": url}])
            page, finished = context.new_page(), []
            page.on("requestfinished", lambda one: finished.append(one))
            page.goto(path)
            page.wait_for_load_state("networkidle")
            found = {one.url.removeprefix(url): one.sizes()["responseBodySize"] for one in finished}
            context.close()
            return found

        yield visit


def test_a_first_visit_is_light(first_visit) -> None:
    pages = (
        "/accounts/password/change/",
        "/",
        "/submit/",
        JOB,
        "/quota/",
        "/shop/",
        "/admin/",
        "/admin/scheduling/machine/",
    )
    for path in pages:
        loaded = first_visit(path)
        total = sum(loaded.values())
        print(f"{path}: {total:,} bytes in {len(loaded)} requests")
        assert total <= MOST_BYTES, loaded
        assert not [name for name in loaded if "xregexp" in name]
