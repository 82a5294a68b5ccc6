"""Code that all pages share: the signed-in principal, the page for rejected requests, and pagination."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, cast

from django.contrib.auth.decorators import login_required
from django.core.paginator import Page, Paginator
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _

from quota.tenancy.access import principal_of_user
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal

P = ParamSpec("P")
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
    return render(request, "sigma/rejected.html", {"problem": problem}, status=problem.status)


def page_of(request: HttpRequest, rows: QuerySet[Any], size: int, *, count: int | None = None) -> Page[Any]:
    """Return the page of `rows` that `?page=` names, or the nearest existing page.

    If the caller passes `count`, the rows are not counted again.
    """
    paginator = Paginator(rows, size)
    if count is not None:
        paginator.count = count
    return paginator.get_page(request.GET.get("page", "1"))
