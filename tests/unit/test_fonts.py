"""Tests of the web fonts, which are subsets: they contain every icon and character in use."""

from __future__ import annotations

from pathlib import Path

import pytest
from fontTools.ttLib import TTFont

from portal import fonts

PROJECT = Path(fonts.__file__).parents[1]
ADVICE = "run `manage.py subset_fonts` and commit what it writes"


def test_every_icon_in_use_is_in_the_icon_font() -> None:
    whole = fonts.ligatures(TTFont(fonts.UNFOLD / "static" / fonts.ICONS))
    kept = fonts.ligatures(TTFont(fonts.OWN / fonts.ICONS))
    wanted = {name for name in fonts.icons_named(PROJECT) if name in whole}
    assert {"hub", "notifications", "travel_explore", "check_small", "expand_more"} <= wanted
    assert wanted <= kept.keys(), ADVICE


@pytest.mark.parametrize("path", fonts.TEXT, ids=lambda path: path.stem)
def test_the_text_font_has_the_characters_of_latin_languages(path) -> None:
    assert {ord(one) for one in "AZaz09äéßřŁő–…→≤€ "} <= TTFont(fonts.OWN / path).getBestCmap().keys(), ADVICE


@pytest.mark.parametrize("path", [fonts.ICONS, *fonts.TEXT], ids=lambda path: path.stem)
def test_no_font_is_larger_than_30_kb(path) -> None:
    assert (fonts.OWN / path).stat().st_size <= 30_000
