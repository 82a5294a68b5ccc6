"""Looks of a page: on a wide and on a narrow screen, in the light and in the dark theme."""

from __future__ import annotations

import os
from pathlib import Path

from playwright.sync_api import Page

WIDE, NARROW = (1280, 900), (390, 844)
# A page is not looked at in each combination.
LOOKS = ((WIDE, "light"), (WIDE, "dark"), (NARROW, "light"))
_FOLDER = Path(__file__).parent / "shots"
_SAVING = os.environ.get("SHOTS") == "1"
_SIDEWAYS = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def look_at(page: Page, name: str, *, fits: bool = True) -> None:
    """Check that the page is not wider than a wide and a narrow screen, and return it to the wide one. `fits`: False if
    the page may be wider, as tables of the console may.

    With SHOTS=1 in the environment, also save a picture of each look in `shots/`. Otherwise the dark theme is left out,
    because it changes only colours.
    """
    page.wait_for_load_state("load")
    for size, theme in LOOKS if _SAVING else ((WIDE, "light"), (NARROW, "light")):
        resize(page, size)
        if _SAVING:
            page.emulate_media(color_scheme=theme)
        save(page, f"{name}-{theme}-{size[0]}")
        assert_fits(page, name, fits=fits)
    resize(page, WIDE)


def resize(page: Page, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})


def assert_fits(page: Page, name: str, *, fits: bool = True) -> None:
    sideways = page.evaluate(_SIDEWAYS)
    assert sideways <= 0 or not fits, f"{name} is {sideways} px wider than the screen"


def save(page: Page, name: str, *, full_page: bool = True) -> None:
    """Save a picture of the page in `shots/`, with SHOTS=1 in the environment. Otherwise do nothing."""
    if _SAVING:
        _FOLDER.mkdir(exist_ok=True)
        page.screenshot(path=_FOLDER / f"{name}.png", full_page=full_page)
