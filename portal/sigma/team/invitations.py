"""The page that lists a tenant's invitations, and the pages where an invited person joins the tenant."""

from __future__ import annotations

from typing import Any, cast

from allauth.account.views import SignupView
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from portal.accounts import INVITATION, invited
from portal.sigma.frame.page import by_an_sre, given_in, page, page_of, problem_kept, rejection_page, rendered
from portal.sigma.team.tenants import PAGE_SIZE, ROLES, frame
from quota import clock
from quota.selectors import tenant_named
from quota.tenancy import member_lists
from quota.tenancy.authentication import principal_of_user
from quota.tenancy.invitations import (
    LASTS,
    invitation_accept,
    invitation_mail,
    invitation_of,
    invitation_send,
    invitation_withdraw,
    link_of,
)
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action, Principal, require


@never_cache
@page
def invitation_list(request: HttpRequest, principal: Principal, tenant: str) -> HttpResponse:
    """Show the invitations of a tenant (GET), or send an invitation (POST). The link of an invitation is shown only
    once, in the response to the POST.
    """
    row = tenant_named(principal, tenant)
    require(principal, Action.TENANT_ADMIN, tenant=row.name)
    context: dict[str, Any] = {**frame(principal, row), "roles": ROLES, "lasts": LASTS, "now": clock.now()}
    if request.method == "POST":
        context["given"] = given_in(request.POST, "email", "role")
        with problem_kept(context):
            sent, secret = invitation_send(principal=principal, tenant=row, **context["given"])
            context |= {"sent": sent, "link": link_of(secret), "unsent": invitation_mail(sent, secret)}
    rows = member_lists.invitations_of(principal, row).order_by("-id")
    context["page_obj"] = page_of(request, rows, PAGE_SIZE)
    return rendered(request, "sigma/team/invitations.html", context, status=201 if "sent" in context else 200)


@page
@require_POST
def withdraw(request: HttpRequest, principal: Principal, tenant: str, key: str) -> HttpResponse:
    row = tenant_named(principal, tenant)
    gone = invitation_withdraw(principal=principal, tenant=row, key=key)
    messages.success(request, _("The invitation for %s was withdrawn.") % gone.email)
    return redirect("sigma:invitations", row.name)


@never_cache
def join(request: HttpRequest, secret: str) -> HttpResponse:
    """Show an invitation (GET), or accept it (POST). GET changes nothing, because scanners of mail also open links."""
    try:
        invitation = invitation_of(secret)
        if request.method == "POST" and request.user.is_authenticated:
            principal = principal_of_user(request.user, request_id=getattr(request, "borg_request_id", ""))
            member = invitation_accept(principal=principal, user=request.user, secret=secret)
            request.session.pop(INVITATION, None)
            messages.success(request, _("You are now a member of %s.") % member.tenant.name)
            return redirect("sigma:tenant", member.tenant.name)
    except Rejected as problem:
        return rejection_page(request, problem)
    request.session[INVITATION] = secret
    return render(request, "sigma/team/join.html", {"invitation": invitation, "path": request.path})


class JoinView(SignupView):  # type: ignore[misc]
    """The sign-up page of an invited person. The account and the membership are created in one transaction."""

    template_name = "sigma/signup.html"

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if request.user.is_authenticated or invited(request) is None:
            return by_an_sre(request)
        return cast("HttpResponse", super().dispatch(request, *args, **kwargs))

    def form_valid(self, form: Any) -> HttpResponse:
        try:
            with transaction.atomic():
                return cast("HttpResponse", super().form_valid(form))
        except Rejected as problem:
            return rejection_page(self.request, problem)

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return {**super().get_context_data(**kwargs), "invitation": invited(self.request)}
