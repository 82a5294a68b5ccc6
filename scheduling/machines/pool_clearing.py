"""Lets tasks of other tenants leave machines of dedicated pools, within the disruption budgets of their jobs.

    master, each second ─► PoolClearer.turn ─┬─ a pool has `others: leave`, and such tasks run there: evict some
                                             └─ nothing to do: look again after `LOOK_AGAIN_S`

The machines stay up, and tasks of the pool's tenants start there meanwhile. A drain would close the machines to them.
"""

from __future__ import annotations

import time

from django.db.models import QuerySet
from django.db.models.fields.json import KeyTextTransform

from scheduling.core.vocabulary.requirement import POOL
from scheduling.core.vocabulary.states import EvictionCause
from scheduling.machines.evacuation import evict_within_budgets, readable
from scheduling.machines.machines import UP
from scheduling.models import Task
from scheduling.policy.cell_settings import CellSettings
from scheduling.pools.foreign_tasks import foreign, pools_to_clear

# After no task had to leave, the master looks again after this time.
LOOK_AGAIN_S = 10.0


class PoolClearer:
    """Clears the dedicated pools of one cell. It runs in the cell's master."""

    def __init__(self, cell_id: int) -> None:
        self._cell_id = cell_id
        self._due = 0.0

    def turn(self, settings: CellSettings, *, seconds: float) -> int:
        """Evict tasks that have to leave, and return their number. The cell's drain rate times `seconds` limits it."""
        if time.monotonic() < self._due:
            return 0
        limit = max(1, int(settings.drain_per_s * seconds)) if settings.drain_per_s else 0
        if not limit or not self._tasks().exists():
            self._due = time.monotonic() + LOOK_AGAIN_S
            return 0
        return evict_within_budgets(
            self._cell_id, self._tasks, EvictionCause.DEDICATED_POOL, limit=limit, patience_s=settings.drain_patience_s
        )

    def _tasks(self) -> QuerySet[Task]:
        """Return the tasks that have to leave, by the present pools."""
        pools = pools_to_clear(self._cell_id)
        if not pools:
            return Task.objects.none()
        here = Task.objects.filter(foreign(pools), machine__cell_id=self._cell_id, machine__state=UP)
        return readable(here.annotate(pool=KeyTextTransform(POOL, "machine__attributes")))
