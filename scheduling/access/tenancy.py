"""The permission check of every service that changes jobs. It does not leak names of tenants."""

from __future__ import annotations

from quota.vocabulary.errors import Forbidden, NotFound, Rejected
from quota.vocabulary.permissions import Action, CapabilityKind, Principal, may, require


def require_tenant(principal: Principal, action: Action, tenant: str, cell: str) -> None:
    """Check that the caller may do this. Raises `Forbidden`, or `NotFound` for a tenant that it may not see."""
    if may(principal, action, tenant=tenant, cell=cell):
        return
    try:
        require(principal, action, tenant=tenant, cell=cell)
    except Forbidden:
        if not knows_tenant(principal, tenant, cell):
            raise NotFound("tenant", tenant) from None
        raise


def knows_tenant(principal: Principal, tenant: str, cell: str) -> bool:
    """Return whether the caller may know that a tenant exists. The scopes of its token do not matter."""
    if principal.tenant is not None and tenant != principal.tenant:
        return False
    return principal.sre or tenant in principal.roles or principal.has(CapabilityKind.ANY_JOB, cell)


def own_tenant(principal: Principal) -> str:
    """The tenant meant when none is named: the token's, or the only one. Raises `Rejected`."""
    if principal.tenant is not None:
        return principal.tenant
    if len(principal.roles) == 1:
        return next(iter(principal.roles))
    known = ", ".join(sorted(principal.roles))
    raise Rejected(
        "invalid-spec",
        "tenant: it is missing; name the tenant" + (f", one of {known}" if known else ""),
        fields={"tenant": "is missing; name the tenant"},
    )
