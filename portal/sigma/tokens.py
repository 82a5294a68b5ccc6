"""The user's own tokens: issue one (its secret is shown once), list them, revoke one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from portal.sigma.frame.page import page, page_of, problem_kept, rendered
from quota.models import Token
from quota.selectors import tenant_named, tenants_visible, tokens_of
from quota.tenancy.access import token_issue, token_revoke
from quota.tenancy.token_families import in_families
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal, Scope

PAGE_SIZE = 50
DAYS = [7, 30, 90, 365]


@never_cache
@page
def tokens(request: HttpRequest, principal: Principal) -> HttpResponse:
    """List tokens and issue new ones. Only the response to the POST contains the secret, and nothing caches it."""
    context: dict[str, Any] = {
        "scopes": [scope.value for scope in Scope],
        "days": DAYS,
        "tenants": list(tenants_visible(principal).order_by("name").values_list("name", flat=True)[:200]),
        "now": timezone.now(),
        "given": {"scopes": ["read", "write"], "days": "90"},
    }
    if request.method == "POST":
        post = request.POST
        context["given"] = {
            "name": post.get("name", ""),
            "tenant": post.get("tenant", ""),
            "scopes": post.getlist("scopes"),
            "days": post.get("days", ""),
        }
        with problem_kept(context):
            context["issued"], context["secret"] = token_issue(
                principal=principal,
                user=request.user,  # type: ignore[arg-type]
                name=post.get("name", "")[:100],
                scopes=post.getlist("scopes"),
                tenant=tenant_named(principal, post["tenant"]) if post.get("tenant") else None,
                expires_at=_expiry(post.get("days", "")),
            )
    shown = page_of(request, tokens_of(principal).order_by("-id"), PAGE_SIZE)
    shown.object_list = token_families(shown.object_list)
    context["page_obj"] = shown
    return rendered(request, "sigma/tokens.html", context, status=201 if "issued" in context else 200)


@page
@require_POST
def revoke(request: HttpRequest, principal: Principal, key: str) -> HttpResponse:
    if not tokens_of(principal).filter(key=key).exists():
        raise Rejected("not-found", _("You have no token %s.") % key, status=404)
    token = token_revoke(principal=principal, key=key)
    messages.success(request, _("Token %s was revoked, with all tokens that it issued.") % token.name)
    return redirect("sigma:tokens")


def token_families(rows: Iterable[Token]) -> list[Token]:
    """Return the tokens of a page, each below the token that issued it."""
    return in_families(rows, key=lambda row: row.key, parent=lambda row: row.parent.key if row.parent else None)


def _expiry(days: str) -> dt.datetime | None:
    if not days:
        return None
    if days not in map(str, DAYS):
        raise Rejected("invalid", _("expires: choose from the list"), fields={"days": _("not one of the list")})
    return timezone.now() + dt.timedelta(days=int(days))
