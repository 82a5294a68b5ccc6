"""The list of quota orders, the page of one order, and the forms that change an order."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from portal.parts.empty import Empty, EmptyAction
from portal.parts.filters import Filters, choice
from portal.parts.tables import Column, Table
from portal.sigma.frame.page import given_in, narrowed, page, page_of, paging_of, rendered, tenants_of
from portal.sigma.reads.order_state_texts import format_order_state, order_state_name
from portal.sigma.reads.orders import history_of, may_decide, money_of, order_numbered, orders_visible, refund_of
from portal.sigma.shop.own_quota import own_of
from portal.sigma.shop.quote import wish_of
from portal.sigma.shop.request_form import Wish, fields_of
from portal.sigma.shop.resource_labels import LABELS
from quota import clock
from quota.billing.ledger import balance_of
from quota.market.orders import order_approve, order_cancel, order_reject, order_renewal_set, order_transfer
from quota.models import Order, OrderState
from quota.pricing.capacity_for_sale import calendar_days, market_of
from quota.selectors import tenant_named
from quota.vocabulary.errors import Rejected
from quota.vocabulary.money import format_credits
from quota.vocabulary.permissions import Action, Principal, may
from quota.vocabulary.resources import NAMES

PAGE_SIZE = 50
STATES = ["", "waiting", *(state.value for state in OrderState if state is not OrderState.DRAFT)]
ALIVE = (OrderState.PENDING.value, OrderState.APPROVED.value, OrderState.ACTIVE.value)


@page
def order_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show orders, filtered by state, tenant and cell. The state `waiting` means pending or approved."""
    chosen = given_in(request.GET, "state", "tenant", "cell")
    rows = orders_visible(principal)
    if chosen["state"] == "waiting":
        rows = rows.filter(state__in=[OrderState.PENDING.value, OrderState.APPROVED.value])
    elif chosen["state"] in STATES and chosen["state"]:
        rows = rows.filter(state=chosen["state"])
    rows = narrowed(rows, chosen, tenant="tenant__name", cell="cell")
    return render(request, "sigma/orders.html", _order_list(request, principal, rows, chosen))


def _order_list(
    request: HttpRequest, principal: Principal, rows: QuerySet[Order], chosen: dict[str, str]
) -> dict[str, Any]:
    """Return the template context of the list of the orders `rows`. `chosen`: the values of the filters."""
    found = page_of(request, rows, PAGE_SIZE)
    if any(chosen.values()):
        link = EmptyAction(_("Show all orders"), reverse("sigma:orders"))
        empty = Empty(_("No order matches the filters."), actions=(link,))
    else:
        link = EmptyAction(_("See the price of quota"), reverse("sigma:shop"))
        empty = Empty(_("There are no orders yet."), actions=(link,))
    columns = (
        Column(_("Order")),
        Column(_("State")),
        Column(_("Amounts")),
        Column(_("Cell and band")),
        Column(_("Period")),
        Column(_("Price"), number=True),
        Column(_("Placed")),
    )
    cells = orders_visible(principal).order_by("cell").values_list("cell", flat=True).distinct()[:200]
    fields = (
        choice("state", _("State"), chosen["state"], [(state, order_state_name(state)) for state in STATES]),
        choice("tenant", _("Tenant"), chosen["tenant"], tenants_of(principal), everything=_("all tenants")),
        choice("cell", _("Cell"), chosen["cell"], cells, everything=_("all cells")),
    )
    table = Table(
        _("Orders"), columns, list(found), empty, paging=paging_of(found), row_template="sigma/rows/order.html"
    )
    return {"page_obj": found, "filters": Filters(fields, _("Filter")), "table": table}


@never_cache
@page
def order(request: HttpRequest, principal: Principal, number: int) -> HttpResponse:
    return _order(request, principal, order_numbered(principal, number))


def _action(act: Callable[[Principal, Order, QueryDict], tuple[Order, str]]) -> Callable[..., HttpResponse]:
    """Return a view for a form that changes an order.

    `act`: a function that makes the change, and returns the changed order and a message for the user.
    """

    @page
    @require_POST
    @wraps(act)
    def view(request: HttpRequest, principal: Principal, number: int) -> HttpResponse:
        row = order_numbered(principal, number)
        try:
            done, text = act(principal, row, request.POST)
        except Rejected as problem:
            return _order(request, principal, row, problem)
        messages.success(request, text)
        if request.POST.get("back") == "approvals":
            return redirect("sigma:approvals")
        return redirect("sigma:order", number=done.pk)

    return view


