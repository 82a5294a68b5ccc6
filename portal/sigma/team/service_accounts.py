"""Pages where owners create, change and remove a tenant's service accounts and their tokens."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from portal.sigma.frame.page import given_in, number_among, page, page_of, problem_kept, rendered
from portal.sigma.frame.token_rotation import overlap_options, rotated, successor_stays
from portal.sigma.team.tenants import PAGE_SIZE, frame, unknown_action
from quota import clock
from quota.models import ServiceAccount, Token
from quota.selectors import tenant_named
from quota.tenancy import member_lists
from quota.tenancy.service_accounts import (
    ROLES,
    SCOPES,
    service_account_create,
    service_account_named,
    service_account_remove,
    service_account_set,
    service_account_token,
)
from quota.tenancy.tokens import token_revoke
from quota.vocabulary.permissions import Action, Principal, require
from scheduling.job_templates.dispatch_tokens import set_dispatches

DAYS = [7, 30, 90, 365]


@page
def account_list(request: HttpRequest, principal: Principal, tenant: str) -> HttpResponse:
    row = tenant_named(principal, tenant)
    context: dict[str, Any] = {**frame(principal, row), "roles": ROLES}
    if request.method == "POST":
        require(principal, Action.TENANT_ADMIN, tenant=row.name)
        context["given"] = given_in(request.POST, "name", "role", "description")
        with problem_kept(context):
            made = service_account_create(principal=principal, tenant=row, **context["given"])
            text = _("The service account %s was created. Issue a token, so that a program can use the account.")
            messages.success(request, text % made.user.get_username())
            return redirect("sigma:service-account", row.name, made.short_name)
    rows = member_lists.service_accounts_of(principal, row).order_by("user__username")
    context["page_obj"] = page_of(request, rows, PAGE_SIZE)
    return rendered(request, "sigma/team/service_accounts.html", context)


@never_cache
@page
def account(request: HttpRequest, principal: Principal, tenant: str, account: str) -> HttpResponse:
    """Show, change or remove a service account, or issue a token. The secret of a token is shown only once, in the
    response to the POST that issues it.
    """
    row = tenant_named(principal, tenant)
    require(principal, Action.TENANT_ADMIN, tenant=row.name)
    found = service_account_named(row, account)
    context: dict[str, Any] = {**frame(principal, row), "roles": ROLES, "scopes": SCOPES, "days": DAYS}
    context["overlaps"] = overlap_options()
    context["given"] = {"scopes": list(SCOPES), "days": "90"}
    if request.method == "POST":
        with problem_kept(context):
            match request.POST.get("do"):
                case "token":
                    context["issued"], context["secret"] = _issue(request, principal, found)
                case "rotate":
                    context["issued"], context["secret"] = rotated(principal, request.POST)
                case _:
                    return _change(request, principal, found)
        if "problem" in context and request.POST.get("do") == "token":
            context["given"] = {**given_in(request.POST, "name", "days"), "scopes": request.POST.getlist("scopes")}
    context["account"] = member_lists.service_accounts_of(principal, row).get(pk=found.pk)
    context["now"] = clock.now()
    shown = page_of(request, member_lists.tokens_of_account(principal, found).order_by("-id"), PAGE_SIZE)
    set_dispatches(shown)
    context["page_obj"] = shown
    status = 201 if "issued" in context else 200
    return rendered(request, "sigma/team/service_account.html", context, status=status)


def _issue(request: HttpRequest, principal: Principal, found: ServiceAccount) -> tuple[Token, str]:
    days = number_among(request.POST, "days", DAYS)
    return service_account_token(
        principal=principal,
        account=found,
        name=request.POST.get("name", "")[:100],
        scopes=request.POST.getlist("scopes"),
        expires_at=clock.now() + dt.timedelta(days=days),
    )


def _change(request: HttpRequest, principal: Principal, found: ServiceAccount) -> HttpResponse:
    """Make the change that the form field `do` names. Raises `Rejected` if the change is unknown, not valid or not
    allowed.
    """
    post, name = request.POST, found.user.get_username()
    match post.get("do"):
        case "change":
            service_account_set(
                principal=principal, account=found, role=post.get("role", ""), description=post.get("description", "")
            )
            messages.success(request, _("The changes were saved."))
        case "disable" | "enable" as verb:
            service_account_set(principal=principal, account=found, enabled=verb == "enable")
            text = (
                _("The service account %s is enabled.")
                if verb == "enable"
                else _("The service account %s is disabled. The portal rejects its tokens.")
            )
            messages.success(request, text % name)
        case "revoke":
            keys = member_lists.tokens_of_account(principal, found).filter(key=post.get("key", "")[:16])
            for key in keys.values_list("key", flat=True):
                token = token_revoke(principal=principal, key=key)
                if token.successor is not None:
                    messages.warning(request, successor_stays(token.successor.key))
            messages.success(request, _("The token was revoked. The portal no longer accepts it."))
        case "remove":
            service_account_remove(principal=principal, account=found)
            messages.success(request, _("The service account %s and its tokens were removed.") % name)
            return redirect("sigma:service-accounts", found.tenant.name)
        case _:
            raise unknown_action()
    return redirect("sigma:service-account", found.tenant.name, found.short_name)
