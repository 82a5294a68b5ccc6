"""Journal events as rows of tables, with the names of their jobs and links to their pages."""

from __future__ import annotations

from collections.abc import Sequence

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.parts.empty import Empty
from portal.parts.tables import Cell, Column, Table
from portal.sigma.reads.event_sentences import of
from quota.vocabulary.permissions import Principal
from scheduling.access.selectors import events_of_cell, job_names
from scheduling.history.causes.chains import LinkedEvent
from scheduling.history.causes.rules import Link
from scheduling.models import Cell as CellRow
from scheduling.models import Event
from scheduling.tasks.placement_records import hostnames

# The most events of one revision that a page shows.
MOST_CHANGES = 20


def link_title(link: Link | None) -> str:
    """Return a text that says how an event is related to the event of which it is a cause or an effect, such as
    "preempted by the placement". Return "" for None.
    """
    return {
        None: "",
        Link.REQUESTED: _("direct cause of this event"),
        Link.PREEMPTED_BY: _("placement of the task that preempted this task"),
        Link.QUEUED_BY: _("event that made the task pending"),
        Link.PLACED_BY: _("placement of the task on this machine"),
        Link.UPDATED_BY: _("start of this update"),
        Link.LAST_TASK: _("end of the last task of the job"),
        Link.CAUSED: _("direct effect of this event"),
        Link.PREEMPTED: _("eviction of a preempted task"),
        Link.ENDED: _("end of this placement"),
        Link.PLACED: _("next event of the task"),
        Link.GONE: _("end of the processes of the task"),
        Link.JOB_ENDED: _("end of the job"),
        Link.UPDATE_ENDED: _("end of the update"),
    }[link]


def event_link(cell: str, event: Event) -> str:
    """Return the link to the page of an event."""
    return reverse("sigma:event", args=[cell, f"{event.revision}.{event.seq}"])


def link_table(caption: str, cell: CellRow, events: Sequence[LinkedEvent], empty: Empty) -> Table:
    """Return a table of events that are causes or effects of one event. Makes at most one query."""
    columns = (Column(_("Event")), Column(_("Relation")), Column(_("Time")), Column(_("Job")), Column(_("By")))
    names = hostnames(one.event.machine_id for one in events if one.event.machine_id)
    rows = []
    for one in events:
        event = one.event
        what = Cell(sentence_of(one, names), "" if one.hidden else event_link(cell.name, event))
        time = f"{timezone.localtime(event.time):%Y-%m-%d %H:%M:%S}"
        rows.append((what, link_title(one.link), time, one.job or None, None if one.hidden else event.actor))
    return Table(caption, columns, rows, empty)


def sentence_of(one: LinkedEvent, names: dict[int, str]) -> str:
    """Return the event as a sentence. If the user may not see the job of the event, the sentence contains no name."""
    if not one.hidden:
        return of(one.event, names)
    if one.priority is None:
        return _("an event that you may not see")
    given = {"kind": one.event.kind, "priority": one.priority, "band": one.band}
    return _("event %(kind)s of a task with priority %(priority)d (%(band)s)") % given


def change_table(principal: Principal, cell: CellRow, revision: int) -> Table:
    """Return a table of those events of a journal revision that the principal may see. Makes at most four queries."""
    events = list(events_of_cell(principal, cell).filter(revision=revision).order_by("seq")[:MOST_CHANGES])
    names = hostnames(event.machine_id for event in events if event.machine_id)
    names_of_jobs = job_names(event.job_id for event in events if event.job_id is not None)
    owners = {identity: f"{tenant}/{name}" for identity, (tenant, name) in names_of_jobs.items()}
    columns = (Column(_("Event")), Column(_("Job")), Column(_("By")))
    rows = [
        (Cell(of(event, names), event_link(cell.name, event)), owners.get(event.job_id or 0), event.actor)
        for event in events
    ]
    empty = Empty(_("You may not see the events of this change, or the events are only in the archive."))
    return Table(_("The last change before this moment"), columns, rows, empty)
