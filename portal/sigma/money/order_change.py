"""Change an order: more, less, longer or shorter. First it is tried and taken back, to show what comes of it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from portal.sigma.frame.page import page
from portal.sigma.reads.market import zone_of
from portal.sigma.reads.orders import order_numbered
from portal.sigma.shop.confirm import wish_of
from portal.sigma.shop.offer import part_line
from portal.sigma.shop.period import DAY, DayError, day_read
from portal.sigma.shop.sizes import SIZES
from portal.sigma.shop.wish import amounts_read, known_only, quantity_text
from quota import clock
from quota.billing.ledger import balance_of
from quota.market.orders import order_change
from quota.models import Order, OrderState
from quota.pricing.arithmetic import part_of
from quota.vocabulary.calendar import midnight
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action, Principal, require
from quota.vocabulary.resources import NAMES

_FIELDS = {"csrfmiddlewaretoken", "until", "do", "key", "note", *(size.name for size in SIZES)}


@dataclass(frozen=True, slots=True)
class ChangePreview:
    """What a change would do. Money in micro-credits; `takes`: from the budget at once, below 0 it gives back."""

    price: int
    parts: list[Any]
    takes: int
    left: int
    waits: str


@never_cache
@page
def change(request: HttpRequest, principal: Principal, number: int) -> HttpResponse:
    """GET: the order as it is. POST `do=plan`: what would come of it. POST `do=change`: it is done."""
    row = order_numbered(principal, number)
    require(principal, Action.QUOTA_BUY, tenant=row.tenant.name, cell=row.cell)
    wish = wish_of(row, zone_of(row.tenant))
    given = {
        name: quantity_text(name, row.amounts[NAMES.index(name)]) for name in (size.name for size in SIZES)
    }
    given["until"] = wish.period.last.isoformat()
    context: dict[str, Any] = {"order": row, "wish": wish, "given": given, "errors": {}}
    if request.method != "POST":
        return _form(request, context)
    given |= {name: request.POST.get(name, "").strip() for name in given}
    context["note"] = request.POST.get("note", "").strip()
    try:
        known_only(request.POST, _FIELDS)
        wanted = _wanted(row, given, context["errors"])
        key = _key(row, request.POST.get("key", ""))
        if request.POST.get("do") == "change":
            new = order_change(principal=principal, order=row, key=key, note=context["note"], **wanted)
            if new.state == OrderState.PENDING.value:
                told = _("Order %(new)d is to replace order %(old)d and waits for approval.")
            else:
                told = _("Order %(new)d has replaced order %(old)d.")
            messages.success(request, told % {"new": new.pk, "old": row.pk})
            return redirect("sigma:order", number=new.pk)
        context["outcome"] = _tried(principal, row, wanted)
    except Rejected as problem:
        context |= {"problem": problem}
        return _form(request, context, status=problem.status)
    return _form(request, context)


def _form(request: HttpRequest, context: dict[str, Any], *, status: int = 200) -> HttpResponse:
    given, errors = context["given"], context["errors"]
    context["sizes"] = [
        {
            "name": size.name, "label": size.label, "hint": size.hint, "text": given[size.name],
            "error": errors.get(size.name, ""),
        }
        for size in SIZES
    ]  # fmt: skip
    context["key"] = request.POST.get("key") or uuid.uuid4().hex
    context["zone"] = context["wish"].zone.key
    context["today"] = clock.now().astimezone(context["wish"].zone).date()
    return render(request, "sigma/orders/change.html", context, status=status)


def _wanted(row: Order, given: dict[str, str], errors: dict[str, str]) -> dict[str, Any]:
    """What is to be changed. Raises `Rejected` naming the fields."""
    zone = zone_of(row.tenant)
    amounts = amounts_read(given, errors)
    wanted: dict[str, Any] = {}
    try:
        last = day_read(given["until"], zone, ends=True)
    except DayError as error:
        errors["until"] = str(error)
    else:
        if last != wish_of(row, zone).period.last:
            wanted["ends_at"] = midnight(last + DAY, zone)
    if errors or amounts is None:
        raise Rejected("invalid", _("It can't be changed like this."), fields=errors)
    # What the shop doesn't sell stays as it is.
    kept = tuple(a if NAMES[i] in given else row.amounts[i] for i, a in enumerate(amounts))
    if kept != tuple(row.amounts):
        wanted["amounts"] = kept
    return wanted


def _tried(principal: Principal, row: Order, wanted: dict[str, Any]) -> ChangePreview:
    """The change done for real, looked at, and taken back."""
    with transaction.atomic():
        before = balance_of(row.tenant)
        new = order_change(principal=principal, order=row, **wanted)
        after = balance_of(row.tenant)
        outcome = ChangePreview(
            new.price, [part_line(part_of(part)) for part in new.parts], before.available - after.available,
            after.available, new.approver if new.state == OrderState.PENDING.value else "",
        )  # fmt: skip
        transaction.set_rollback(True)
    return outcome


def _key(row: Order, given: str) -> str:
    """A form changes once, however often it is sent."""
    return f"change-{row.pk}-{given[:32]}" if given else ""
