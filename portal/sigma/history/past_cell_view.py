"""The content of the pages that show a cell at a past moment, in Sigma (the pages for tenants) and in the console."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.parts.filters import Filters, choice, search
from portal.parts.moments import moment_of
from portal.sigma.frame.page import given_in, whole_number
from portal.sigma.history import past_cell_tables
from portal.sigma.history.event_tables import change_table
from quota.vocabulary.errors import invalid
from quota.vocabulary.permissions import Principal
from scheduling.core.vocabulary.states import MachineStatus, TaskState
from scheduling.history.archive.reading import ArchivedEvents
from scheduling.history.moments.asking import past_moment
from scheduling.history.moments.messages import ListFilter
from scheduling.models import Cell, Event

MACHINE_STATES = [status.value for status in MachineStatus]
TASK_STATES = [state.value for state in TaskState]
# The shortest period that the slider covers.
_SHORTEST = dt.timedelta(minutes=1)
# The URL parameters of the lists. Steps in time keep them.
_PARAMETERS = ("cell", "machine", "machine_state", "job", "task_state")


def moment_context(request: HttpRequest, principal: Principal, cell: Cell) -> dict[str, Any]:
    """Return the template context of a page that shows a cell at the moment in the URL parameter `at`. Raises
    `Rejected` if the state cannot be rebuilt.
    """
    given = given_in(request.GET, "at", *_PARAMETERS)
    given["machine_state"] = given["machine_state"] if given["machine_state"] in MACHINE_STATES else ""
    given["task_state"] = given["task_state"] if given["task_state"] in TASK_STATES else ""
    zone, until = timezone.get_current_timezone(), max(timezone.now(), cell.created_at + _SHORTEST)
    chosen = moment_of(given, since=cell.created_at, until=until, zone=zone)
    past = past_moment(
        principal=principal,
        cell=cell,
        time=None if chosen.live else chosen.at,
        machines=ListFilter(given["machine_state"], given["machine"], _page(request, "page")),
        tasks=ListFilter(given["task_state"], given["job"], _page(request, "tasks_page")),
    )
    picture = past.picture
    neighbours = [time for time in (past.before, past.after) if time is not None]
    kept = {name: given[name] for name in _PARAMETERS if given[name]}
    return {
        "cell": cell,
        "moment": moment_of(given, since=cell.created_at, until=until, zone=zone, events=neighbours),
        "kept": kept,
        "revision": picture.revision,
        "changed_at": past.time,
        "machines_counted": past_cell_tables.machine_counts(picture),
        "resources": past_cell_tables.resource_table(picture),
        "bands": past_cell_tables.band_table(picture),
        "queues": past_cell_tables.queue_table(picture),
        "pending": past_cell_tables.pending_table(picture, cell),
        "picture": picture,
        "changes": change_table(principal, cell, picture.revision),
        "machine_filters": _machine_filters(given, kept),
        "machines": past_cell_tables.machine_table(picture, cell),
        "task_filters": _task_filters(given, kept),
        "tasks": past_cell_tables.task_table(picture, cell),
    }


def moment_of_revision(request: HttpRequest, cell: Cell) -> HttpResponse:
    """Redirect to the moment of the revision in the URL parameter `revision`. Raises `Rejected` if the parameter is not
    a revision of the cell.
    """
    revision = whole_number(request.GET["revision"])
    event = Event.objects.filter(cell_id=cell.id, revision=revision).first() if revision is not None else None
    if event is None and revision is not None and revision <= cell.journal_floor:
        older = ArchivedEvents(cell, everything=True).before((revision + 1, 0), limit=1).events
        event = older[0] if older else None
    if event is None:
        detail = _("%(given)r is not a revision of cell %(cell)s; give a number from 1 to %(newest)d")
        given = request.GET["revision"][:40]
        raise invalid("revision", detail % {"given": given, "cell": cell.name, "newest": cell.revision})
    parameters = request.GET.copy()
    del parameters["revision"]
    parameters["at"] = event.time.isoformat()
    return HttpResponseRedirect(f"?{parameters.urlencode()}")


def _page(request: HttpRequest, name: str) -> int:
    return whole_number(request.GET.get(name, "")) or 1


def _machine_filters(given: Mapping[str, str], kept: Mapping[str, str]) -> Filters:
    fields = (
        search("machine", _("Machine"), given["machine"], placeholder=_("hostname, rack or platform")),
        choice("machine_state", _("State"), given["machine_state"], MACHINE_STATES, everything=_("all states")),
    )
    return Filters(fields, _("Filter"), kept=_others(given, kept, "machine", "machine_state"))


def _task_filters(given: Mapping[str, str], kept: Mapping[str, str]) -> Filters:
    fields = (
        search("job", _("Job"), given["job"], placeholder=_("tenant or job")),
        choice("task_state", _("State of tasks"), given["task_state"], TASK_STATES, everything=_("all states")),
    )
    return Filters(fields, _("Filter"), kept=_others(given, kept, "job", "task_state"))


def _others(given: Mapping[str, str], kept: Mapping[str, str], *own: str) -> dict[str, str]:
    """Return the URL parameters that a filter form keeps when the user sends it: the moment `at`, and all parameters in
    `kept` except the form's own fields `own`.
    """
    at = {"at": given["at"]} if given["at"] else {}
    return {**at, **{name: value for name, value in kept.items() if name not in own}}
