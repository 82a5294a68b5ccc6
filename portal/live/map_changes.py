"""The topic of the map of a cell: the machines on it that change with new events.

The browser gets the message `{"seq", "revision", "machines": {column: values}, "resync": bool}`. If `resync` is true,
it must read the whole map again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from portal.live.page_changes import CellNews
from scheduling.cell_map.changes import NEW_FACTS, machines_of_events
from scheduling.cell_map.columns import changed_columns
from scheduling.cell_map.scopes import MapScope

# A message with more machines costs more than reading the map again.
MOST_MACHINES = 2_000


@dataclass(frozen=True, slots=True)
class MapChanges:
    """The changed machines of a map. `machines`: the state and the sums of each, as columns. `resync`: whether the
    browser must read the whole map again.
    """

    machines: dict[str, list[Any]] = field(default_factory=dict)
    resync: bool = False

    def message(self) -> dict[str, Any]:
        """Return the fields of the message to the browser."""
        return {"machines": self.machines, "resync": self.resync}


@dataclass(frozen=True, slots=True)
class MapTopic:
    """The map of a cell. When events happen, it reads the state and the sums of the machines that they concern.
    `scope`: what its viewers may see. `job_id`: the job that the map shows; None if there is none.
    """

    cell_id: int
    scope: MapScope
    job_id: int | None

    def changes(self, news: CellNews) -> MapChanges | None:
        if news.events is None:
            return MapChanges(resync=True)
        ids = machines_of_events(self.cell_id, news.events)
        if not ids:
            return None
        if len(ids) > MOST_MACHINES or any(event.kind in NEW_FACTS for event in news.events):
            return MapChanges(resync=True)
        return MapChanges(changed_columns(self.cell_id, self.scope, sorted(ids), self.job_id))
