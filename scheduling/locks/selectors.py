"""Reads of locks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quota.vocabulary.errors import invalid
from scheduling.journal.sql import query
from scheduling.locks.locks import READ, Lock
from scheduling.locks.sessions import Space

PAGE = 100
_READ = READ.replace("f.content", "''", 1)


def page(
    space: Space, *, prefix: str = "", after: str = "", within: Sequence[str] | None = None, limit: int = PAGE
) -> tuple[list[Lock], bool]:
    """Return locks in the order of their names, without their contents, and whether there are more. Makes one query.

    `prefix`: the beginning of their names. `after`: the last name of the page before. `within`: only these locks, and
    those in folders of these names; None: all.
    """
    for field, text in (("prefix", prefix), ("after", after)):
        if "\0" in text or not text.isprintable():
            raise invalid(field, "it contains characters that no name has; give the beginning of a name")
    values: list[Any] = [space.cell_id, space.tenant_id, prefix, after]
    where = " AND starts_with(f.name, %s) AND f.name > %s"
    if within is not None:
        where += (
            " AND EXISTS (SELECT 1 FROM unnest(%s::text[]) AS w (name)"
            " WHERE f.name = w.name OR starts_with(f.name, w.name || '/'))"
        )
        values.append(list(within))
    rows = query(f"{_READ}{where} ORDER BY f.name LIMIT %s", [*values, limit + 1])
    return [Lock(*row) for row in rows[:limit]], len(rows) > limit
