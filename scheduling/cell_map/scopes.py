"""What a caller may see on the map of a cell. The rule is that of the page of a machine.

Every caller sees the machines, their facts, and of all tasks together the number and the sum of the limits.
Reservations, usage and priorities are only those of tasks that the caller may see. The usage of whole machines is only
for SREs, because the difference to the own usage would show that of others.
"""

from __future__ import annotations

from typing import NamedTuple

from quota.selectors import tenants_visible
from quota.vocabulary.permissions import Action, CapabilityKind, Principal, Scope, may
from scheduling.models import Cell


class MapScope(NamedTuple):
    """`tenants`: the ids of the tenants whose tasks the caller may see; None: all tenants. `whole_usage`: whether the
    caller may see the usage of whole machines.
    """

    tenants: frozenset[int] | None
    whole_usage: bool


def scope_of(principal: Principal, cell: Cell) -> MapScope:
    """Return what the caller may see on the map of a cell. Makes at most one query."""
    if may(principal, Action.MACHINE_ADMIN, cell=cell.name):
        return MapScope(None, True)
    if Scope.READ not in principal.scopes:
        return MapScope(frozenset(), False)
    if principal.tenant is None and (principal.sre or principal.has(CapabilityKind.ANY_JOB, cell.name)):
        return MapScope(None, False)
    return MapScope(frozenset(tenants_visible(principal).values_list("id", flat=True)), False)
