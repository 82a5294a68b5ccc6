"""The page of one event of the journal: its causes and its effects."""

from __future__ import annotations

import json

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

from portal.parts.empty import Empty
from portal.sigma.frame.page import page, whole_number
from portal.sigma.history.event_tables import link_table, sentence_of
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Principal
from scheduling.access.selectors import cell_named
from scheduling.history.causes.chains import chain_of
from scheduling.tasks.placement_records import hostnames


@page
def event(request: HttpRequest, principal: Principal, cell: str, place: str) -> HttpResponse:
    """Show the event at the place `REVISION.SEQ` of a cell's journal. SEQ counts the events of a revision."""
    row = cell_named(principal, cell)
    revision, seq = map(whole_number, place.partition(".")[::2])
    if revision is None or seq is None or seq > 999_999_999:
        raise NotFound("event", place[:40])
    chain = chain_of(principal, row, (revision, seq))
    shown = chain.event.event
    outside = Empty(_("No other event caused this event: a person or a program requested it."))
    if chain.causes_archived:
        outside = Empty(_("The cause of this event is not in PostgreSQL. It may be in the archive."))
    nothing = Empty(_("This event has not caused other events yet."))
    if chain.effects_archived:
        nothing = Empty(_("No event that this event caused is in PostgreSQL. Such events may be in the archive."))
    names = hostnames([shown.machine_id] if shown.machine_id else [])
    context = {
        "cell": row,
        "hostname": next(iter(names.values()), ""),
        "place": f"{revision}.{seq}",
        "linked": chain.event,
        "event": shown,
        "sentence": sentence_of(chain.event, names),
        "job": dict(zip(("tenant", "name"), chain.event.job.split("/"), strict=False)) if chain.event.job else None,
        "causes": link_table(_("Causes of this event, the most direct first"), row, chain.causes, outside),
        "effects": link_table(_("Effects of this event"), row, chain.effects, nothing),
        "data": json.dumps(shown.data, indent=2, ensure_ascii=False),
    }
    return render(request, "sigma/event.html", context)
