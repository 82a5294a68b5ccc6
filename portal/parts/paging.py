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
    """Links to the previous and the next page of a list, or None if there is no such page.

    `number`: the number of this page. `pages`: the number of all pages. `rows`: the number of all rows. These are 0 if
    the list is not counted; then the links are called Newer and Older.
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
    """Return the links to the pages before and after page `number`. `pages`, `rows`: how many pages and rows the list
    has. The URL parameter `page` holds the number of a page.
    """
    return Paging(
        {"page": number - 1} if number > 1 else None,
        {"page": number + 1} if number < pages else None,
        number,
        pages,
        rows,
    )


def by_cursor(*, newer: str = "", older: str = "") -> Paging:
    """Return the links to the previous and the next page of a list that has the newest rows first and is not counted.

    `newer`: the position of the first row of this page, or "" if there are no newer rows. `older`: the position of the
    last row, or "" if there are no older rows. The URL parameters `after` and `before` hold these positions.
    """
    return Paging({**FIRST_PAGE, "after": newer} if newer else None, {**FIRST_PAGE, "before": older} if older else None)
