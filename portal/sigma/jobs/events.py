"""The event list of a job. The URL of a page contains a position in the journal instead of a page number."""

from __future__ import annotations

from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from portal.parts.empty import Empty, EmptyAction
from portal.parts.filters import Filters, choice, search
from portal.parts.paging import FIRST_PAGE, by_cursor
from portal.sigma.frame.page import page, whole_number
from portal.sigma.reads import jobs as reads
from portal.sigma.reads.event_sentences import SENTENCES
from portal.sigma.reads.folded_events import folded
from portal.sigma.reads.journal import event_sentences
from quota.vocabulary.errors import invalid
from quota.vocabulary.permissions import Principal
from scheduling.core.vocabulary.requirement import MAX_TASKS
from scheduling.history.archive.reading import ArchivedEvents, Position, archived_events_of_job
from scheduling.models import Event

PAGE_SIZE = 50
# The kinds that the filter offers: the kinds of events that belong to a job.
KINDS = [
    kind for kind in SENTENCES if kind.startswith(("job.", "task", "update.", "shell.")) and kind != "job.rejected"
]


@page
@require_GET
def events(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    """Show the events of a job, newest first. `?before=`, `?after=`: show only events before or after this position in
    the journal. `?kind=`, `?task=`: show only events of this kind, or of the task with this index. Makes at most five
    queries.
    """
    job = reads.job_named(principal, cell, tenant, name, uid=request.GET.get("uid", ""))
    kind = request.GET.get("kind", "")
    kind = kind if kind in KINDS else ""
    rows = Event.objects.filter(cell_id=job.cell_id, job_id=job.id)
    rows = rows.filter(kind=kind) if kind else rows
    task, problem = _task_of(request.GET.get("task", "").strip())
    rows = rows.filter(task_index=task) if task is not None else rows
    archived = archived_events_of_job(job, kinds=[kind] if kind else (), task_index=task)
    found, older, newer = _page_of(rows, archived, _position(request, "before"), _position(request, "after"))
    sentences = event_sentences(found) if found else []
    context = {
        "job": job,
        "events": sentences,
        "folds": folded(sentences),
        "paging": by_cursor(newer=_cursor(newer), older=_cursor(older)),
        "filters": Filters(
            (
                choice("kind", _("Kind"), kind, KINDS, everything=_("all kinds")),
                search("task", _("Task"), request.GET.get("task", "").strip(), placeholder="17", problem=problem),
            ),
            _("Filter"),
            kept={"uid": str(job.uid)},
        ),
        "empty": _empty(bool(kind or task is not None)),
    }
    return render(request, "sigma/job_events.html", context)


def _task_of(text: str) -> tuple[int | None, str]:
    """Return the index of the task in the filter, or None for all tasks, and the problem of the text, or ""."""
    if not text:
        return None, ""
    index = whole_number(text)
    if index is None or index >= MAX_TASKS:
        return None, _("%r is not the index of a task; give a number such as 0") % text[:20]
    return index, ""


def _empty(is_filtered: bool) -> Empty:
    """Return what the page shows if it has no events."""
    if is_filtered:
        everything = EmptyAction(_("Show all events"), changes={**FIRST_PAGE, "kind": None, "task": None})
        return Empty(_("No event on this page matches the filters."), actions=(everything,))
    return Empty(_("This page has no events."), actions=(EmptyAction(_("Show the newest events"), changes=FIRST_PAGE),))


def _page_of(
    rows: QuerySet[Event], archived: ArchivedEvents, before: Position | None, after: Position | None
) -> tuple[list[Event], Position | None, Position | None]:
    """Return the events of a page, newest first, and the positions at which the page of older events and the page of
    newer events begin. A position is None if there is no such page.
    """
    if after is not None:
        old = archived.after(after, limit=PAGE_SIZE + 1)
        found = old.events
        if old.resume is None and len(found) <= PAGE_SIZE:
            later = rows.filter(Q(revision__gt=after[0]) | Q(seq__gt=after[1]), revision__gte=after[0])
            known = {_place(event) for event in found}
            recent = later.order_by("revision", "seq")[: PAGE_SIZE + 1]
            found = [*found, *(event for event in recent if _place(event) not in known)]
        shown = found[:PAGE_SIZE][::-1]
        newer = _place(shown[0]) if len(found) > PAGE_SIZE else old.resume
        return shown, _place(shown[-1]) if shown else after, newer
    if before is not None:
        rows = rows.filter(Q(revision__lt=before[0]) | Q(seq__lt=before[1]), revision__lte=before[0])
    found = list(rows.order_by("-revision", "-seq")[: PAGE_SIZE + 1])
    older = None
    if len(found) <= PAGE_SIZE:
        page = archived.before(_place(found[-1]) if found else before, limit=PAGE_SIZE + 1 - len(found))
        found, older = found + page.events, page.resume
    if len(found) > PAGE_SIZE:
        older = _place(found[PAGE_SIZE - 1])
    return found[:PAGE_SIZE], older, _place(found[0]) if before is not None and found else None


def _place(event: Event) -> Position:
    return event.revision, event.seq


def _cursor(position: Position | None) -> str:
    return f"{position[0]}.{position[1]}" if position is not None else ""


def _position(request: HttpRequest, name: str) -> tuple[int, int] | None:
    """Return the journal position `REVISION.SEQ` in the URL parameter `name`, or None if it is empty. Raises `Rejected`
    if the text is not a position.
    """
    given = request.GET.get(name, "")
    if not given:
        return None
    revision, seq = map(whole_number, given.partition(".")[::2])
    if revision is None or seq is None or seq >= 2**31:
        raise invalid(
            name, _("%r is not a position in the journal; open the list of events again and use its links") % given[:40]
        )
    return revision, seq
