"""The console page that shows the state of a cell at any moment of the past."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from unfold.widgets import SELECT_CLASSES

from portal.console.capacity import chosen_cell
from portal.sigma.frame.time_zone import zone_for
from portal.sigma.history.past_cell_view import moment_context, moment_of_revision
from quota.tenancy.authentication import principal_of_user
from quota.vocabulary.errors import Rejected


def page(request: HttpRequest, site: Any) -> HttpResponse:
    """Return the page of a cell at a past moment. If the state at that moment cannot be shown, the page says why.
    `site`: the admin site, which provides the template context of all console pages.
    """
    cell, cells = chosen_cell(request)
    principal = principal_of_user(request.user, request_id=getattr(request, "borg_request_id", ""))
    context: dict[str, Any] = {
        **site.each_context(request),
        "title": _("Cell at a past moment"),
        "cell": cell,
        "cells": cells,
        "field_classes": " ".join(SELECT_CLASSES),
    }
    status = 200
    if cell is not None:
        try:
            if "revision" in request.GET:
                return moment_of_revision(request, cell)
            with timezone.override(zone_for(request, principal)):
                context |= moment_context(request, principal, cell)
                return TemplateResponse(request, "console/moments.html", context).render()
        except Rejected as problem:
            context["problem"], status = problem, problem.status
    return TemplateResponse(request, "console/moments.html", context, status=status)
