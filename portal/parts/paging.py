"""Links to the other pages of a long list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# The parameters of a URL that a link changes, by name. None removes the parameter.
Changes = Mapping[str, str | int | None]
# A link that changes what a list shows starts again at the first page, so it removes these parameters.
FIRST_PAGE: Changes = {"page": None, "before": None, "after": None}


@dataclass(frozen=True, slots=True)
class Paging:
    """Links to the page before and the page after, or None where there is no such page.

    `number`, `pages`, `rows`: the number of this page, of all pages and of all rows. They are 0 if nobody counts the
    rows; then the links are called Newer and Older.
    """

    before: Changes | None = None
    after: Changes | None = None
    number: int = 0
    pages: int = 0
    rows: int = 0

    @property
    def single(self) -> bool:
        """Return whether there is only one page, which needs no links."""
        return self.before is None and self.after is None


def by_number(number: int, pages: int, rows: int) -> Paging:
    """Return the links of page `number` of `pages`. The URL parameter `page` holds the number of a page."""
    return Paging(
        {"page": number - 1} if number > 1 else None,
        {"page": number + 1} if number < pages else None,
        number,
        pages,
        rows,
    )


def by_cursor(*, newer: str = "", older: str = "") -> Paging:
    """Return the links of a list that has the newest rows first and is not counted.

    `newer`, `older`: the position of the first and of the last row, or "" if there are no rows beyond. The URL
    parameters `after` and `before` hold them.
    """
    return Paging({**FIRST_PAGE, "after": newer} if newer else None, {**FIRST_PAGE, "before": older} if older else None)
