"""Queries of cells and machines for pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Q, QuerySet
from django.urls import reverse
from django.utils.translation import gettext as _

from portal.parts import tables
from portal.parts.empty import Empty
from quota.vocabulary.resources import CPU, DISK, RAM
from scheduling.cells.cell_counts import cell_counts
from scheduling.core.vocabulary.states import PoolUse
from scheduling.journal.sql import query
from scheduling.models import Cell, Machine
from scheduling.models.machines import REMOVED
from scheduling.pools.selectors import PoolState


@dataclass(frozen=True, slots=True)
class MachineRow:
    """A machine with the number of its tasks, and the sums of the limits of these tasks: CPU, RAM and disk."""

    machine: Machine
    tasks: int
    cpu: int
    ram: int
    disk: int


def machines_of(cell: Cell, *, state: str = "", rack: str = "", search: str = "") -> QuerySet[Machine]:
    """Return the machines of a cell that match all given filters, sorted by hostname. Removed machines are returned
    only for `state="removed"`. `search`: a part of the hostname or of the platform.
    """
    rows = Machine.objects.filter(cell=cell).select_related("cell").order_by("hostname")
    rows = rows.filter(state=state) if state else rows.exclude(state=REMOVED)
    if rack:
        rows = rows.filter(rack=rack)
    if search:
        rows = rows.filter(Q(hostname__contains=search) | Q(platform__contains=search))
    return rows


def machine_rows(machines: Sequence[Machine]) -> list[MachineRow]:
    """Return the machines, each with the number of its tasks and the sums of the tasks' limits. Makes one query."""
    rows = query(
        'SELECT machine_id, count(*), sum("limit"[1])::bigint, sum("limit"[2])::bigint, sum("limit"[3])::bigint'
        " FROM scheduling_task WHERE machine_id = ANY(%s) GROUP BY machine_id",
        [[machine.id for machine in machines]],
    )
    found = {row[0]: row[1:] for row in rows}
    return [MachineRow(machine, *found.get(machine.id, (0, 0, 0, 0))) for machine in machines]


def machine_rows_by_id(cell_id: int, ids: Sequence[int]) -> list[MachineRow]:
    """Return the machines with these ids, each with the number of its tasks and the sums of the tasks' limits. Removed
    machines are omitted. Makes two queries.
    """
    machines = Machine.objects.filter(cell_id=cell_id, id__in=ids).exclude(state=REMOVED).select_related("cell")
    return machine_rows(list(machines.order_by("hostname")))


assert (CPU, RAM, DISK) == (0, 1, 2), "machine_rows reads these positions in SQL"


def pool_table(pools: Sequence[PoolState]) -> tables.Table:
    """Return a table of machine pools, with those of their tenants that the reader may see."""
    uses = {
        PoolUse.MAY.value: _("run there or elsewhere"),
        PoolUse.PREFER.value: _("run there first"),
        PoolUse.MUST.value: _("run only there"),
    }
    columns = (
        tables.Column(_("Pool")),
        tables.Column(_("Machines"), number=True),
        tables.Column(_("Machines up"), number=True),
        tables.Column(_("Tenants")),
        tables.Column(_("Tasks of these tenants")),
        tables.Column(_("Tasks of other tenants")),
        tables.Column(_("Description")),
    )
    rows = [
        (
            one.pool.name,
            one.machines,
            one.up,
            ", ".join(one.tenants) or None,
            uses[one.pool.use] if one.tenants else None,
            _("do not start there") if one.pool.dedicated else _("run there"),
            one.pool.description or None,
        )
        for one in pools
    ]
    return tables.Table(_("Machine pools"), columns, rows, Empty(_("There is no machine pool.")), captioned=True)


def cell_table(cells: Sequence[Cell], *, title: str = "") -> tables.Table:
    """Return a table of cells with the numbers of their machines and tasks. Makes two queries. `title`: shown above the
    table; empty for none.
    """
    counts = cell_counts([cell.id for cell in cells])
    columns = (
        tables.Column(_("Cell")),
        tables.Column(_("Site")),
        tables.Column(_("Machines up"), number=True),
        tables.Column(_("Machines draining"), number=True),
        tables.Column(_("Machines down"), number=True),
        tables.Column(_("Tasks running"), number=True),
        tables.Column(_("Tasks pending"), number=True),
    )
    names = ("machines_up", "machines_draining", "machines_down", "tasks_up", "tasks_pending")
    rows = [
        (
            tables.Cell(cell.name, reverse("sigma:cell", args=[cell.name])),
            cell.site_name or None,
            *(counts[cell.id][name] for name in names),
        )
        for cell in cells
    ]
    empty = Empty(_("There is no cell yet."), _("An SRE can create a cell in the SRE console."))
    return tables.Table(title or _("Cells"), columns, rows, empty, captioned=bool(title))
