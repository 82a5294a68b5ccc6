"""The console's page of a cell's names, their DNS servers, and how far these are behind (§2.6).

The page loads at once. A second request queries the servers, with a bound on its time.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db.models import Count, F, Q, Sum
from django.db.models.functions import JSONObject
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.timesince import timesince
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from unfold.widgets import SELECT_CLASSES

from naming.api.survey import TIMEOUT_S, FollowerReport, FollowState, ServerRole, followers, servers
from naming.dns.primary import InvalidPeers
from portal.console.capacity import chosen_cell
from scheduling.models import Cell, Event, Job

MOST_SHOWN = 20
LONG = dt.timedelta(minutes=2)  # longer delays are shown in minutes and hours
# The text of each state, and the kind of its label.
STATES: dict[FollowState, tuple[str | Promise, str]] = {
    FollowState.CAUGHT_UP: (gettext_lazy("caught up"), "success"),
    FollowState.BEHIND: (gettext_lazy("behind"), "warning"),
    FollowState.LOADING: (gettext_lazy("loading"), "warning"),
    FollowState.STALE: (gettext_lazy("stale"), "danger"),
    FollowState.SILENT: (gettext_lazy("silent"), "danger"),
    FollowState.NO_ZONE: (gettext_lazy("does not have the zone"), "danger"),
    FollowState.UNKNOWN: (gettext_lazy("not known"), "warning"),
}
ROLES = {ServerRole.RESOLVER: gettext_lazy("resolver"), ServerRole.SECONDARY: gettext_lazy("secondary")}


@dataclass(frozen=True, slots=True)
class ServerRow:
    """A server as a row of the table. `kind`: of the label; `lag`: its delay, as text."""

    role: str
    address: str
    state: str
    kind: str
    serial: int | None
    revision: int | None
    lag: str
    means: str


@dataclass(frozen=True, slots=True)
class ServerCounts:
    jobs: int
    services: int
    placed: int
    serving: int
    fail_open: int


def page(request: HttpRequest, site: Any) -> HttpResponse:
    """Show the page. With `ask`, query the servers too."""
    cell, cells = chosen_cell(request)
    context: dict[str, Any] = {
        **site.each_context(request),
        "title": _("Names"),
        "cells": cells,
        "cell": cell,
        "field_classes": " ".join(SELECT_CLASSES),
    }
    if cell is not None:
        context |= {
            "zone": f"{cell.name}.{settings.BORG_ZONE}",
            "ttl_s": settings.BORG_DNS_TTL,
            "counts": counts_of(cell),
            "failing": _failing(cell),
        }
        if "ask" in request.GET:
            context |= {"asked": timezone.now(), **_asked(cell)}
    return TemplateResponse(request, "console/names.html", context)


def counts_of(cell: Cell) -> ServerCounts:
    """Return the counts of live jobs, the only jobs that have names. One query."""
    failing = Q(tasks_running__gt=0, tasks_up=0)
    service = JSONObject(tenant=F("tenant"), service=F("labels__service"))
    row = (
        Job.objects.filter(cell=cell)
        .exclude(state="dead")
        .aggregate(
            jobs=Count("id"),
            placed=Sum("tasks_running"),
            serving=Sum("tasks_up"),
            fail_open=Count("id", filter=failing),
            services=Count(service, distinct=True, filter=Q(kind="job", labels__has_key="service")),
        )
    )
    return ServerCounts(**{name: value or 0 for name, value in row.items()})


def _failing(cell: Cell) -> dict[str, Any]:
    """Return a table of the jobs that have placed tasks but no serving task, the largest first."""
    rows = Job.objects.filter(cell=cell, tasks_running__gt=0, tasks_up=0).exclude(state="dead")
    found = rows.select_related("tenant").order_by("-tasks_running", "id")[:MOST_SHOWN]
    return {
        "headers": [_("job"), _("tenant"), _("placed tasks")],
        "rows": [[_link(cell, job), job.tenant.name, job.tasks_running] for job in found],
    }


def _link(cell: Cell, job: Job) -> SafeString:
    url = reverse("sigma:job", args=[cell.name, job.tenant.name, job.name])
    return format_html('<a class="text-primary-600 dark:text-primary-500" href="{}">{}</a>', url, job.name)


def _table(followers: list[ServerRow]) -> dict[str, Any]:
    return {
        "headers": [_("server"), _("role"), _("state"), _("serial"), _("revision"), _("behind by")],
        "rows": [
            [one.address, one.role, _label(one), _number(one.serial), _number(one.revision), one.lag or "–"]
            for one in followers
        ],
    }


def _number(value: int | None) -> str:
    return "–" if value is None else str(value)


def _label(one: ServerRow) -> SafeString:
    return SafeString(render_to_string("unfold/helpers/label.html", {"text": one.state, "type": one.kind}))


def _asked(cell: Cell) -> dict[str, Any]:
    try:
        asked = servers()
    except InvalidPeers as error:
        return {"problem": str(error), "followers": []}
    found = followers(cell.name, wanted=cell.revision, asked=asked)
    shown = [_shown(cell, one) for one in found]
    return {"followers": shown, "table": _table(shown), "problem": _problem(found)}


def _shown(cell: Cell, one: FollowerReport) -> ServerRow:
    role, (state, kind) = str(ROLES[one.server.role]), STATES[one.state]
    lag, means = _lag(cell, one), _means(one)
    return ServerRow(role, str(one.server), str(state), kind, one.serial, one.revision, lag, means)


def _lag(cell: Cell, one: FollowerReport) -> str:
    """Return how far a server is behind, as text. One query for a resolver that is behind."""
    if one.behind:
        return ngettext("%d in the serial", "%d in the serial", one.behind) % one.behind
    if one.revision is None or one.revision >= cell.revision:
        return ""
    behind = cell.revision - one.revision
    text = ngettext("%d revision", "%d revisions", behind) % behind
    first = Event.objects.filter(cell_id=cell.pk, revision__gt=one.revision).order_by("revision", "seq").first()
    if first is None:
        return text
    since = timezone.now() - first.time
    for_long = timesince(first.time) if since > LONG else _("%.1f s") % since.total_seconds()
    return f"{text}, {for_long}"


def _means(one: FollowerReport) -> str:
    """Return what a state means for clients, and what to do."""
    match one.state:
        case FollowState.CAUGHT_UP:
            return ""
        case FollowState.BEHIND if one.server.role is ServerRole.RESOLVER:
            return _("It follows the journal and should catch up within a second.")
        case FollowState.BEHIND:
            return _("It has an older zone. It transfers the zone within its refresh time, or after a NOTIFY.")
        case FollowState.LOADING:
            return _("It has not read the cell's names yet and answers SERVFAIL, so that clients ask another server.")
        case FollowState.STALE:
            return _(
                "It has not reached the journal for a long time and answers from memory. Check PostgreSQL and Redis."
            )
        case FollowState.SILENT:
            text = _("No answer within %(seconds)d s (%(error)s). Check that it runs and that its port is reachable.")
            return text % {"seconds": TIMEOUT_S, "error": one.detail}
        case FollowState.UNKNOWN:
            return _("It has a zone. Only a resolver can report whether it is the newest one.")
        case FollowState.NO_ZONE:
            return _("It answers %(rcode)s. Check that it is configured for the zone and may transfer it.") % {
                "rcode": one.detail or _("nothing")
            }


def _problem(found: list[FollowerReport]) -> str:
    if any(one.server.role is ServerRole.RESOLVER and one.serial is not None for one in found):
        return ""
    return _("No resolver reports its revision, so it is unknown whether the secondaries have caught up.")
