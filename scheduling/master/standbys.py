"""The standby masters of cells (§3.1): who would take over, and with how old a state.

Each standby writes its row every few seconds, and deletes it when it stops or takes over. A row that was not written
for `GONE_AFTER_S` seconds belongs to a standby that has ended, or that does not reach the database.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from scheduling.journal.sql import execute, query

NOTE_EVERY_S, GONE_AFTER_S = 5.0, 15.0


@dataclass(frozen=True, slots=True)
class StandbyMaster:
    """A standby of a scheduler. `holder`: the name with which it takes the lease. `behind`: how many revisions of the
    journal it had not read when it was last seen.
    """

    cell_id: int
    scheduler: str
    holder: str
    behind: int


def note(cell_id: int, *, scheduler: str, holder: str, revision: int) -> None:
    """Record that `holder` stands by with the state of `revision`. Delete the rows of standbys that have ended."""
    execute(
        "DELETE FROM scheduling_standby WHERE cell_id = %s AND seen_at < clock_timestamp() - make_interval(secs => %s)",
        [cell_id, GONE_AFTER_S],
    )
    execute(
        "INSERT INTO scheduling_standby (cell_id, scheduler, holder, revision, seen_at)"
        " VALUES (%s, %s, %s, %s, clock_timestamp()) ON CONFLICT (cell_id, scheduler, holder)"
        " DO UPDATE SET revision = excluded.revision, seen_at = excluded.seen_at",
        [cell_id, scheduler, holder, revision],
    )


def forget(cell_id: int, *, scheduler: str, holder: str) -> None:
    """Record that `holder` no longer stands by."""
    execute(
        "DELETE FROM scheduling_standby WHERE cell_id = %s AND scheduler = %s AND holder = %s",
        [cell_id, scheduler, holder],
    )


def present() -> dict[tuple[int, str], list[StandbyMaster]]:
    """Return the standbys of all cells by (cell id, name of the scheduler), sorted by holder."""
    rows = query(
        "SELECT s.cell_id, s.scheduler, s.holder, greatest(c.revision - s.revision, 0)"
        " FROM scheduling_standby AS s JOIN scheduling_cell AS c ON c.id = s.cell_id"
        " WHERE s.seen_at >= clock_timestamp() - make_interval(secs => %s) ORDER BY s.holder",
        [GONE_AFTER_S],
    )
    found = defaultdict(list)
    for row in rows:
        found[row[0], row[1]].append(StandbyMaster(*row))
    return dict(found)
