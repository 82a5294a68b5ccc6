"""Sorts lists of tokens: each token is followed by its children (pure)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeVar

_Row = TypeVar("_Row")


def in_families(
    rows: Iterable[_Row], *, key: Callable[[_Row], str], parent: Callable[[_Row], str | None]
) -> list[_Row]:
    """Return the rows (tokens) in an order in which children follow their parent. Otherwise keep the given order.

    A row whose parent is not in `rows` counts as a row without a parent.
    """
    given = list(rows)
    present = {key(row) for row in given}
    children: dict[str | None, list[_Row]] = defaultdict(list)
    for row in given:
        above = parent(row)
        children[above if above in present else None].append(row)
    ordered: list[_Row] = []
    waiting = children[None][::-1]
    while waiting:
        row = waiting.pop()
        ordered.append(row)
        waiting.extend(reversed(children[key(row)]))
    return ordered
