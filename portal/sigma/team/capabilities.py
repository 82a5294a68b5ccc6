"""The page that lists the capabilities of a tenant's members. Members can request capabilities from the SREs there."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.sigma.frame.page import cell_names, number_among, page, page_of, problem_kept, rendered
from portal.sigma.team.tenants import PAGE_SIZE, frame
from quota import clock
from quota.models import Tenant
from quota.selectors import tenant_named
from quota.tenancy import member_lists
from quota.tenancy.capabilities import capability_ask
from quota.vocabulary.permissions import Action, CapabilityKind, Principal, may, require

DAYS = [1, 7, 30, 90, 365]
ABOUT = {
    CapabilityKind.ANY_JOB: gettext_lazy("The user may change and kill all jobs of the cell, of every tenant."),
    CapabilityKind.NO_RECLAMATION: gettext_lazy("The user's job files may turn off resource reclamation."),
    CapabilityKind.RESERVE_CORES: gettext_lazy("The user's job files may reserve whole CPU cores for a task."),
    CapabilityKind.SHELL: gettext_lazy("The user may open shells in tasks of jobs that the user's role may change."),
}


@page
def capability_list(request: HttpRequest, principal: Principal, tenant: str) -> HttpResponse:
    row = tenant_named(principal, tenant)
    owner = may(principal, Action.TENANT_ADMIN, tenant=row.name)
    context: dict[str, Any] = {**frame(principal, row), "given": {"days": "30"}}
    if request.method == "POST":
        require(principal, Action.TENANT_SELF, tenant=row.name)
        with problem_kept(context):
            return _ask(request, principal, row)
        context["given"] = request.POST.dict()
    members = member_lists.members_of(principal, row)
    held = member_lists.capabilities_visible(principal).filter(user__in=members.values("user_id"))
    asked = member_lists.requests_visible(principal).filter(tenant=row).order_by("-id")
    context |= {
        "kinds": [(kind.value, ABOUT[kind]) for kind in CapabilityKind],
        "cells": cell_names(principal),
        "days": DAYS,
        "users": list(members.order_by("user__username").values_list("user__username", flat=True)[:500])
        if owner
        else [principal.name],
        "me": principal.name,
        "now": clock.now(),
        "held": list(held.order_by("user__username", "kind", "id")[:200]),
        "page_obj": page_of(request, asked, PAGE_SIZE),
    }
    return rendered(request, "sigma/team/capabilities.html", context)


def _ask(request: HttpRequest, principal: Principal, row: Tenant) -> HttpResponse:
    """Send the SREs the request for a capability that the form describes. Raises `Rejected` if the form is not valid,
    or if the user may not send the request.
    """
    post = request.POST
    days = number_among(post, "days", DAYS)
    capability_ask(
        principal=principal,
        tenant=row,
        username=post.get("user", principal.name),
        kind=post.get("kind", ""),
        cell=post.get("cell", ""),
        reason=post.get("reason", ""),
        until=clock.now() + dt.timedelta(days=days),
    )
    messages.success(request, _("The request was sent to the SREs. You will get a notice when an SRE has decided."))
    return redirect("sigma:capabilities", row.name)