@_action
def approve(principal: Principal, row: Order, post: QueryDict) -> tuple[Order, str]:
    done = order_approve(principal=principal, order=row, reason=post.get("reason", "").strip())
    return done, _("Order %(number)d is %(state)s.") % {"number": done.pk, "state": _(done.state)}


@_action
def reject(principal: Principal, row: Order, post: QueryDict) -> tuple[Order, str]:
    done = order_reject(principal=principal, order=row, reason=post.get("reason", "").strip())
    return done, _("Order %d is rejected. The held credits and quota are free again.") % done.pk


@_action
def cancel(principal: Principal, row: Order, post: QueryDict) -> tuple[Order, str]:
    before = row.refunded
    done = order_cancel(principal=principal, order=row, reason=post.get("reason", "").strip())
    back = done.refunded - before if row.state == OrderState.ACTIVE.value else done.price
    text = _("Order %(number)d is cancelled. %(back)s credits were returned to the budget.")
    return done, text % {"number": done.pk, "back": format_credits(back, places=2)}


@_action
def renew(principal: Principal, row: Order, post: QueryDict) -> tuple[Order, str]:
    done = order_renewal_set(principal=principal, order=row, renew=post.get("renew") == "1")
    text = _("Order %d will be renewed at its end.") if done.renew else _("Order %d will not be renewed at its end.")
    return done, text % done.pk


@_action
def transfer(principal: Principal, row: Order, post: QueryDict) -> tuple[Order, str]:
    tenant = tenant_named(principal, post.get("tenant", "").strip())
    note = post.get("note", "").strip()
    done = order_transfer(principal=principal, order=row, tenant=tenant, note=note, key=f"transfer-{row.pk}")
    text = _("The remaining quota of order %(old)d now belongs to %(tenant)s, as order %(new)d.")
    return done, text % {"old": row.pk, "tenant": done.tenant.name, "new": done.pk}


def _order(request: HttpRequest, principal: Principal, row: Order, problem: Rejected | None = None) -> HttpResponse:
    row = order_numbered(principal, row.pk)
    now, name = clock.now(), row.tenant.name
    may_buy = may(principal, Action.QUOTA_BUY, tenant=name, cell=row.cell)
    sees_money = may(principal, Action.BILLING_VIEW, tenant=name)
    deciding = may_decide(principal, row)
    context: dict[str, Any] = {
        "order": row,
        "problem": problem,
        "zone": row.tenant.time_zone,
        "words": format_order_state(row, now=now, rules=market_of(row.cell)),
        "again": fields_of(_wish_again(row)),
        "history": history_of(row),
        "money": money_of(row) if sees_money else [],
        "sees_money": sees_money,
        "successors": list(row.successors.select_related("tenant").order_by("id")),
        "grants": list(row.grants.order_by("id")),
        "alive": row.state in ALIVE and row.ends_at > now,
        "may_buy": may_buy,
        "may_decide": deciding,
        "refund": refund_of(row, now) if may_buy and row.state in ALIVE else 0,
        "others": [other for other in tenants_of(principal, Action.QUOTA_BUY) if other != name] if may_buy else [],
    }
    if deciding:
        context["balances"] = balance_of(row.tenant)
        context["own"] = own_of(principal, row.tenant, row.cell, row.band.name)
        context["least"] = _least(row, now)
    return rendered(request, "sigma/order.html", context)


def _wish_again(row: Order) -> Wish:
    """Return a request to the shop for the same quota as the order. It starts today if the order has begun."""
    wish = wish_of(row)
    today = clock.now().astimezone(wish.zone).date()
    if wish.period.first >= today:
        return wish
    return replace(wish, period=wish.period.moved(today), renew=row.renew)


def _least(row: Order, now: dt.datetime) -> list[dict[str, Any]]:
    """Return, for each resource of an order, the lowest amount that the cell has free during the order. The amount is
    negative if the cell is oversold.
    """
    wish = wish_of(row)
    first = max(wish.period.first, now.astimezone(wish.zone).date())
    days = calendar_days(row.cell, row.band, first, max(1, (wish.period.last - first).days + 1), wish.zone)
    left = [min(column) for column in zip(*(day.left for day in days), strict=True)]
    return [
        {"name": name, "label": LABELS[name], "asked": asked, "left": left[i], "short": max(0, -left[i])}
        for i, (name, asked) in enumerate(zip(NAMES, row.amounts, strict=False))
        if asked and name in LABELS
    ]
