"""What a caller may see on the map of a cell. The rule is that of the page of a machine.

Every caller sees the machines, their facts, and of all tasks together the number and the sum of the limits.
Reservations, usage and priorities are only those of tasks that the caller may see. The usage of whole machines is only
for SREs, because the difference to the own usage would show that of others.
"""

from __future__ import annotations

from typing import NamedTuple

from quota.selectors import tenants_visible
from quota.vocabulary.errors import invalid
from quota.vocabulary.permissions import Action, CapabilityKind, Principal, Scope, may
from scheduling.access.selectors import job_named
from scheduling.models import Cell, Job


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


def shown_job(principal: Principal, cell: Cell, name: str) -> Job | None:
    """Return the job of the name `tenant/job`, or None if `name` is empty. Raises `Rejected` for another name, and
    `NotFound` if the job does not exist or the caller may not see it.
    """
    if not name:
        return None
    tenant, separator, job = name.partition("/")
    if not separator:
        raise invalid("job", f"{name[:80]!r} is not the name of a job; write it as tenant/name")
    return job_named(principal, cell, tenant, job)
