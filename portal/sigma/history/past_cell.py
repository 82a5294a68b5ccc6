"""The page of a cell at any moment of the past."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from portal.sigma.frame.page import page
from portal.sigma.history.past_cell_view import moment_context, moment_of_revision
from quota.vocabulary.permissions import Principal
from scheduling.access.selectors import cell_named


@page
def moment(request: HttpRequest, principal: Principal, cell: str) -> HttpResponse:
    """Show a cell after the last change before the time in the URL parameter `at`, or at the revision in `revision`.
    Without both, show the present.
    """
    row = cell_named(principal, cell)
    if "revision" in request.GET:
        return moment_of_revision(request, row)
    return render(request, "sigma/moment.html", moment_context(request, principal, row))
