"""The page that changes the amounts or the end of an order. The preview makes the change and rolls it back."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from portal.sigma.frame.page import page, problem_kept, rendered
from portal.sigma.reads.market import zone_of
from portal.sigma.reads.orders import order_numbered
from portal.sigma.shop.confirm import wish_of
from portal.sigma.shop.offer import part_line
from portal.sigma.shop.period import DAY, DayError, day_read
from portal.sigma.shop.sizes import SIZES, size_fields
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
    """The result of a change, in micro-credits. `takes`: charged to the budget at once; negative for a refund."""

    price: int
    parts: list[Any]
    takes: int
    left: int
    waits: str


@never_cache
@page
def change(request: HttpRequest, principal: Principal, number: int) -> HttpResponse:
    """Show the order (GET), preview a change (POST `do=plan`), or make it (POST `do=change`)."""
    row = order_numbered(principal, number)
    require(principal, Action.QUOTA_BUY, tenant=row.tenant.name, cell=row.cell)
    wish = wish_of(row, zone_of(row.tenant))
    given = {name: quantity_text(name, row.amounts[NAMES.index(name)]) for name in (size.name for size in SIZES)}
    given["until"] = wish.period.last.isoformat()
    context: dict[str, Any] = {"order": row, "wish": wish, "given": given, "errors": {}}
    if request.method != "POST":
        return _form(request, context)
    given |= {name: request.POST.get(name, "").strip() for name in given}
    context["note"] = request.POST.get("note", "").strip()
    with problem_kept(context):
        known_only(request.POST, _FIELDS)
        wanted = _wanted(row, given, context["errors"])
        key = _key(row, request.POST.get("key", ""))
        if request.POST.get("do") == "change":
            new = order_change(principal=principal, order=row, key=key, note=context["note"], **wanted)
            if new.state == OrderState.PENDING.value:
                text = _("Order %(new)d will replace order %(old)d after its approval.")
            else:
                text = _("Order %(new)d has replaced order %(old)d.")
            messages.success(request, text % {"new": new.pk, "old": row.pk})
            return redirect("sigma:order", number=new.pk)
        context["outcome"] = _tried(principal, row, wanted)
    return _form(request, context)


def _form(request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
    context["sizes"] = size_fields(context["given"], context["errors"])
    context["key"] = request.POST.get("key") or uuid.uuid4().hex
    context["zone"] = context["wish"].zone.key
    context["today"] = clock.now().astimezone(context["wish"].zone).date()
    return rendered(request, "sigma/orders/change.html", context)


def _wanted(row: Order, given: dict[str, str], errors: dict[str, str]) -> dict[str, Any]:
    """Return the arguments of the change. Raises `Rejected`, which names the fields."""
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
        raise Rejected("invalid", _("The order was not changed: correct the marked fields."), fields=errors)
    # Resources that the shop does not sell keep their amounts.
    kept = tuple(a if NAMES[i] in given else row.amounts[i] for i, a in enumerate(amounts))
    if kept != tuple(row.amounts):
        wanted["amounts"] = kept
    return wanted


def _tried(principal: Principal, row: Order, wanted: dict[str, Any]) -> ChangePreview:
    """Make the change, read its result, and roll it back."""
    with transaction.atomic():
        before = balance_of(row.tenant)
        new = order_change(principal=principal, order=row, **wanted)
        after = balance_of(row.tenant)
        outcome = ChangePreview(
            new.price,
            [part_line(part_of(part)) for part in new.parts],
            before.available - after.available,
            after.available,
            new.approver if new.state == OrderState.PENDING.value else "",
        )
        transaction.set_rollback(True)
    return outcome


def _key(row: Order, given: str) -> str:
    """Return a key that makes a form change the order only once, even if it is sent twice."""
    return f"change-{row.pk}-{given[:32]}" if given else ""
