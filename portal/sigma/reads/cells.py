"""Queries of cells and machines for pages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from django.db import connection
from django.db.models import Count, Q, QuerySet, Sum

from quota.vocabulary.resources import CPU, DISK, RAM
from scheduling.core.vocabulary.states import JobState, MachineStatus
from scheduling.models import Cell, Job, Machine
from scheduling.models.machines import REMOVED


@dataclass(frozen=True, slots=True)
class MachineRow:
    """A machine with the number of its tasks and the totals of their limits."""

    machine: Machine
    tasks: int
    cpu: int
    ram: int
    disk: int


def cell_counts(cell_ids: Sequence[int]) -> dict[int, dict[str, int]]:
    """Return the numbers of machines and tasks by state, per cell id. Makes two queries.

    The keys are machines_up, machines_draining, machines_down, tasks_pending, tasks_placed and tasks_up. Tasks are
    those of live jobs. The user interface calls tasks that are up "running".
    """
    states = {f"machines_{status.value}": Count("id", filter=Q(state=status.value)) for status in MachineStatus}
    tasks = {"tasks_pending": Sum("tasks_pending"), "tasks_placed": Sum("tasks_running"), "tasks_up": Sum("tasks_up")}
    machines = Machine.objects.filter(cell_id__in=cell_ids).order_by()
    jobs = Job.objects.filter(cell_id__in=cell_ids).exclude(state=JobState.DEAD.value).order_by()
    counts = {cell_id: dict.fromkeys([*states, *tasks], 0) for cell_id in cell_ids}
    rows: Iterable[Any] = chain(machines.values("cell_id").annotate(**states), jobs.values("cell_id").annotate(**tasks))
    for row in rows:
        counts[row.pop("cell_id")] |= row
    return counts


def machines_of(cell: Cell, *, state: str = "", rack: str = "", search: str = "") -> QuerySet[Machine]:
    """Return the machines of a cell that match all given filters, sorted by hostname. Removed machines match only with
    `state="removed"`. `search`: a part of the hostname or of the platform.
    """
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
    """Return the machines, each with the number and the total limits of its tasks. Makes one query."""
    with connection.cursor() as cursor:
        cursor.execute(
            'SELECT machine_id, count(*), sum("limit"[1])::bigint, sum("limit"[2])::bigint,'
            ' sum("limit"[3])::bigint FROM scheduling_task WHERE machine_id = ANY(%s) GROUP BY machine_id',
            [[machine.id for machine in machines]],
        )
        found = {row[0]: row[1:] for row in cursor.fetchall()}
    return [MachineRow(machine, *found.get(machine.id, (0, 0, 0, 0))) for machine in machines]


def machine_rows_by_id(cell_id: int, ids: Sequence[int]) -> list[MachineRow]:
    """Return the rows of the machines with these ids, without removed machines. Makes two queries."""
    machines = Machine.objects.filter(cell_id=cell_id, id__in=ids).exclude(state=REMOVED)
    return machine_rows(list(machines.order_by("hostname")))


assert (CPU, RAM, DISK) == (0, 1, 2), "machine_rows reads these positions in SQL"
