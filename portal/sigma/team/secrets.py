"""Pages of a tenant's secrets. A form sets a value, and no page shows one."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters

from portal.sigma.frame.page import cell_names, given_in, page, page_of, problem_kept, rendered
from portal.sigma.team.tenants import PAGE_SIZE, frame, unknown_action
from quota.models import Tenant
from quota.selectors import tenant_named
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.secrets import secrets, selectors
from scheduling.secrets.grant_rules import MAX_VALUE_BYTES


@sensitive_post_parameters("value")
@never_cache
@page
def secret_list(request: HttpRequest, principal: Principal, tenant: str) -> HttpResponse:
    """List the secrets of a tenant (GET), or set a new one (POST)."""
    row = tenant_named(principal, tenant)
    context = _frame(principal, row)
    if request.method == "POST":
        context["given"] = given_in(request.POST, "name")
        name = context["given"]["name"]
        with problem_kept(context):
            secrets.secret_set(principal=principal, tenant=row, name=name, value=_value(request))
            messages.success(request, _("The secret %s was set. Grant it to the jobs that may use it.") % name)
            return redirect("sigma:secret", row.name, name)
    context["page_obj"] = page_of(request, selectors.secrets_of(principal, row), PAGE_SIZE)
    return rendered(request, "sigma/team/secrets.html", context)


@sensitive_post_parameters("value")
@never_cache
@page
def secret(request: HttpRequest, principal: Principal, tenant: str, secret: str) -> HttpResponse:
    """Show a secret without its value (GET), or change it (POST)."""
    row = tenant_named(principal, tenant)
    context = _frame(principal, row)
    if request.method == "POST":
        context["given"] = given_in(request.POST, "jobs", "cell")
        with problem_kept(context):
            return _change(request, principal, row, secret)
    context["secret"] = found = selectors.secret_shown(principal, row, secret)
    context["jobs"] = selectors.using_jobs(principal, found)
    context["cells"] = cell_names(principal)
    return rendered(request, "sigma/team/secret.html", context)


def _frame(principal: Principal, row: Tenant) -> dict[str, Any]:
    return {
        **frame(principal, row),
        "sets": may(principal, Action.SECRET_WRITE, tenant=row.name),
        "grants": may(principal, Action.SECRET_GRANT, tenant=row.name),
        "most_bytes": MAX_VALUE_BYTES,
    }


def _change(request: HttpRequest, principal: Principal, row: Tenant, name: str) -> HttpResponse:
    """Make the change that the form field `do` names. Raises `Rejected` if the change is unknown, not valid or not
    allowed.
    """
    post = request.POST
    grant = given_in(post, "jobs", "cell")
    match post.get("do"):
        case "set":
            done = secrets.secret_set(principal=principal, tenant=row, name=name, value=_value(request))
            messages.success(request, _("The secret has version %d now.") % done.secret.newest_version)
        case "grant":
            secrets.secret_grant(principal=principal, tenant=row, name=name, **grant)
            messages.success(request, _("The secret was granted to the jobs %s.") % grant["jobs"])
        case "revoke":
            secrets.secret_revoke(principal=principal, tenant=row, name=name, **grant)
            messages.success(request, _("The grant was revoked. Running tasks keep the value that they have."))
        case "delete":
            secrets.secret_delete(principal=principal, tenant=row, name=name, force=post.get("force") == "1")
            messages.success(request, _("The secret %s was deleted.") % name)
            return redirect("sigma:secrets", row.name)
        case _:
            raise unknown_action()
    return redirect("sigma:secret", row.name, name)


def _value(request: HttpRequest) -> bytes:
    """Return the value in the form: the file if there is one, or else the text. Browsers send other line breaks."""
    file = request.FILES.get("file")
    if file is not None:
        return bytes(file.read(MAX_VALUE_BYTES + 1))
    return request.POST.get("value", "").replace("\r\n", "\n").encode()
