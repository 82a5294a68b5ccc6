"""The page of the search. The palette in the browser (`static/portal/palette.js`) reads it as JSON."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from portal.search import objects, places
from portal.search.named_things import named_things
from portal.search.query import Query, ResultGroup, arranged, parse
from portal.sigma.frame.page import page
from quota.vocabulary.permissions import Principal
from scheduling.access.selectors import cells_visible


@page
@require_GET
def find(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Return the results for the text in the URL parameter `q`, as a page or, if the request accepts JSON, as JSON."""
    query = parse(request.GET.get("q", ""))
    groups = results(request, principal, query)
    if request.headers.get("Accept", "").startswith("application/json"):
        content = [
            {
                "title": group.title,
                "results": [{"title": one.title, "detail": one.detail, "link": one.link} for one in group.results],
            }
            for group in groups
        ]
        answer = JsonResponse({"text": query.text, "groups": content})
        answer["Vary"] = "Accept, Cookie"
        return answer
    return render(request, "sigma/find.html", {"query": request.GET.get("q", ""), "groups": groups})


def results(request: HttpRequest, principal: Principal, query: Query) -> list[ResultGroup]:
    """Return the groups of results. Without a text, return only pages. Makes at most nine queries. Study cells are
    left out: they have the machines and jobs of other cells."""
    found = [ResultGroup(_("Pages and actions"), places.pages(request, principal, query))]
    if query.text:
        rows = cells_visible(principal).filter(study_of__isnull=True).only("id", "name")
        cells = {cell.id: cell for cell in rows}
        found = [
            ResultGroup(_("Jobs and tasks"), objects.jobs(principal, query)),
            *named_things(principal, cells, query),
            ResultGroup(_("Machines"), objects.machines(principal, cells, query)),
            ResultGroup(_("Cells"), objects.cells_of(cells, query)),
            ResultGroup(_("Tenants"), objects.tenants(principal, query)),
            ResultGroup(_("Orders"), objects.orders(principal, query)),
            ResultGroup(_("Names"), objects.names(principal, cells, query)),
            *found,
            ResultGroup(_("Documentation"), places.documents(query)),
        ]
    return arranged(query.text, found)
