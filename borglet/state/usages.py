"""Usage of tasks as a row of numbers, the form of `WireReport.usages`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from borglet.messages import Usage


def total(usages: Iterable[Usage]) -> Usage:
    """Return the sum over a machine."""
    rows = [msgspec.structs.astuple(usage) for usage in usages]
    return Usage(*(sum(column) for column in zip(*rows, strict=True)))


def figures(usages: Sequence[Usage]) -> tuple[int, list[int]]:
    """Return the number of columns and the rows, the machine's own first, without columns at the end that are all 0."""
    rows = [msgspec.structs.astuple(usage) for usage in usages]
    sums = [sum(column) for column in zip(*rows, strict=True)]
    columns = max((n for n, value in enumerate(sums, 1) if value), default=1)
    detail = sums[:columns] or [0]
    for row in rows:
        detail += row[:columns]
    return columns, detail
