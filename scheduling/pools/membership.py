"""Applies the rules of pools and of attributes that SREs set to rows of machines.

Each write of a machine's attributes goes through `Membership`: an SRE sets one, a person moves a machine, a pool
changes its selector, a machine joins, or its Borglet connects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from scheduling.journal.journal import JournalEntry
from scheduling.journal.row_events import machine_set_event
from scheduling.journal.sql import execute
from scheduling.models import Machine, Pool
from scheduling.pools import rules
from scheduling.pools.rules import PoolSelector

_DOCUMENTS = ("attributes", "set_attributes", "hidden_attributes")
COLUMNS = (*_DOCUMENTS, "assigned_pool")
_STORE = """
    UPDATE scheduling_machine AS m SET attributes = f.attributes::jsonb, set_attributes = f.own::jsonb,
        hidden_attributes = f.hidden::jsonb, assigned_pool = f.pool
    FROM unnest(%s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[]) AS f(id, attributes, own, hidden, pool)
    WHERE m.id = f.id"""


class Membership:
    """Decides to which pool each machine of a cell belongs. Makes one query."""

    def __init__(self, cell_id: int) -> None:
        rows = Pool.objects.filter(cell_id=cell_id).exclude(selector="").order_by("name")
        self._selectors = [PoolSelector.parse(*row) for row in rows.values_list("name", "selector")]

    def attributes_of(
        self, machine: Machine, found: Mapping[str, str] | None = None
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Return the attributes of a machine, and the reported values that they hide. `found`: what its Borglet
        reports; None: what it reported last. Does not change the machine.
        """
        own = machine.set_attributes
        if found is None:
            found = rules.reported(machine.attributes, own, machine.hidden_attributes)
        # Selectors do not read what the machine reports, so that its operator cannot put it into a pool.
        facts = {name: getattr(machine, name) for name in rules.FACTS if getattr(machine, name)}
        return rules.merged(found, own, rules.pool_for(machine.assigned_pool, self._selectors, {**facts, **own}))

    def apply(self, machine: Machine, found: Mapping[str, str] | None = None) -> bool:
        """Set the attributes of a machine without saving it. Return whether they changed. `found`: as above."""
        before = machine.attributes
        machine.attributes, machine.hidden_attributes = self.attributes_of(machine, found)
        return bool(before != machine.attributes)


def machines_store(entry: JournalEntry, machines: Sequence[Machine], reason: str = "") -> None:
    """Write changed attributes of machines with one statement, and append an event for each of them. The rows must be
    locked.
    """
    documents = [[msgspec.json.encode(getattr(one, column)).decode() for one in machines] for column in _DOCUMENTS]
    execute(_STORE, [[one.pk for one in machines], *documents, [one.assigned_pool for one in machines]])
    entry.extend(machine_set_event(machine, reason=reason) for machine in machines)
