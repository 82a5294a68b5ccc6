"""Chooses the old checkpoints that can be deleted. Pure."""

from __future__ import annotations

from collections.abc import Sequence, Set

from scheduling.history.checkpoints.file import Header

DAY_S = 86400.0


def superfluous(
    headers: Sequence[Header], *, now: float, keep_s: float, most_events: int, same: Set[str] = frozenset()
) -> list[Header]:
    """Return the checkpoints that can be deleted. All of the last 24 hours stay, and so does the first of each day
    (UTC), for `keep_s` seconds. Others stay if more than `most_events` events would be between two checkpoints
    without them; 0: they do not stay. `same`: the ids of histories that continue each other, and count as one.
    """

    def history(header: Header) -> str:
        return "" if header.history in same else header.history

    unneeded = []
    last: dict[str, Header] = {}  # the last one that stays, by history
    ordered = sorted(headers, key=lambda header: (history(header), header.taken_at))
    for header, following in zip(ordered, [*ordered, None][1:], strict=True):
        before, age_s = last.get(history(header)), now - header.taken_at
        first = before is None or before.taken_at // DAY_S < header.taken_at // DAY_S
        gap = following.events - before.events if before and following and history(following) == history(header) else 0
        if age_s > keep_s or (age_s > DAY_S and not first and not 0 < most_events < gap):
            unneeded.append(header)
        else:
            last[history(header)] = header
    return unneeded
