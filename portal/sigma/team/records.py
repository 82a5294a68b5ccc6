"""The records of a tenant: every change, its author and its time; for owners and SREs."""

from __future__ import annotations

import datetime as dt

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.dateparse import parse_date
from django.utils.translation import gettext as _

from portal.sigma.frame.page import page
from portal.sigma.team.record_sentences import sentence_of
from portal.sigma.team.tenants import frame
from quota.selectors import tenant_named
from quota.tenancy.audit import makers_of, records_visible
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal

PAGE_SIZE = 50
# The first parts of the kinds, for the filter.
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
    """List records, newest first. `before`, the last shown revision, leads to older ones, so rows are never counted."""
    row = tenant_named(principal, tenant)
    asked = request.GET
    chosen = {name: asked.get(name, "")[:200] for name in ("kind", "actor", "since", "until")}
    first, last = _day(chosen, "since"), _day(chosen, "until")
    rows = records_visible(
        principal,
        tenant=row.name,
        kind=chosen["kind"],
        actor=chosen["actor"],
        since=first,
        until=last + dt.timedelta(days=1) if last else None,
    )
    before = asked.get("before", "")
    if before.isascii() and before.isdecimal() and len(before) < 19:
        rows = rows.filter(revision__lt=int(before))
    shown = list(rows[: PAGE_SIZE + 1])
    makers = makers_of(record.actor for record in shown)
    context = {
        **frame(principal, row),
        "records": [(record, sentence_of(record), makers.get(record.actor, "")) for record in shown[:PAGE_SIZE]],
        "older": shown[PAGE_SIZE - 1].revision if len(shown) > PAGE_SIZE else None,
        "chosen": chosen,
        "groups": GROUPS,
    }
    return render(request, "sigma/team/records.html", context)


def _day(chosen: dict[str, str], name: str) -> dt.datetime | None:
    """Return the beginning of a day in UTC, or None. Raises `Rejected`."""
    if not chosen[name]:
        return None
    try:
        day = parse_date(chosen[name])
    except ValueError:
        day = None
    if day is None or not 2000 <= day.year <= 9000:
        detail = _("give a day such as 2026-11-21")
        raise Rejected("invalid", f"{name}: {detail}", fields={name: detail})
    return dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC)
