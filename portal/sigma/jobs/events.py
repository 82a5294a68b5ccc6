"""The event list of a job. Pages are addressed by position in the journal, so rows are never counted."""

from __future__ import annotations

from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from portal.sigma.frame.page import page
from portal.sigma.reads import jobs as reads
from portal.sigma.reads.journal import event_sentences
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal
from scheduling.models import Event, Job

PAGE_SIZE = 50
# The choices of the filter, in the order of a job's life.
KINDS = (
    "job.submitted",
    "job.changed",
    "job.ended",
    "tasks.added",
    "task.placed",
    "task.reported",
    "task.updated",
    "task.evicted",
    "task.ended",
    "task.gone",
    "task.revived",
    "update.started",
    "update.ended",
    "shell.opened",
    "shell.closed",
)


@page
@require_GET
def events(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    """Show events, newest first. `before`, `after`: an event's position, `revision.seq`. Five queries at most."""
    job = reads.job_named(principal, cell, tenant, name, uid=request.GET.get("uid", ""))
    kind = request.GET.get("kind", "")
    kind = kind if kind in KINDS else ""
    before, after = _place(request, "before"), _place(request, "after")
    found, older, newer = _page_of(_rows(job, kind), before, after)
    context = {
        "job": job,
        "events": event_sentences(found) if found else [],
        "older": _cursor(found[-1]) if older else "",
        "newer": _cursor(found[0]) if newer else "",
        "kind": kind,
        "kinds": KINDS,
    }
    return render(request, "sigma/job_events.html", context)


def _rows(job: Job, kind: str) -> QuerySet[Event]:
    rows = Event.objects.filter(cell_id=job.cell_id, job_id=job.id)
    return rows.filter(kind=kind) if kind else rows


def _page_of(
    rows: QuerySet[Event], before: tuple[int, int] | None, after: tuple[int, int] | None
) -> tuple[list[Event], bool, bool]:
    """Return one page, newest first, then whether older events exist, then whether newer events exist."""
    if after is not None:
        later = rows.filter(Q(revision__gt=after[0]) | Q(seq__gt=after[1]), revision__gte=after[0])
        found = list(later.order_by("revision", "seq")[: PAGE_SIZE + 1])
        return found[:PAGE_SIZE][::-1], True, len(found) > PAGE_SIZE
    if before is not None:
        rows = rows.filter(Q(revision__lt=before[0]) | Q(seq__lt=before[1]), revision__lte=before[0])
    found = list(rows.order_by("-revision", "-seq")[: PAGE_SIZE + 1])
    return found[:PAGE_SIZE], len(found) > PAGE_SIZE, before is not None and bool(found)


def _cursor(event: Event) -> str:
    return f"{event.revision}.{event.seq}"


def _place(request: HttpRequest, name: str) -> tuple[int, int] | None:
    """Return the journal position in the parameter `name`, or None. Raises `Rejected` if it is malformed."""
    given = request.GET.get(name, "")
    if not given:
        return None
    revision, _dot, seq = given.partition(".")
    if not (revision.isdecimal() and seq.isdecimal() and len(revision) <= 18 and len(seq) <= 9):
        problem = _("%(name)s: %(given)r is not a position in the journal. Use the links on this page.")
        raise Rejected("invalid", problem % {"name": name, "given": given[:40]}, fields={name: _("not a position")})
    return int(revision), int(seq)
