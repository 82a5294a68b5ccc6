"""The console page that shows how many names a cell has, and how far its DNS servers are behind (§2.6).

The page is shown before the DNS servers have answered. The browser then sends a second request, which queries them with
a timeout.
"""

from __future__ import annotations

import datetime as dt
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

from naming.api.dns_server_status import TIMEOUT_S, FollowerReport, FollowState, ServerRole, followers, servers
from naming.dns.primary import InvalidPeers
from portal.console.capacity import chosen_cell
from scheduling.models import Cell, Event, Job

MOST_SHOWN = 20
LONG = dt.timedelta(minutes=2)  # a longer delay is shown in minutes and hours
# The text of each state, and the type of its label.
STATES: dict[FollowState, tuple[str | Promise, str]] = {
    FollowState.CAUGHT_UP: (gettext_lazy("caught up"), "success"),
    FollowState.BEHIND: (gettext_lazy("behind"), "warning"),
    FollowState.LOADING: (gettext_lazy("loading names"), "warning"),
    FollowState.STALE: (gettext_lazy("stale"), "danger"),
    FollowState.SILENT: (gettext_lazy("no answer"), "danger"),
    FollowState.NO_ZONE: (gettext_lazy("does not have the zone"), "danger"),
    FollowState.UNKNOWN: (gettext_lazy("not known"), "warning"),
}
ROLES = {ServerRole.RESOLVER: gettext_lazy("resolver"), ServerRole.SECONDARY: gettext_lazy("secondary")}


def page(request: HttpRequest, site: Any) -> HttpResponse:
    """Return the page about the names of a cell. If the URL has the parameter `ask`, also query the DNS servers and
    show their state.
    """
    cell, cells = chosen_cell(request)
    context: dict[str, Any] = {
        **site.each_context(request),
        "title": _("DNS names"),
        "cells": cells,
        "cell": cell,
        "field_classes": " ".join(SELECT_CLASSES),
    }
    if cell is not None:
        context |= {
            "zone": f"{cell.name}.{settings.BORG_ZONE}",
            "ttl_s": settings.BORG_DNS_TTL,
            "counts": _counts_of(cell),
            "failing": _failing(cell),
        }
        if "ask" in request.GET:
            context |= {"asked": timezone.now(), **_asked(cell)}
    return TemplateResponse(request, "console/names.html", context)


def _counts_of(cell: Cell) -> dict[str, int]:
    """Return how many live jobs, services, placed tasks and serving tasks (which can receive requests) the cell has.
    Makes one query.

    `fail_open`: how many jobs have placed tasks, but no serving task.
    """
    service = JSONObject(tenant=F("tenant"), service=F("labels__service"))
    jobs = Job.objects.filter(cell=cell).exclude(state="dead")
    return jobs.aggregate(
        jobs=Count("id"),
        placed=Sum("tasks_running", default=0),
        serving=Sum("tasks_up", default=0),
        fail_open=Count("id", filter=Q(tasks_running__gt=0, tasks_up=0)),
        services=Count(service, distinct=True, filter=Q(kind="job", labels__has_key="service")),
    )


def _failing(cell: Cell) -> dict[str, Any]:
    """Return a table of the jobs that have placed tasks but no serving task. Jobs with the most placed tasks come
    first.
    """
    rows = Job.objects.filter(cell=cell, tasks_running__gt=0, tasks_up=0).exclude(state="dead")
    found = rows.select_related("tenant").order_by("-tasks_running", "id")[:MOST_SHOWN]
    return {
        "headers": [_("job"), _("tenant"), _("placed tasks")],
        "rows": [[_link(cell, job), job.tenant.name, job.tasks_running] for job in found],
    }


def _link(cell: Cell, job: Job) -> SafeString:
    url = reverse("sigma:job", args=[cell.name, job.tenant.name, job.name])
    return format_html('<a class="text-primary-600 dark:text-primary-500" href="{}">{}</a>', url, job.name)


def _asked(cell: Cell) -> dict[str, Any]:
    """Query the DNS servers of the cell. Return what the template needs: a table of the servers, and advice about some
    of them.
    """
    try:
        asked = servers()
    except InvalidPeers as error:
        return {"problem": str(error)}
    found = followers(cell.name, wanted=cell.revision, asked=asked)
    return {
        "table": {
            "headers": [_("server"), _("role"), _("state"), _("zone serial"), _("journal revision"), _("lag")],
            "rows": [_row(cell, one) for one in found],
        },
        "advice": [(str(one.server), text) for one in found if (text := _advice(one))],
        "problem": _problem(found),
    }


def _row(cell: Cell, one: FollowerReport) -> list[Any]:
    text, kind = STATES[one.state]
    label = SafeString(render_to_string("unfold/helpers/label.html", {"text": text, "type": kind}))
    numbers = ("–" if value is None else str(value) for value in (one.serial, one.revision))
    return [str(one.server), ROLES[one.server.role], label, *numbers, _lag(cell, one) or "–"]


def _lag(cell: Cell, one: FollowerReport) -> str:
    """Return a text that says how far a DNS server is behind the journal. Makes one query for a resolver that is
    behind.
    """
    if one.behind:
        return ngettext("%d serial behind", "%d serials behind", one.behind) % one.behind
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


def _advice(one: FollowerReport) -> str:
    """Return a text that says what the state of a DNS server means for clients, and what an SRE should do. Return "" if
    the server is up to date.
    """
    match one.state:
        case FollowState.CAUGHT_UP:
            return ""
        case FollowState.BEHIND if one.server.role is ServerRole.RESOLVER:
            return _("The resolver is a little behind the journal and should catch up within a second.")
        case FollowState.BEHIND:
            return _(
                "The secondary has an older version of the zone. It transfers the new version after its refresh time,"
                " or when it receives a NOTIFY."
            )
        case FollowState.LOADING:
            return _(
                "The resolver has not loaded the names yet. It answers SERVFAIL, so that clients ask another server."
            )
        case FollowState.STALE:
            return _(
                "The resolver could not read the journal for a long time, and answers with old records from its memory."
                " Check PostgreSQL and Redis."
            )
        case FollowState.SILENT:
            text = _(
                "The server did not answer within %(seconds)d s (%(error)s). Check that it runs and that its port is"
                " reachable."
            )
            return text % {"seconds": TIMEOUT_S, "error": one.detail}
        case FollowState.UNKNOWN:
            return _("The secondary has the zone. Only a resolver can report whether this is the newest version.")
        case FollowState.NO_ZONE:
            text = _("The server returned %s. Check that it is configured for the zone and may transfer the zone.")
            return text % (one.detail or _("no records"))


def _problem(found: list[FollowerReport]) -> str:
    if any(one.server.role is ServerRole.RESOLVER and one.serial is not None for one in found):
        return ""
    return _("No resolver reports its revision. The page cannot show whether the secondaries have caught up.")
