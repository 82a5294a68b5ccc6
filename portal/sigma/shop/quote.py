"""The page of a quote. A quote is the price of one order for quota, and this price is fixed for some time. On this
page, the user can place this order once.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from portal.sigma.frame.page import page, problem_kept, rendered, whole_number
from portal.sigma.reads.market import approval_words, zone_of
from portal.sigma.shop.period import QuotaPeriod
from portal.sigma.shop.request_form import Wish, fields_of, known_only
from quota import clock
from quota.billing.ledger import balance_of
from quota.market.orders import order_place
from quota.models import Order, Quote
from quota.vocabulary.errors import NotFound, Rejected
from quota.vocabulary.permissions import Action, Principal, may


@never_cache
@page
def quote(request: HttpRequest, principal: Principal, number: int) -> HttpResponse:
    """Show the quote (GET), or place an order for it (POST).

    The amounts and the price of the order come from the stored quote. So users cannot change them in the form.
    """
    row = Quote.objects.select_related("tenant", "band", "prices").filter(pk=number).first()
    if row is None or not may(principal, Action.QUOTA_BUY, tenant=row.tenant.name, cell=row.cell):
        raise NotFound("quote", str(number))
    placed = Order.objects.filter(tenant=row.tenant, key=_key(row)).first()
    if request.method == "POST":
        context: dict[str, Any] = {}
        with problem_kept(context):
            return _order(request, principal, row, placed)
        return rendered(request, "sigma/shop/quote.html", _quote_context(row, given=request.POST) | context)
    if placed is not None:
        return redirect("sigma:order", number=placed.pk)
    return render(request, "sigma/shop/quote.html", _quote_context(row, given=request.GET))


def _order(request: HttpRequest, principal: Principal, row: Quote, placed: Order | None) -> HttpResponse:
    """Place an order for the quote `row`, and redirect to the order's page. `placed`: the existing order for this
    quote, if the form was already sent once. Raises `Rejected` if the form is not valid or the order is not possible.
    """
    post = request.POST
    known_only(post, {"csrfmiddlewaretoken", "price", "renew", "note", "again"})
    if post.get("price") != str(row.price):
        raise Rejected(
            "tampered",
            _("The price in the form is not the price of this quote. Check the price below, then order again."),
            status=409,
            fields={"price": _("this is not the price of the quote; reload the page")},
        )
    if placed is None and not post.get("again") and _same(row) is not None:
        raise Rejected(
            "ordered-already",
            _("The same quota is already ordered. Tick the box to order it again, or leave this page."),
            status=409,
            fields={"again": _("tick the box to order the same quota again")},
        )
    order = order_place(
        principal=principal,
        tenant=row.tenant,
        **wish_of(row).goods,
        quote=row.pk,
        renew=bool(post.get("renew")),
        note=post.get("note", "").strip(),
        key=_key(row),
    )
    text = {
        "pending": _("Order %d is placed and waits for approval. You will get a notice when somebody decides."),
        "approved": _("Order %d is approved. You can use its quota from its first day on."),
        "active": _("Order %d is active. You can use its quota now."),
    }
    messages.success(request, text.get(order.state, _("Order %d is placed.")) % order.pk)
    return redirect("sigma:order", number=order.pk)


def _quote_context(row: Quote, *, given: Mapping[str, str]) -> dict[str, Any]:
    balances, wish = balance_of(row.tenant), wish_of(row)
    seen = whole_number(given.get("seen", ""))
    return {
        "quote": row,
        "wish": wish,
        "back": fields_of(wish),
        "balances": balances,
        "after": balances.available - row.price,
        "missing": max(0, row.price - balances.spendable),
        "over": row.valid_until <= clock.now(),
        "approval": approval_words(row.tenant, row.cell, row.band.name, row.price, orderer=row.made_by),
        "same": _same(row),
        "given": given,
        "seen": seen if seen != row.price else None,
        "zone": wish.zone.key,
    }


def wish_of(row: Quote | Order) -> Wish:
    """Return a request to the shop with the contents of a quote or an order. The days are in the tenant's time zone."""
    zone = zone_of(row.tenant)
    first = row.starts_at.astimezone(zone).date()
    last = (row.ends_at - dt.timedelta(microseconds=1)).astimezone(zone).date()
    amounts, period = tuple(row.amounts), QuotaPeriod(first, last)
    return Wish(
        row.tenant.name, row.cell, row.band.name, amounts, period, row.starts_at, row.ends_at, zone, renew=False
    )


def _key(row: Quote) -> str:
    """Return the idempotency key for the order of a quote. It prevents a second order if the form is sent twice."""
    return f"quote-{row.pk}"


def _same(row: Quote) -> Order | None:
    """Return a live order for the same quota as the quote `row`, or None if there is none.

    It may be an order of any user of the tenant.
    """
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
