"""The page of a tenant's audit records, for owners and SREs. A record is a change with its author and time."""

from __future__ import annotations

import datetime as dt

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext as _

from portal.parts.empty import Empty
from portal.parts.filters import Filters, choice, day, search
from portal.parts.paging import by_cursor
from portal.parts.tables import Column, Table
from portal.sigma.frame.page import given_in, page, whole_number
from portal.sigma.team.record_sentences import sentence_of
from portal.sigma.team.tenants import frame
from quota.selectors import tenant_named
from quota.tenancy.audit import makers_of, records_visible
from quota.vocabulary.errors import invalid
from quota.vocabulary.permissions import Principal

PAGE_SIZE = 50
# The groups of records that the filter offers: the first part of each kind.
GROUPS = (
    "tenant",
    "team",
    "member",
    "invitation",
    "service-account",
    "token",
    "capability",
    "quota",
    "order",
    "budget",
    "posting",
    "invoice",
    "channel",
)


@page
def record_list(request: HttpRequest, principal: Principal, tenant: str) -> HttpResponse:
    """Show the tenant's audit records, newest first. `?before=`: show only records older than this revision."""
    row = tenant_named(principal, tenant)
    chosen = given_in(request.GET, "kind", "actor", "since", "until")
    first, last = _day(chosen, "since"), _day(chosen, "until")
    rows = records_visible(
        principal,
        tenant=row.name,
        kind=chosen["kind"][:200],
        actor=chosen["actor"][:200],
        since=first,
        until=last + dt.timedelta(days=1) if last else None,
    )
    before = whole_number(request.GET.get("before", ""))
    if before is not None:
        rows = rows.filter(revision__lt=before)
    shown = list(rows[: PAGE_SIZE + 1])
    makers = makers_of(record.actor for record in shown)
    context = {
        **frame(principal, row),
        "table": Table(
            _("Records"),
            (Column(_("When")), Column(_("Change")), Column(_("By"))),
            [(record, sentence_of(record), makers.get(record.actor, "")) for record in shown[:PAGE_SIZE]],
            Empty(_("No record matches the filters.")),
            paging=by_cursor(older=str(shown[PAGE_SIZE - 1].revision) if len(shown) > PAGE_SIZE else ""),
            row_template="sigma/rows/record.html",
        ),
        "filters": Filters(
            (
                choice("kind", _("Kind of change"), chosen["kind"], GROUPS, everything=_("all kinds")),
                search("actor", _("By"), chosen["actor"]),
                day("since", _("First day (UTC)"), chosen["since"]),
                day("until", _("Last day (UTC)"), chosen["until"]),
            ),
            _("Filter"),
        ),
    }
    return render(request, "sigma/team/records.html", context)


def _day(chosen: dict[str, str], name: str) -> dt.datetime | None:
    """Return when the day in the filter `name` starts (UTC), or None if it is empty. Raises `Rejected` if it is not a
    day.
    """
    if not chosen[name]:
        return None
    try:
        day = dt.datetime.strptime(chosen[name], "%Y-%m-%d").replace(tzinfo=dt.UTC)
    except ValueError:
        day = None
    if day is None or not 2000 <= day.year <= 9000:
        raise invalid(
            name, _("%r is not a day from the year 2000 to 9000; give a day such as 2026-11-21") % chosen[name][:20]
        )
    return day
