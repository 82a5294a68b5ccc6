"""The second step of buying: show a quote, whose price is fixed, and order it once."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from portal.sigma.frame.page import page, rendered
from portal.sigma.reads.market import approval_words, zone_of
from portal.sigma.shop.offer import part_line
from portal.sigma.shop.period import QuotaPeriod
from portal.sigma.shop.wish import Wish, fields_of, known_only
from quota import clock
from quota.billing.ledger import balance_of
from quota.market.orders import order_place
from quota.models import Order, Quote
from quota.pricing.arithmetic import part_of
from quota.vocabulary.errors import NotFound, Rejected
from quota.vocabulary.permissions import Action, Principal, may


@never_cache
@page
def quote(request: HttpRequest, principal: Principal, number: int) -> HttpResponse:
    """Show the quote (GET), or order it (POST).

    The order's amounts and price come from the stored quote, so users cannot change them in the form. Unknown
    fields are rejected.
    """
    row = Quote.objects.select_related("tenant", "band", "prices").filter(pk=number).first()
    if row is None or not may(principal, Action.QUOTA_BUY, tenant=row.tenant.name, cell=row.cell):
        raise NotFound("quote", str(number))
    placed = Order.objects.filter(tenant=row.tenant, key=_key(row)).first()
    if request.method == "POST":
        return _order(request, principal, row)
    if placed is not None:
        return redirect("sigma:order", number=placed.pk)
    return render(request, "sigma/shop/quote.html", _quote_context(row, given=request.GET))


def _order(request: HttpRequest, principal: Principal, row: Quote) -> HttpResponse:
    try:
        known_only(request.POST, {"csrfmiddlewaretoken", "price", "renew", "note", "again"})
        if request.POST.get("price") != str(row.price):
            raise Rejected(
                "tampered",
                _("The price in the form is not the price of this quote. Check the price below."),
                status=409,
                fields={"price": _("not the price of this quote")},
            )
        if _same(row) is not None and not request.POST.get("again") and not _placed(row):
            raise Rejected(
                "ordered-already",
                _("The same quota is already ordered. Tick the box to order it again, or leave this page."),
                status=409,
                fields={"again": _("tick the box to order the same again")},
            )
        order = order_place(
            principal=principal,
            tenant=row.tenant,
            cell=row.cell,
            band=row.band.name,
            amounts=tuple(row.amounts),
            starts_at=row.starts_at,
            ends_at=row.ends_at,
            quote=row.pk,
            renew=bool(request.POST.get("renew")),
            note=request.POST.get("note", "").strip(),
            key=_key(row),
        )
    except Rejected as problem:
        context = _quote_context(row, given=request.POST) | {"problem": problem}
        return rendered(request, "sigma/shop/quote.html", context)
    text = {
        "pending": _("Order %d is placed. It waits for approval. You get a notice when somebody decides."),
        "approved": _("Order %d is approved. Its quota is available from its first day."),
        "active": _("Order %d is active. Its quota is available now."),
    }
    messages.success(request, text.get(order.state, _("Order %d is placed.")) % order.pk)
    return redirect("sigma:order", number=order.pk)


def _quote_context(row: Quote, *, given: Mapping[str, str]) -> dict[str, Any]:
    zone = zone_of(row.tenant)
    balances = balance_of(row.tenant)
    now = clock.now()
    seen = given.get("seen", "")
    return {
        "quote": row,
        "wish": wish_of(row, zone),
        "back": fields_of(wish_of(row, zone)),
        "parts": [part_line(part_of(part)) for part in row.parts],
        "balances": balances,
        "after": balances.available - row.price,
        "missing": max(0, row.price - balances.spendable),
        "over": row.valid_until <= now,
        "approval": approval_words(row.tenant, row.cell, row.band.name, row.price, orderer=row.made_by),
        "same": _same(row),
        "given": given,
        "seen": int(seen) if seen.isdecimal() and len(seen) < 20 and int(seen) != row.price else None,
        "zone": zone.key,
    }


def wish_of(row: Quote | Order, zone: ZoneInfo) -> Wish:
    """Return a quote or an order as the wish of the shop's form."""
    first = row.starts_at.astimezone(zone).date()
    last = (row.ends_at - dt.timedelta(microseconds=1)).astimezone(zone).date()
    amounts, period = tuple(row.amounts), QuotaPeriod(first, last)
    return Wish(
        row.tenant.name, row.cell, row.band.name, amounts, period, row.starts_at, row.ends_at, zone, renew=False
    )


def _key(row: Quote) -> str:
    """Return the key that allows one order per quote, even if the form is sent several times."""
    return f"quote-{row.pk}"


def _placed(row: Quote) -> bool:
    return Order.objects.filter(tenant=row.tenant, key=_key(row)).exists()


def _same(row: Quote) -> Order | None:
    """Return a live order of the same quota, or None. A second tab or another user may have placed it."""
    return (
        Order.objects.filter(
            tenant=row.tenant,
            cell=row.cell,
            band=row.band,
            amounts=row.amounts,
            ends_at=row.ends_at,
            state__in=["pending", "approved", "active"],
        )
        .exclude(key=_key(row))
        .first()
    )
