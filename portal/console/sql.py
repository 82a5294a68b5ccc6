"""The console page for SQL queries over the history of a cell. It differs from the same page in the portal only in its
header and menu.
"""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from portal.sigma.frame.page import check_form
from portal.sigma.sql.pages import Place, answer, delete_saved
from quota.tenancy.authentication import principal_of_user
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal

_HOME, _DELETE = "admin:sql", "admin:sql-delete"


def page(request: HttpRequest, site: Any) -> HttpResponse:
    """Return the page for SQL queries. `site`: the admin site, which provides the template context of all console
    pages.
    """
    context = {**site.each_context(request), "title": _("SQL over the history")}
    try:
        check_form(request)
        return answer(request, _principal(request), Place("console/sql.html", _HOME, _DELETE, context))
    except Rejected as problem:
        return _rejected(request, problem)


@require_POST
def delete(request: HttpRequest, number: int) -> HttpResponse:
    """Delete a saved query of the user."""
    try:
        return delete_saved(request, _principal(request), number, Place(home=_HOME))
    except Rejected as problem:
        return _rejected(request, problem)


def _principal(request: HttpRequest) -> Principal:
    return principal_of_user(request.user, request_id=getattr(request, "borg_request_id", ""))


def _rejected(request: HttpRequest, problem: Rejected) -> HttpResponse:
    """Redirect to the empty form, and show `problem` there as a message."""
    messages.error(request, problem.detail)
    return redirect(_HOME)
