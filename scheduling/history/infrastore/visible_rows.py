"""The rows of the history that the person who asks may see."""

from __future__ import annotations

from dataclasses import dataclass

from quota.models import Tenant
from quota.selectors import tenants_visible
from quota.vocabulary.permissions import Action, CapabilityKind, Principal, Scope, may
from scheduling.models import Cell

# Tables about money and about the whole cell.
_OF_PAYERS = ("metered_hours", "orders", "capacity_samples")


@dataclass(frozen=True, slots=True)
class Visibility:
    """The rows of a cell that a caller may see. `users`: the tenants whose rows are visible; None: all rows. `payers`:
    the tenants whose rows about money are visible; None: all rows.
    """

    users: tuple[str, ...] | None
    payers: tuple[str, ...] | None

    def users_of(self, table: str) -> tuple[str, ...] | None:
        """Return the tenants whose rows of `table` are visible, in PostgreSQL and in the archive; None: all rows."""
        return self.payers if table in _OF_PAYERS else self.users


def visibility(principal: Principal, cell: Cell) -> Visibility:
    """Return the tenants whose rows the principal may see in `cell`, and those whose rows about money it may see."""
    if Scope.READ not in principal.scopes or principal.cell not in (None, cell.name):
        return Visibility((), ())
    if principal.tenant is None and principal.sre:
        return Visibility(None, None)
    names = tuple(tenants_visible(principal).values_list("name", flat=True))
    payers = tuple(name for name in names if may(principal, Action.BILLING_VIEW, tenant=name))
    if principal.tenant is None and principal.has(CapabilityKind.ANY_JOB, cell.name):
        return Visibility(tuple(Tenant.objects.values_list("name", flat=True)), payers)
    users = tuple(name for name in names if may(principal, Action.JOB_VIEW, tenant=name, cell=cell.name))
    return Visibility(users, payers)
