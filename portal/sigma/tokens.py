"""The page of the user's own tokens, where the user issues, rotates and revokes tokens, also those that may only
dispatch templates.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from portal.sigma.frame.page import given_in, number_among, page, page_of, problem_kept, rendered, tenants_of
from portal.sigma.frame.token_rotation import overlap_options, rotated, successor_stays
from quota.selectors import tenant_named, tokens_of
from quota.tenancy.tokens import token_issue, token_revoke
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import GENERAL_SCOPES, Principal
from quota.vocabulary.token_order import in_families
from scheduling.job_templates.dispatch_tokens import dispatch_token_issue, full_name, set_dispatches, templates_offered

PAGE_SIZE = 50
DAYS = [7, 30, 90, 365]
# The columns that the list shows. To load whole rows of five tables takes more time than the query.
_SHOWN = (
    *("name", "key", "scopes", "expires_at", "last_used_at", "revoked_at"),
    *("tenant__name", "parent__name", "parent__key", "successor__key"),
)


@never_cache
@page
def tokens(request: HttpRequest, principal: Principal) -> HttpResponse:
    """List the user's tokens (GET), or issue or rotate a token (POST). The secret of a token is shown only once, in the
    response to the POST that issues it.
    """
    limit = settings.BORG_TOKEN_DAYS
    offered = [days for days in DAYS if not limit or days <= limit] or [limit]
    usual = str(90 if 90 in offered else offered[-1])
    context: dict[str, Any] = {
        "scopes": [scope.value for scope in GENERAL_SCOPES],
        "templates": [full_name(row) for row in templates_offered(principal)],
        "days": offered,
        "limit_days": limit,
        "overlaps": overlap_options(),
        "tenants": tenants_of(principal),
        "now": timezone.now(),
        "given": {"scopes": ["read", "write"], "days": usual},
        "dispatch": {"templates": [], "days": usual},
    }
    if request.method == "POST" and request.POST.get("do") == "rotate":
        with problem_kept(context):
            context["issued"], context["secret"] = rotated(principal, request.POST)
    elif request.method == "POST" and request.POST.get("do") == "dispatch":
        post = request.POST
        context["dispatch"] = {**given_in(post, "name", "days"), "templates": post.getlist("templates")}
        with problem_kept(context):
            lasts = dt.timedelta(days=number_among(post, "days", offered))
            context["issued"], context["secret"] = dispatch_token_issue(
                principal=principal,
                user=request.user,  # type: ignore[arg-type]
                name=post.get("name", "")[:100],
                templates=post.getlist("templates"),
                expires_at=timezone.now() + lasts,
            )
    elif request.method == "POST":
        post = request.POST
        context["given"] = {**given_in(post, "name", "tenant", "days"), "scopes": post.getlist("scopes")}
        with problem_kept(context):
            days = number_among(post, "days", offered) if post.get("days") else None
            context["issued"], context["secret"] = token_issue(
                principal=principal,
                user=request.user,  # type: ignore[arg-type]
                name=post.get("name", "")[:100],
                scopes=post.getlist("scopes"),
                tenant=tenant_named(principal, post["tenant"]) if post.get("tenant") else None,
                expires_at=None if days is None else timezone.now() + dt.timedelta(days=days),
            )
    rows = tokens_of(principal).select_related(None).select_related("tenant", "parent", "successor").only(*_SHOWN)
    shown = page_of(request, rows.order_by("-id"), PAGE_SIZE)
    shown.object_list = in_families(
        shown.object_list, key=lambda row: row.key, parent=lambda row: row.parent.key if row.parent else None
    )
    set_dispatches(shown)
    context["page_obj"] = shown
    return rendered(request, "sigma/tokens.html", context, status=201 if "issued" in context else 200)


@page
@require_POST
def revoke(request: HttpRequest, principal: Principal, key: str) -> HttpResponse:
    if not tokens_of(principal).filter(key=key).exists():
        raise NotFound("token", key)
    token = token_revoke(principal=principal, key=key)
    messages.success(request, _("Token %s and all tokens that it issued were revoked.") % token.name)
    if token.successor is not None:
        messages.warning(request, successor_stays(token.successor.key))
    return redirect("sigma:tokens")
