"""Tables: columns, cells, the order of the rows, and links that change the order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from portal.parts.empty import Empty
from portal.parts.paging import FIRST_PAGE, Changes, Paging

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    `number`: whether the cells are numbers, which are aligned to the right. `order`: the name of this column in the URL
    parameter for the order of the rows, or "" if the rows cannot be ordered by it. `descending`: whether the first
    click shows the largest value first.
    """

    title: str
    number: bool = False
    order: str = ""
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table. `note`: a less important text after `text`. `tone`: `good`, `wait`, `bad` or `plain` shows the
    text as a label in the colour of that state. `code`: whether the text is set in monospace.
    """

    text: object
    link: str = ""
    note: object = ""
    tone: str = ""
    code: bool = False


@dataclass(frozen=True, slots=True)
class Sorting:
    """The column by which the rows of a table are ordered. `parameter`: the URL parameter that holds the name of the
    column; a minus sign before the name means descending.
    """

    order: str
    descending: bool = False
    parameter: str = "sort"

    @property
    def value(self) -> str:
        """Return the value of the URL parameter, such as `-size`."""
        return f"-{self.order}" if self.descending else self.order


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of a column. `aria_sort`: the value of the HTML attribute `aria-sort`, or "". `changes`: the change
    of the URL parameter that orders the rows by this column, or None if the rows cannot be ordered by it.
    """

    title: str
    number: bool
    aria_sort: str
    changes: Changes | None


@dataclass(frozen=True, slots=True)
class Table:
    """A table for `parts/table.html`. The first cell of each row is the heading of the row.

    `rows`: one sequence of `Cell`s or plain values per row; with `row_template`, any values, which this template shows
    under the name `row`. `total`: the cells of a last row with sums. `caption`: the name of the table, which is visible
    only with `captioned`. `empty`: shown instead of a table without rows. `flat`: whether the table has no frame.
    """

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    empty: Empty
    sorting: Sorting | None = None
    paging: Paging | None = None
    total: Sequence[Any] = ()
    row_template: str = ""
    captioned: bool = False
    flat: bool = False

    @property
    def headings(self) -> list[Heading]:
        """Return the headings of the columns."""
        return [_heading(column, self.sorting) for column in self.columns]

    @property
    def lines(self) -> list[list[tuple[Column, Cell]]]:
        """Return the cells of each row with their columns. Raises `ValueError` if a row has more or fewer cells than
        the table has columns.
        """
        return [self._line(row) for row in self.rows]

    @property
    def total_line(self) -> list[tuple[Column, Cell]]:
        """Return the cells of the row with sums, with their columns."""
        return self._line(self.total) if self.total else []

    def _line(self, row: Sequence[Any]) -> list[tuple[Column, Cell]]:
        cells = (one if isinstance(one, Cell) else Cell("–" if one is None else one) for one in row)
        return list(zip(self.columns, cells, strict=True))


def sorting_of(
    given: Mapping[str, str], columns: Iterable[Column], *, default: str, parameter: str = "sort"
) -> Sorting:
    """Return the order of rows that the URL parameter in `given` asks for. If there is no column of this name, return
    the order `default`, such as `name` or `-name`.
    """
    known = {column.order for column in columns} - {""}
    asked = given.get(parameter, "")
    value = asked if asked.removeprefix("-") in known else default
    return Sorting(value.removeprefix("-"), value.startswith("-"), parameter)


def ordered(rows: Iterable[Row], sorting: Sorting, keys: Mapping[str, Callable[[Row], Any]]) -> list[Row]:
    """Return the rows in the order of `sorting`. Rows whose value is None come last. `keys`: for each column by which
    rows can be ordered, the function that returns the value of a row.
    """
    key = keys[sorting.order]
    known: list[Row] = []
    unknown: list[Row] = []
    for row in rows:
        (unknown if key(row) is None else known).append(row)
    return [*sorted(known, key=key, reverse=sorting.descending), *unknown]


def _heading(column: Column, sorting: Sorting | None) -> Heading:
    if sorting is None or not column.order:
        return Heading(column.title, column.number, "", None)
    here = column.order == sorting.order
    descending = not sorting.descending if here else column.descending
    following = Sorting(column.order, descending, sorting.parameter)
    aria_sort = "" if not here else "descending" if sorting.descending else "ascending"
    return Heading(column.title, column.number, aria_sort, {**FIRST_PAGE, sorting.parameter: following.value})
