"""The explanation of a page or a section that has no data: a text, and links to what the user can do."""

from __future__ import annotations

from dataclasses import dataclass

from portal.parts.paging import Changes


@dataclass(frozen=True, slots=True)
class EmptyAction:
    """A link to what the user can do next. It leads to `link`, or to this page with other parameters (`changes`)."""

    title: str
    link: str = ""
    changes: Changes | None = None


@dataclass(frozen=True, slots=True)
class Empty:
    """The explanation of an empty page or section.

    `what`: which data are missing. `why`: the reason. `actions`: links to what the user can do. `command`: a command
    for the terminal that does the same. `page`: whether the whole page is empty; then the text is large and in the
    middle.
    """

    what: str
    why: str = ""
    actions: tuple[EmptyAction, ...] = ()
    command: str = ""
    page: bool = False
