"""The console page with links to all tables and pages, grouped by task."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from portal.console.navigation import GROUPS


def page(request: HttpRequest, site: Any) -> HttpResponse:
    """Return the page with all links. `site`: the admin site, which provides the template context of all pages."""
    groups = [
        (group.title, [(link.title, site.link(link.page)) for link in group.links if site.sees(request, link.page)])
        for group in GROUPS
    ]
    context = {**site.each_context(request), "title": _("All tables"), "groups": groups}
    return TemplateResponse(request, "console/tables.html", context)
