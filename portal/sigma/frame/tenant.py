"""Which of one's tenants a page is about."""

from __future__ import annotations

from django.http import HttpRequest

from quota.models import Tenant
from quota.selectors import tenant_named, tenants_visible
from quota.vocabulary.permissions import Action, Principal, may, require

# More than this is a list to search in: such people give the name in the address.
MOST = 200


def tenants_of(principal: Principal, action: Action = Action.TENANT_VIEW) -> list[str]:
    """Names of those that the principal may do `action` for."""
    names = tenants_visible(principal).order_by("name").values_list("name", flat=True)[: 5 * MOST]
    return [name for name in names if may(principal, action, tenant=name)][:MOST]


def chosen_tenant(
    request: HttpRequest, principal: Principal, action: Action = Action.TENANT_VIEW
) -> Tenant | None:
    """`?tenant=`, else the first that the principal may do `action` for; None for those who have none.

    Raises `NotFound` for one that is not theirs, `Forbidden` for one of theirs that they may not do it for.
    """
    if name := request.GET.get("tenant", "").strip():
        tenant = tenant_named(principal, name)
        require(principal, action, tenant=tenant.name)
        return tenant
    names = tenants_of(principal, action)
    return Tenant.objects.get(name=names[0]) if names else None
