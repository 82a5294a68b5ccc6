"""Searches pages, actions and documentation. They are kept in memory, so that a search of them makes no query."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from html import unescape
from pathlib import Path

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import strip_tags
from django.utils.translation import gettext as _

from portal.admin_site import site
from portal.console.navigation import links as console_links
from portal.search.query import Query, Result
from portal.sigma.frame.navigation import SECTIONS
from quota.vocabulary.permissions import Action, Principal, may

MOST = 8


def pages(request: HttpRequest, principal: Principal, query: Query) -> list[Result]:
    """Return the pages and actions whose titles contain all words of the text. Pages of the console are only for
    SREs.
    """
    found = [one for one in _places(request, principal) if _matches(query, one.title)]
    return sorted(found, key=lambda one: not one.title.lower().startswith(query.text))[:MOST]


def _places(request: HttpRequest, principal: Principal) -> Iterator[Result]:
    for section in SECTIONS:
        for link in section.links:
            yield Result(str(link.title), _("page"), reverse(f"sigma:{link.name}"))
    yield Result(_("Settings"), _("page"), reverse("sigma:settings"))
    for title, name in (
        (_("Buy quota"), "shop"),
        (_("Create a token"), "tokens"),
        (_("Run a query"), "sql"),
        (_("Show the machines on a map"), "map"),
    ):
        yield Result(title, _("action"), reverse(f"sigma:{name}"))
    if not (request.user.is_staff and may(principal, Action.PLATFORM_ADMIN)):
        return
    for one in console_links():
        if site.sees(request, one.page):
            yield Result(str(one.title), _("page of the console"), site.link(one.page))
    for title, name in (
        (_("Drain machines"), "scheduling_machine_changelist"),
        (_("Create a cell"), "scheduling_cell_add"),
        (_("Write a maintenance window"), "scheduling_maintenancewindow_add"),
        (_("Create a tenant"), "quota_tenant_add"),
    ):
        yield Result(title, _("action in the console"), reverse(f"admin:{name}"))


def documents(query: Query) -> list[Result]:
    """Return the sections of the documentation whose titles contain all words of the text, short titles first. Without
    a text, return none.
    """
    if not query.text:
        return []
    index = Path(settings.WHITENOISE_ROOT) / "docs" / "search" / "search_index.json"
    try:
        sections = _sections(index, index.stat().st_mtime_ns)
    except (OSError, ValueError):
        return []  # the documentation is not built
    found = [(title, place) for title, place in sections if _matches(query, title)]
    found.sort(key=lambda pair: (not pair[0].lower().startswith(query.text), len(pair[0]), pair[1]))
    return [Result(title, _("documentation: %s") % place, f"/docs/{place}") for title, place in found[:MOST]]


@lru_cache(maxsize=1)
def _sections(index: Path, changed: int) -> list[tuple[str, str]]:
    """Return (title, address) of each section. `changed`: when the file changed, so that a new one is read."""
    content = json.loads(index.read_text())
    # The titles are HTML, which may contain elements such as <code>.
    return [(unescape(strip_tags(str(one["title"]))), str(one["location"])) for one in content["docs"]]


def _matches(query: Query, title: str) -> bool:
    lower = title.lower()
    return all(word in lower for word in query.words)
