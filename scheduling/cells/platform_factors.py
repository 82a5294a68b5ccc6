"""Recalculates the normalised CPU of machines after the factors of their platforms have changed (§5.4), and reads what
the factors do to the CPU of a cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from quota.vocabulary.permissions import Principal
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.journal.row_events import machine_set_event
from scheduling.journal.sql import execute, query
from scheduling.machines.facts import Facts
from scheduling.machines.machines import publish_capacity
from scheduling.models import Cell, Machine
from scheduling.models.machines import REMOVED
from scheduling.policy import cell_settings
from scheduling.policy.cpu_factors import factor_of, parse_cpu_factors

_REASON = "the CPU factor of its platform was changed"
_STORE = """
    UPDATE scheduling_machine AS m SET capacity[1] = f.cpu, cpu_factor = f.factor, machine_cpu = f.own
    FROM unnest(%s::bigint[], %s::bigint[], %s::int[], %s::bigint[]) AS f(id, cpu, factor, own) WHERE m.id = f.id"""


@dataclass(frozen=True, slots=True)
class PlatformCpu:
    """The machines of a cell with the same platform and factor. `cpu_factor`: in thousandths. `machine_cpu`, `cpu`:
    their CPU in milli-cores of the machines, and in normalised ones.
    """

    platform: str
    cpu_factor: int
    machines: int = 0
    machine_cpu: int = 0
    cpu: int = 0


def platforms_of(cell: Cell) -> list[PlatformCpu]:
    """Return the platforms of the machines of a cell, by name, and those platforms of its factors that no machine has.
    Makes one query.
    """
    rows = query(
        "SELECT platform, cpu_factor, count(*), sum(coalesce(machine_cpu, capacity[1]))::bigint,"
        " sum(capacity[1])::bigint FROM scheduling_machine WHERE cell_id = %s AND state <> %s GROUP BY 1, 2",
        [cell.pk, REMOVED],
    )
    found = [PlatformCpu(*row) for row in rows]
    there = {one.platform for one in found}
    factors = parse_cpu_factors(cell_settings.load(cell.settings).cpu_factors)
    found += [PlatformCpu(platform, factor) for platform, factor in factors.items() if platform not in there]
    return sorted(found, key=lambda one: (one.platform, one.cpu_factor))


def machines_normalise(principal: Principal, cell: Cell, factors: Mapping[str, int]) -> int:
    """Give each machine of a cell the factor of its platform, and recalculate its CPU. Return the number of machines
    that changed; those that have the right factor are left out. `factors`: platform -> factor in thousandths.

    A machine may have less CPU afterwards than its tasks ask for; they keep running. The caller's transaction has
    locked the cell's row, and keeps it locked until all machines are written. Locks the rows of the machines in order
    of id.
    """
    rows = Machine.objects.filter(cell=cell).exclude(state=REMOVED).order_by("id")
    known = rows.values_list("id", "platform", "cpu_factor")
    changed = [machine for machine, platform, factor in known if factor != factor_of(factors, platform)]
    for first in range(0, len(changed), journal.CHUNK):
        with journal.write(cell.pk, principal) as entry:
            _store(entry, changed[first : first + journal.CHUNK], factors)
            if first + journal.CHUNK >= len(changed):
                publish_capacity(entry)
    return len(changed)


def _store(entry: JournalEntry, ids: Sequence[int], factors: Mapping[str, int]) -> None:
    machines = Machine.objects.select_for_update().filter(pk__in=ids).defer("packages", "quarantined").order_by("id")
    rows = list(machines)
    for row in rows:
        columns = Facts.of(row).columns(factor_of(factors, row.platform))
        row.capacity, row.cpu_factor, row.machine_cpu = (
            columns[name] for name in ("capacity", "cpu_factor", "machine_cpu")
        )
    execute(
        _STORE,
        [
            [row.pk for row in rows],
            [row.capacity[0] for row in rows],
            [row.cpu_factor for row in rows],
            [row.machine_cpu for row in rows],
        ],
    )
    entry.extend(machine_set_event(row, reason=_REASON) for row in rows)
