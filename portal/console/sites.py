"""The console page of sites and clusters, with the machines, tasks and resources of each."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext as _

from portal.parts.empty import Empty
from portal.sigma.reads.sites import Place, site_table
from quota.tenancy.authentication import principal_of_user
from scheduling.cells.rollups import site_rollups


def page(request: HttpRequest, site: Any) -> HttpResponse:
    """Return the page of sites and clusters. `site`: the admin site, which provides the template context of all console
    pages.
    """
    principal = principal_of_user(request.user, request_id=getattr(request, "borg_request_id", ""))

    def link_of(place: Place) -> str:
        return reverse(f"{site.name}:scheduling_{place._meta.model_name}_change", args=[place.pk])

    empty = Empty(_("There are no sites and no cells yet."), _("Create a site, then a cluster, then a cell."))
    context = {
        **site.each_context(request),
        "title": _("Capacity of sites"),
        "table": site_table(site_rollups(principal), link_of, empty=empty),
        "actions": [
            (_("Sites"), reverse(f"{site.name}:scheduling_site_changelist")),
            (_("Clusters"), reverse(f"{site.name}:scheduling_cluster_changelist")),
            (_("Add a site"), reverse(f"{site.name}:scheduling_site_add")),
            (_("Add a cluster"), reverse(f"{site.name}:scheduling_cluster_add")),
        ],
    }
    return TemplateResponse(request, "console/sites.html", context)
