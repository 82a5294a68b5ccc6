"""The topic of the map of a cell: the machines on it that change with new events.

The browser gets the message `{"seq", "revision", "machines": {column: values}, "facts": [[id, …]], "resync": bool}`. If
`resync` is true, it must read the whole map again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from portal.live.page_changes import CellNews
from scheduling.cell_map.changes import machines_of_events
from scheduling.cell_map.columns import changed_columns, facts_of
from scheduling.cell_map.kept_maps import maps
from scheduling.cell_map.scopes import MapScope
from scheduling.models import Cell

# A message with more machines costs more than reading the map again.
MOST_MACHINES = 2_000


@dataclass(frozen=True, slots=True)
class MapChanges:
    """The changed machines of a map. `machines`: the state and the sums of each, as columns. `facts`: the facts of
    machines that may be new or different; the browser compares them with those that it has. `resync`: whether the
    browser must read the whole map again.
    """

    machines: dict[str, list[Any]] = field(default_factory=dict)
    facts: list[list[Any]] = field(default_factory=list)
    resync: bool = False

    def message(self) -> dict[str, Any]:
        """Return the fields of the message to the browser."""
        return {"machines": self.machines, "facts": self.facts, "resync": self.resync}


@dataclass(frozen=True, slots=True)
class MapTopic:
    """The map of a cell. When events happen, it sends the state and the sums of the machines that they concern.
    `scope`: what its viewers may see. `job_id`: the job that the map shows; None if there is none.

    The rows are read once for all topics of a cell, because the kept map of the process has them.
    """

    cell_id: int
    scope: MapScope
    job_id: int | None

    def changes(self, news: CellNews) -> MapChanges | None:
        if news.events is None:
            return MapChanges(resync=True)
        ids = machines_of_events(news.events)
        if not ids:
            return None
        if len(ids) > MOST_MACHINES or any(event.kind == "machine.removed" for event in news.events):
            return MapChanges(resync=True)
        cell = Cell.objects.filter(pk=self.cell_id).first()
        if cell is None:
            return MapChanges(resync=True)
        whole = maps.read(cell)
        set_again = {event.machine_id for event in news.events if event.kind == "machine.set" and event.machine_id}
        return MapChanges(changed_columns(whole, self.scope, ids, self.job_id), facts_of(whole, set_again))
