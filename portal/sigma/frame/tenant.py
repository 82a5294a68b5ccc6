"""The choice of the tenant that a page shows."""

from __future__ import annotations

from django.http import HttpRequest

from quota.models import Tenant
from quota.selectors import tenant_named, tenants_visible
from quota.vocabulary.permissions import Action, Principal, may, require

# A longer list is hard to use. Users with more tenants give the name in the URL.
MOST = 200


def tenants_of(principal: Principal, action: Action = Action.TENANT_VIEW) -> list[str]:
    """Return the names of the tenants for which the principal has permission for `action`."""
    names = tenants_visible(principal).order_by("name").values_list("name", flat=True)[: 5 * MOST]
    return [name for name in names if may(principal, action, tenant=name)][:MOST]


def chosen_tenant(request: HttpRequest, principal: Principal, action: Action = Action.TENANT_VIEW) -> Tenant | None:
    """Return the tenant named by `?tenant=`, else the first one that allows `action`, else None.

    Raises `NotFound` if the principal cannot see the tenant, `Forbidden` if they see it but may not do `action`.
    """
    if name := request.GET.get("tenant", "").strip():
        tenant = tenant_named(principal, name)
        require(principal, action, tenant=tenant.name)
        return tenant
    names = tenants_of(principal, action)
    return Tenant.objects.get(name=names[0]) if names else None
