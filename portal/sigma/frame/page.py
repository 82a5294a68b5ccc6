"""Helper functions for all pages: sign-in, rejected requests, form and URL fields, pagination, the chosen tenant."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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

from portal.parts.paging import Paging, by_number
from portal.sigma.frame.time_zone import zone_for
from quota.models import Tenant
from quota.paging import MergedRows
from quota.selectors import tenant_named, tenants_visible
from quota.tenancy.authentication import principal_of_user
from quota.vocabulary.errors import Rejected, invalid
from quota.vocabulary.permissions import Action, Principal, may, require
from scheduling.access.selectors import cells_visible

P = ParamSpec("P")
M = TypeVar("M", bound=Model)
# The most names that a list of choices offers. Users with more tenants or cells write the name in the URL.
MOST = 200
View = Callable[Concatenate[HttpRequest, Principal, P], HttpResponse]


def page(view: View[P]) -> Callable[Concatenate[HttpRequest, P], HttpResponse]:
    """Wrap a view so that it requires a signed-in user and receives the user's principal.

    If the view raises `Rejected`, the user gets an error page. The view runs in the time zone of the user
    (`zone_for`).
    """

    @login_required
    @wraps(view)
    def inner(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        principal = principal_of_user(request.user, request_id=getattr(request, "borg_request_id", ""))
        cast(Any, request).borg_principal = principal  # the page frame counts this user's unread notices
        try:
            check_form(request)
            with timezone.override(zone_for(request, principal)):
                return view(request, principal, *args, **kwargs)
        except Rejected as problem:
            return rejection_page(request, problem)

    return inner  # type: ignore[return-value]


def check_form(request: HttpRequest) -> None:
    """Raise `Rejected` if a form value contains the character NUL, which PostgreSQL cannot store."""
    for name, values in request.POST.lists():
        if any("\x00" in value for value in values):
            raise invalid(name, _("the value contains a NUL character; remove it"))


def rejection_page(request: HttpRequest, problem: Rejected) -> HttpResponse:
    """Return the error page of a rejected request. Its HTTP status is the status of `problem`."""
    return rendered(request, "sigma/rejected.html", {"problem": problem})


@contextmanager
def problem_kept(context: dict[str, Any]) -> Iterator[None]:
    """If the `with` block raises `Rejected`, store the error in `context["problem"]`, so that the page shows it."""
    try:
        yield
    except Rejected as problem:
        context["problem"] = problem


def rendered(request: HttpRequest, template: str, context: dict[str, Any], *, status: int = 200) -> HttpResponse:
    """Render a page. If the context has a `problem`, the response has the HTTP status of that problem."""
    problem = context.get("problem")
    return render(request, template, context, status=problem.status if problem else status)


def narrowed(rows: QuerySet[M], chosen: Mapping[str, str], **lookups: str) -> QuerySet[M]:
    """Return the rows that match the filters in `chosen`. Empty filters are ignored.

    `lookups`: for each filter, Django's field lookup (such as `name__contains`), by the name of the filter.
    """
    return rows.filter(**{lookup: chosen[name] for name, lookup in lookups.items() if chosen[name]})


def page_of(
    request: HttpRequest, rows: QuerySet[Any] | MergedRows, size: int, *, count: int | None = None
) -> Page[Any]:
    """Return the page of `rows` whose number is in the URL parameter `page`. If there is no such page, return the first
    or the last page. `size`: rows per page. `count`: the number of rows, if known.
    """
    paginator = Paginator(rows, size)  # type: ignore[arg-type]  # it only counts and slices
    if count is not None:
        paginator.count = count
    return paginator.get_page(request.GET.get("page", "1"))


def paging_of(found: Page[Any]) -> Paging:
    """Return the links to the pages before and after `found`, which is one page of a list, as `page_of` returns it."""
    return by_number(found.number, found.paginator.num_pages, found.paginator.count)


def given_in(fields: Mapping[str, str], *names: str) -> dict[str, str]:
    """Return the texts of the form or URL fields `names`, without spaces around them. The text is "" if a field is
    missing.
    """
    return {name: fields.get(name, "").strip() for name in names}


def whole_number(text: str) -> int | None:
    """Return `text` as a number. Return None if it contains other characters than ASCII digits or is too long."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def number_among(fields: Mapping[str, str], name: str, choices: Sequence[int]) -> int:
    """Return the number in the field `name`. Raises `Rejected` if it is not one of `choices`."""
    number = whole_number(fields.get(name, ""))
    if number is None or number not in choices:
        raise invalid(name, _("the value is not in the list; choose one of %s") % ", ".join(map(str, choices)))
    return number


def by_an_sre(request: HttpRequest) -> HttpResponse:
    """Reject a request to an account page that would change an address, link an account, or give a password to an
    account of the identity provider. In this portal, only SREs make these changes.
    """
    detail = _("Only an SRE can create an account, change its e-mail address, or give it a first password. Ask an SRE.")
    return rejection_page(request, Rejected("by-an-sre", detail, status=403))


def cell_names(principal: Principal) -> list[str]:
    """Return the names of the cells that the principal may see, sorted. The list has at most `MOST` names."""
    return list(cells_visible(principal).order_by("name").values_list("name", flat=True)[:MOST])


def tenants_of(principal: Principal, action: Action = Action.TENANT_VIEW) -> list[str]:
    """Return the names of the tenants for which the principal may do `action`. The list has at most `MOST` names."""
    names = tenants_visible(principal).order_by("name").values_list("name", flat=True)[: 5 * MOST]
    return [name for name in names if may(principal, action, tenant=name)][:MOST]


def chosen_tenant(request: HttpRequest, principal: Principal, action: Action = Action.TENANT_VIEW) -> Tenant | None:
    """Return the tenant in the URL parameter `tenant`. Without this parameter, return the first tenant for which the
    principal may do `action`, or None if there is none.

    Raises `NotFound` if the principal may not see the tenant, and `Forbidden` if the principal may not do `action`.
    """
    if name := request.GET.get("tenant", "").strip():
        tenant = tenant_named(principal, name)
        require(principal, action, tenant=tenant.name)
        return tenant
    names = tenants_of(principal, action)
    return Tenant.objects.get(name=names[0]) if names else None
