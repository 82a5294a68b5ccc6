"""Code that all pages share: the signed-in principal, rejected requests, filters, pagination and the chosen tenant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from django.contrib.auth.decorators import login_required
from django.core.paginator import Page, Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _

from quota.models import Tenant
from quota.selectors import tenant_named, tenants_visible
from quota.tenancy.access import principal_of_user
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action, Principal, may, require

P = ParamSpec("P")
M = TypeVar("M", bound=Model)
# A longer list is hard to use. Users with more tenants give the name in the URL.
MOST = 200
View = Callable[Concatenate[HttpRequest, Principal, P], HttpResponse]


def page(view: View[P]) -> Callable[Concatenate[HttpRequest, P], HttpResponse]:
    """Wrap a view for signed-in users. It receives their principal. A `Rejected` becomes an error page.

    The page shows times in the time zone of the user's first tenant.
    """

    @login_required
    @wraps(view)
    def inner(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        principal = principal_of_user(request.user, request_id=getattr(request, "borg_request_id", ""))
        cast(Any, request).borg_principal = principal  # the page frame counts this user's unread notices
        try:
            _check_form(request)
            with timezone.override(principal.time_zone):
                return view(request, principal, *args, **kwargs)
        except Rejected as problem:
            return rejection_page(request, problem)

    return inner  # type: ignore[return-value]


def _check_form(request: HttpRequest) -> None:
    """Raise `Rejected` if a form value contains NUL, which PostgreSQL cannot store."""
    for name, values in request.POST.lists():
        if any("\x00" in value for value in values):
            detail = _("contains a NUL character; remove it")
            raise Rejected("invalid", f"{name}: {detail}", fields={name: detail})


def rejection_page(request: HttpRequest, problem: Rejected) -> HttpResponse:
    """Return the page for a rejected request, with the status of `problem`."""
    return rendered(request, "sigma/rejected.html", {"problem": problem})


@contextmanager
def problem_kept(context: dict[str, Any]) -> Iterator[None]:
    """Keep a `Rejected` of the block as `problem` in the context, so that the page can show it beside its form."""
    try:
        yield
    except Rejected as problem:
        context["problem"] = problem


def rendered(request: HttpRequest, template: str, context: dict[str, Any], *, status: int = 200) -> HttpResponse:
    """Render a page. If its context has a `problem`, the answer has the status of the problem."""
    problem = context.get("problem")
    return render(request, template, context, status=problem.status if problem else status)


def narrowed(rows: QuerySet[M], chosen: Mapping[str, str], **lookups: str) -> QuerySet[M]:
    """Return the rows that match the filters of a list. `lookups`: of each filter; an empty filter does not apply."""
    return rows.filter(**{lookup: chosen[name] for name, lookup in lookups.items() if chosen[name]})


def page_of(request: HttpRequest, rows: QuerySet[Any], size: int, *, count: int | None = None) -> Page[Any]:
    """Return the page of `rows` that `?page=` names, or the nearest existing page.

    If the caller passes `count`, the rows are not counted again.
    """
    paginator = Paginator(rows, size)
    if count is not None:
        paginator.count = count
    return paginator.get_page(request.GET.get("page", "1"))


def by_an_sre(request: HttpRequest) -> HttpResponse:
    """Replace the allauth pages that send mail: forgotten password, changed address and sign-up."""
    detail = _("Only an SRE can create an account, change its address or reset its password. Ask an SRE.")
    return rejection_page(request, Rejected("by-an-sre", detail, status=403))


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
