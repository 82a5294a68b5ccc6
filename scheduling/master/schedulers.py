"""The schedulers of a cell (§3.4): one scheduler for all work, or one for services and one for batch work.

    Cell.settings.schedulers ─► `wanted`: the schedulers that the cell needs ─► `unheld`: those that do not run
        ─► each runs in a process of its own (`scheduling.master.process`), with its own copy of the cell's state

Schedulers work at the same time, each with its own copy of the cell's state. The commit checks each assignment again.
If two schedulers conflict, the assignment that comes later is rejected. Only the first scheduler of a cell does the
maintenance: it finds machines that do not report, and continues drains and updates.
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
    """A scheduler of a cell. `name`: its name in leases and metrics. `keeps_house`: it also does the cell's
    maintenance, such as drains and updates.

    `chunk`: how many placements the scheduler commits under one revision. During a commit, other writers wait for the
    cell's lock.
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


def process_of(cell: str, scheduler: Scheduler) -> str:
    """Return the name of the process that runs a scheduler (`python -m scheduling.master NAME`). The schedulers that do
    the maintenance of a cell have the same process, because a cell has only one of them at a time.
    """
    return cell if scheduler.keeps_house else f"{cell}.{scheduler.name}"


def wanted_of_all() -> list[tuple[int, str, Scheduler]]:
    """Return (cell id, cell name, scheduler) for each scheduler that a cell's settings list. Makes one query."""
    found: list[tuple[int, str, Scheduler]] = []
    for cell_id, name, settings in Cell.operated.order_by("id").values_list("id", "name", "settings"):
        try:
            found += [(cell_id, name, one) for one in wanted(cell_settings.load(settings))]
        except Rejected as refusal:
            log.error(
                "no master runs for a cell, because its settings are not valid; correct the settings",
                cell=name,
                problem=refusal.detail,
            )
    return found


def unheld() -> list[tuple[str, Scheduler]]:
    """Return (cell name, scheduler) for each scheduler that a cell's settings list and that has no valid lease. Makes
    two queries.
    """
    held = lease.held()
    return [(name, one) for cell_id, name, one in wanted_of_all() if (cell_id, one.name) not in held]
