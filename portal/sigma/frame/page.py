"""What all pages share: a signed-in principal, and refusals shown as a page with the status that fits."""

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
    """A view for signed-in people. It gets their principal; a `Rejected` becomes a page that says what to do.

    Times are shown in the time zone of the person's first tenant.
    """

    @login_required
    @wraps(view)
    def inner(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        principal = principal_of_user(request.user, request_id=getattr(request, "borg_request_id", ""))
        cast(Any, request).borg_principal = principal  # whose unread notices the frame around the page counts
        try:
            _check_form(request)
            with timezone.override(principal.time_zone):
                return view(request, principal, *args, **kwargs)
        except Rejected as problem:
            return refused(request, problem)

    return inner  # type: ignore[return-value]


def _check_form(request: HttpRequest) -> None:
    """PostgreSQL has no NUL character, so nothing that a form names or says holds one. Raises `Rejected`."""
    for name, values in request.POST.lists():
        if any("\x00" in value for value in values):
            told = _("holds a NUL character; leave it out")
            raise Rejected("invalid", f"{name}: {told}", fields={name: told})


def refused(request: HttpRequest, problem: Rejected) -> HttpResponse:
    return render(request, "sigma/refused.html", {"problem": problem}, status=problem.status)


def page_of(request: HttpRequest, rows: QuerySet[Any], size: int, *, count: int | None = None) -> Page[Any]:
    """The page of `rows` that `?page=` asks for; the nearest one when there is none of that number.

    `count` spares the counting where a counter is kept anyway.
    """
    paginator = Paginator(rows, size)
    if count is not None:
        paginator.count = count
    return paginator.get_page(request.GET.get("page", "1"))
