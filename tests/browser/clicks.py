"""A counter of clicks for tests of stories: how many clicks a person needs from a page to a goal."""

from __future__ import annotations

from playwright.sync_api import Page

# Trusted clicks come from the mouse, or from Enter and Space on a link or a button. Both count.
_COUNT = """() => addEventListener("click", (event) => {
  if (event.isTrusted) sessionStorage.setItem("clicks", Number(sessionStorage.getItem("clicks") ?? 0) + 1);
}, true)"""


class ClickCounter:
    """Counts the clicks in a page, also across loads of pages. Typing does not count; Enter on a link counts.

    clicks = ClickCounter(page)   # before the story begins
    ...
    assert clicks.total <= 4
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        page.add_init_script(f"({_COUNT})()")
        page.reload()
        page.evaluate("() => sessionStorage.removeItem('clicks')")

    @property
    def total(self) -> int:
        """Return the number of clicks since the counter was made."""
        return int(self._page.evaluate("() => Number(sessionStorage.getItem('clicks') ?? 0)"))
