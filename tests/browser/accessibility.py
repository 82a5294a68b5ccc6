"""Accessibility checks of a page: the rules of WCAG 2.2 that a program can check.

The names of controls and images are read from Chromium's accessibility tree, which screen readers use too. Contrast is
computed from the colours that Chromium draws. `accessibility.js` contains the other rules.
"""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

_RULES = Path(__file__).with_suffix(".js").read_text()
# The roles of controls, images and tables in Chromium's accessibility tree. Each needs a name.
CONTROLS = {
    "link",
    "button",
    "checkbox",
    "combobox",
    "searchbox",
    "slider",
    "spinbutton",
    "textbox",
    "Date",
    "DateTime",
}
NEEDS_NAME = CONTROLS | {"image", "img", "form", "region", "table"}


def faults(page: Page) -> list[str]:
    """Return one line per accessibility fault of the page, or [] if the page has none."""
    found = page.evaluate(
        f"() => {{ const checks = {_RULES.strip()}; return [...checks.rules(), ...checks.contrast()]; }}"
    )
    return [*found, *_unnamed(page)]


def _unnamed(page: Page) -> list[str]:
    session = page.context.new_cdp_session(page)
    try:
        session.send("Accessibility.enable")
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    finally:
        session.detach()
    return [
        f"a {node['role']['value']} has no name: node {node.get('backendDOMNodeId')}"
        for node in nodes
        if not node["ignored"]
        and node.get("role", {}).get("value") in NEEDS_NAME
        and not node.get("name", {}).get("value", "").strip()
    ]
