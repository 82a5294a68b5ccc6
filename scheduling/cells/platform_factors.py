"""Counts the CPU of machines again after the factors of their platforms have changed (§5.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from quota.vocabulary.permissions import Principal
from scheduling.journal import journal
from scheduling.journal.journal import JournalEntry
from scheduling.journal.row_events import machine_set_event
from scheduling.journal.sql import execute
from scheduling.machines.facts import Facts
from scheduling.machines.machines import publish_capacity
from scheduling.models import Cell, Machine
from scheduling.models.machines import REMOVED
from scheduling.policy.cpu_factors import factor_of

_REASON = "the CPU factor of its platform was changed"
_STORE = """
    UPDATE scheduling_machine AS m SET capacity[1] = f.cpu, cpu_factor = f.factor, machine_cpu = f.own
    FROM unnest(%s::bigint[], %s::bigint[], %s::int[], %s::bigint[]) AS f(id, cpu, factor, own) WHERE m.id = f.id"""


def machines_normalise(principal: Principal, cell: Cell, factors: Mapping[str, int]) -> int:
    """Give each machine of a cell the factor of its platform, and count its CPU with it. Return the number of machines
    that changed. `factors`: platform -> factor in thousandths. A machine may have less CPU afterwards than its tasks
    ask for; they keep running. The caller has locked the cell's row. Locks the rows of the machines in order of id.
    """
    rows = Machine.objects.filter(cell=cell).exclude(state=REMOVED).order_by("id")
    known = rows.values_list("id", "platform", "cpu_factor")
    changed = [machine for machine, platform, factor in known if factor != factor_of(factors, platform)]
    for first in range(0, len(changed), journal.CHUNK):
        with journal.write(cell.pk, principal) as entry:
            _store(entry, changed[first : first + journal.CHUNK], factors)
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
