"""The list of the user's tenants, and the page of one tenant with its settings, teams and members."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from portal.sigma.frame.page import given_in, page, page_of, rendered
from quota.models import Tenant
from quota.selectors import tenant_named, tenants_visible
from quota.tenancy import member_lists
from quota.tenancy.members import member_leave, member_named, membership_set
from quota.tenancy.tenants import tenant_create, tenant_set, time_zones
from quota.vocabulary.errors import Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, Role, may, require

PAGE_SIZE = 50
ROLES = tuple(role.value for role in Role)


@page
def tenant_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    """List the tenants that the user may see, with the user's role in each tenant. SREs see all tenants."""
    rows = page_of(request, tenants_visible(principal).select_related("parent").order_by("name"), PAGE_SIZE)
    listed = [(row, *_roles(principal, row.name)) for row in rows]
    return render(request, "sigma/team/tenants.html", {"page_obj": rows, "listed": listed})


@page
def tenant(request: HttpRequest, principal: Principal, tenant: str) -> HttpResponse:
    row = tenant_named(principal, tenant)
    problem = None
    if request.method == "POST":
        require(principal, Action.TENANT_ADMIN, tenant=row.name)
        try:
            return _change(request, principal, row)
        except Rejected as rejection:
            problem = rejection
            row = tenant_named(principal, tenant)
    context = {
        **frame(principal, row),
        "problem": problem,
        "page_obj": page_of(request, member_lists.members_of(principal, row).order_by("user__username"), PAGE_SIZE),
        "teams": list(row.teams.order_by("name")[:200]),
        "roles": ROLES,
        "zones": time_zones(),
        "task_apis": ["none", "read", "submit"],
        "me": principal.user_id,
    }
    return rendered(request, "sigma/team/tenant.html", context)


@page
@require_POST
def leave(request: HttpRequest, principal: Principal, tenant: str) -> HttpResponse:
    row = tenant_named(principal, tenant)
    member_leave(principal=principal, tenant=row, user=request.user)  # type: ignore[arg-type]
    messages.success(request, _("You have left %s.") % row.name)
    return redirect("sigma:tenants")


def frame(principal: Principal, row: Tenant) -> dict[str, Any]:
    """Return the template context of all pages of a tenant: the tenant, the user's role and the user's permissions."""
    own, inherited = _roles(principal, row.name)
    return {
        "tenant": row,
        "parent": row.parent,
        "role": own,
        "inherited": inherited,
        "administers": may(principal, Action.TENANT_ADMIN, tenant=row.name),
    }


def unknown_action() -> Rejected:
    """Return the rejection of a form whose field `do` has an unknown value."""
    return invalid("do", _("the page sent an action that the portal does not have; reload the page and try again"))


def _roles(principal: Principal, name: str) -> tuple[str, str]:
    """Return the user's own role in a tenant and the role inherited from the organisation. A missing role is ""."""
    inherited = principal.inherited.get(name)
    role = principal.roles.get(name)
    return ("" if role is None or role == inherited else role.value), inherited.value if inherited else ""


def _change(request: HttpRequest, principal: Principal, row: Tenant) -> HttpResponse:
    """Make the change that the form field `do` names. Raises `Rejected` if the change is unknown, not valid or not
    allowed.
    """
    post = request.POST
    match post.get("do"):
        case "settings":
            settings: dict[str, Any] = {**given_in(post, "title", "contact", "time_zone", "task_api")}
            tenant_set(principal=principal, tenant=row, **settings)
            messages.success(request, _("The settings were saved."))
        case "team":
            made = tenant_create(principal=principal, parent=row.name, **given_in(post, "name", "title"))
            messages.success(request, _("Team %s was created.") % made.name)
        case "role" | "remove":
            username = post.get("user", "")
            role = post.get("role", "") if post["do"] == "role" else None
            user = member_named(principal, row, username, joining=role is not None)
            membership_set(principal=principal, tenant=row, user=user, role=role)
            text = _("%(user)s now has the role %(role)s.") if role else _("%(user)s is no longer a member.")
            messages.success(request, text % {"user": username, "role": role})
        case _:
            raise unknown_action()
    return redirect("sigma:tenant", row.name)
