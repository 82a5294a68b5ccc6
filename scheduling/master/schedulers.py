"""The schedulers of a cell (§3.4): one for all work, or one for services and one for batch.

    Cell.settings.schedulers ─► `wanted`: the schedulers that the cell needs ─► `unheld`: those that do not run
        ─► `masters_ensure` starts them: each has its own Celery queue, process and copy of the cell's state

Schedulers work at the same time, each on its own copy of the cell. The commit checks each placement again. If two
schedulers conflict, the later one decides again. Only the first scheduler does the other work: machines that do not
report, drains and updates.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from quota.vocabulary.errors import Rejected
from scheduling.core.vocabulary.policy import Workload
from scheduling.journal import journal
from scheduling.master import lease
from scheduling.models import Cell
from scheduling.policy import cell_settings
from scheduling.policy.cell_settings import CellSettings

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A scheduler of a cell. `name`: its name in leases and metrics. `keeps_house`: whether it also does the cell's
    other work, such as drains and updates.

    `chunk`: how many placements the scheduler commits under one revision. Other writers wait for the cell's lock during
    that time.
    """

    name: str
    workload: Workload
    keeps_house: bool
    chunk: int = journal.CHUNK


DEFAULT = Scheduler("default", "", keeps_house=True)
SERVICE = Scheduler("service", "service", keeps_house=True)
BATCH = Scheduler("batch", "batch", keeps_house=False, chunk=1_000)
# By the value of the cell's setting. The first keeps house.
KINDS = {"one": (DEFAULT,), "by-workload": (SERVICE, BATCH)}
BY_NAME = {scheduler.name: scheduler for kind in KINDS.values() for scheduler in kind}


def wanted(settings: CellSettings) -> tuple[Scheduler, ...]:
    return KINDS[settings.schedulers]


def queue_of(cell: str, scheduler: Scheduler) -> str:
    """Return the name of the Celery queue of a scheduler. The workers of this queue must run one task at a time. Cell
    names contain no dot, so queue names are unambiguous.
    """
    return f"cell.{cell}" if scheduler.keeps_house else f"cell.{cell}.{scheduler.name}"


def unheld() -> list[tuple[str, Scheduler]]:
    """Return (cell, scheduler) for each scheduler that the settings name and that does not run. Makes two queries."""
    held = lease.held()
    missing: list[tuple[str, Scheduler]] = []
    for cell_id, name, settings in Cell.objects.order_by("id").values_list("id", "name", "settings"):
        try:
            schedulers = wanted(cell_settings.load(settings))
        except Rejected as refusal:
            log.error("a cell without valid settings has no master", cell=name, problem=refusal.detail)
            continue
        missing += [(name, one) for one in schedulers if (cell_id, one.name) not in held]
    return missing
