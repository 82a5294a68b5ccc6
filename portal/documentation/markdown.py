"""Functions that write Markdown for the generated pages. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_FIRST_SENTENCE = re.compile(r"^(.+?[.!?])(?:\s|$)", re.DOTALL)


def cell(text: str) -> str:
    """Return `text` for a cell of a Markdown table: as one line, with a backslash before each `|`."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """Return `text` in backticks, or an empty string if `text` is empty."""
    return f"`{text}`" if text else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. `head`: the titles of the columns. Each row contains one text for each column."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cell(text) for text in line)} |\n" for line in lines)


def page(title: str, about: str, *parts: str) -> str:
    """Return a Markdown page. `about`: the page's first paragraph. `parts`: the text after that paragraph."""
    return "\n\n".join([f"# {title}", about, *(part.strip("\n") for part in parts)]) + "\n"


def first_sentence(text: str) -> str:
    """Return the first sentence of `text` on one line."""
    flat = " ".join(text.split())
    found = _FIRST_SENTENCE.match(flat)
    return found[1] if found else flat
