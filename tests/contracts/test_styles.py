"""Tests of style sheets: they take colours, font sizes and rounded corners from the tokens, and every token is used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders

PORTAL = Path(__file__).resolve().parents[2] / "portal"
FOLDER = PORTAL / "static" / "portal"
TOKENS = FOLDER / "tokens.css"
SHEETS = sorted(path for path in FOLDER.glob("*.css") if path != TOKENS)
LITERAL = {
    "a colour": re.compile(r"#[0-9a-fA-F]{3,8}\b|\b(?:rgba?|hsla?|oklch|oklab)\((?!from)(?!in )"),
    "a colour of unfold": re.compile(r"var\(--color-"),
    "a size of type": re.compile(r"font-size: *[\d.]+(?:rem|px)"),
    "a corner": re.compile(r"border-radius: *[1-9]\d*px"),
}


def literals(text: str) -> list[str]:
    plain = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return [f"{name}: {match[0]}" for name, pattern in LITERAL.items() for match in pattern.finditer(plain)]


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda path: path.name)
def test_style_sheets_use_tokens(sheet: Path) -> None:
    assert literals(sheet.read_text()) == []


def test_literal_values_are_found() -> None:
    text = "/* #fff */ a { color: #fff; font-size: 1rem; border-radius: 8px; } b { color: var(--color-base-400); }"
    assert len(literals(text)) == 4


def test_tokens_exist_and_are_used() -> None:
    sheets = "".join(sheet.read_text() for sheet in SHEETS)
    tokens = TOKENS.read_text()
    defined = set(re.findall(r"(--[\w-]+):", tokens))
    used = set(re.findall(r"var\((--[\w-]+)", sheets))
    assert used - defined - {"--font-mono"} == set()
    own = {name for name in defined if not name.startswith(("--color-", "--border-radius"))}
    assert own - used - set(re.findall(r"var\((--[\w-]+)", tokens)) == set()


def test_each_colour_of_the_light_theme_has_a_dark_one() -> None:
    """Each colour token of the light theme is also set in the dark theme, except six that are equal in both."""
    tokens = TOKENS.read_text()
    light = set(re.findall(r"(--[\w-]+):", tokens[: tokens.index(".dark {")]))
    dark = set(re.findall(r"(--[\w-]+):", tokens[tokens.index(".dark {") : tokens.index("@media print")]))
    colours = {
        name for name in light if not name.startswith(("--color-", "--border-radius", "--space", "--type", "--corner"))
    }
    assert colours - dark == {"--edge", "--shadow", "--accent", "--accent-strong", "--alarm", "--on-accent"}
    assert dark <= light


def test_every_static_file_that_a_template_names_exists() -> None:
    """In production, a page that names a missing static file fails, but with the settings of the tests it does not."""
    templates = [path for path in PORTAL.rglob("*.html") if "/static/" not in str(path)]
    named = {name for path in templates for name in re.findall(r"""{% static ['"]([^'"]+)['"]""", path.read_text())}
    assert "portal/parts.css" in named
    assert sorted(name for name in named if finders.find(name) is None) == []
