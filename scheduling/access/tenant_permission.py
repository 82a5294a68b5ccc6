"""The permission check of all services that change jobs. It does not reveal names of other tenants."""

from __future__ import annotations

from quota.vocabulary.errors import Forbidden, NotFound, invalid
from quota.vocabulary.permissions import Action, CapabilityKind, Principal, may, require


def require_tenant(principal: Principal, action: Action, tenant: str, cell: str) -> None:
    """Check that the caller may do `action` in a tenant and a cell. Raises `NotFound` if the caller may not see the
    tenant, and `Forbidden` if the caller may see the tenant but may not do the action.
    """
    if may(principal, action, tenant=tenant, cell=cell):
        return
    try:
        require(principal, action, tenant=tenant, cell=cell)
    except Forbidden:
        if not knows_tenant(principal, tenant, cell):
            raise NotFound("tenant", tenant) from None
        raise


def knows_tenant(principal: Principal, tenant: str, cell: str) -> bool:
    """Return whether the caller may find out that a tenant exists. The scopes of the caller's token do not matter."""
    if principal.tenant is not None and tenant != principal.tenant:
        return False
    return principal.sre or tenant in principal.roles or principal.has(CapabilityKind.ANY_JOB, cell)


def own_tenant(principal: Principal) -> str:
    """Return the tenant for a request that does not name a tenant: the token's tenant, or the only tenant of the
    caller.

    Raises `Rejected` if the caller has no tenant or more than one.
    """
    if principal.tenant is not None:
        return principal.tenant
    if len(principal.roles) == 1:
        return next(iter(principal.roles))
    known = ", ".join(sorted(principal.roles))
    raise invalid("tenant", f"the tenant is missing; give {f'one of {known}' if known else 'its name'}", "invalid-spec")
