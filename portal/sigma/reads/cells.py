"""Queries of cells and machines for pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import connection
from django.db.models import Count, Q, QuerySet, Sum

from quota.vocabulary.resources import CPU, DISK, RAM
from scheduling.core.vocabulary.states import JobState, MachineStatus
from scheduling.models import Cell, Job, Machine
from scheduling.models.machines import REMOVED


@dataclass(frozen=True, slots=True)
class CellSummary:
    """Machines by state, and tasks of live jobs by state. `up` tasks are those that users call running."""

    machines_up: int
    machines_draining: int
    machines_down: int
    tasks_pending: int
    tasks_placed: int
    tasks_up: int

    @property
    def machines(self) -> int:
        return self.machines_up + self.machines_draining + self.machines_down


@dataclass(frozen=True, slots=True)
class MachineRow:
    """A machine with the number of its tasks and the sums of their limits."""

    machine: Machine
    tasks: int
    cpu: int
    ram: int
    disk: int

    @property
    def capacity(self) -> dict[str, int]:
        return {
            "cpu": self.machine.capacity[CPU],
            "ram": self.machine.capacity[RAM],
            "disk": self.machine.capacity[DISK],
        }


def cell_counts(cell_ids: Sequence[int]) -> dict[int, CellSummary]:
    """Return the counts of several cells by id. Two queries."""
    machines = {
        (row["cell_id"], row["state"]): row["n"]
        for row in Machine.objects.filter(cell_id__in=cell_ids)
        .order_by()
        .values("cell_id", "state")
        .annotate(n=Count("id"))
    }
    tasks = {
        row["cell_id"]: row
        for row in Job.objects.filter(cell_id__in=cell_ids)
        .exclude(state=JobState.DEAD.value)
        .order_by()
        .values("cell_id")
        .annotate(pending=Sum("tasks_pending"), placed=Sum("tasks_running"), up=Sum("tasks_up"))
    }
    return {
        cell: CellSummary(
            machines.get((cell, MachineStatus.UP.value), 0),
            machines.get((cell, MachineStatus.DRAINING.value), 0),
            machines.get((cell, MachineStatus.DOWN.value), 0),
            *(tasks.get(cell, {}).get(name) or 0 for name in ("pending", "placed", "up")),  # type: ignore[arg-type, call-overload]
        )
        for cell in cell_ids
    }


def machines_of(cell: Cell, *, state: str = "", rack: str = "", search: str = "") -> QuerySet[Machine]:
    """Return the machines of a cell by hostname. Removed machines appear only with `state="removed"`."""
    rows = Machine.objects.filter(cell=cell).order_by("hostname")
    rows = rows.filter(state=state) if state else rows.exclude(state=REMOVED)
    if rack:
        rows = rows.filter(rack=rack)
    if search:
        rows = rows.filter(Q(hostname__contains=search) | Q(platform__contains=search))
    return rows


def racks_of(cell: Cell) -> list[str]:
    rows = Machine.objects.filter(cell=cell).exclude(rack="").order_by("rack")
    return list(rows.values_list("rack", flat=True).distinct()[:500])


def machine_rows(machines: Sequence[Machine]) -> list[MachineRow]:
    """Return the machines with the totals of their tasks. One query."""
    with connection.cursor() as cursor:
        cursor.execute(
            'SELECT machine_id, count(*), sum("limit"[1])::bigint, sum("limit"[2])::bigint,'
            ' sum("limit"[3])::bigint FROM scheduling_task WHERE machine_id = ANY(%s) GROUP BY machine_id',
            [[machine.id for machine in machines]],
        )
        found = {row[0]: row[1:] for row in cursor.fetchall()}
    return [MachineRow(machine, *found.get(machine.id, (0, 0, 0, 0))) for machine in machines]


def machine_rows_by_id(cell_id: int, ids: Sequence[int]) -> list[MachineRow]:
    """Return the rows of the machines with these ids that are not removed. Two queries."""
    machines = Machine.objects.filter(cell_id=cell_id, id__in=ids).exclude(state=REMOVED)
    return machine_rows(list(machines.order_by("hostname")))


assert (CPU, RAM, DISK) == (0, 1, 2), "machine_rows reads these positions in SQL"
