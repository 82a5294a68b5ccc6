"""The page where the user changes the amounts or the end of an order. A preview shows what the change costs."""

from __future__ import annotations

import uuid
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from portal.sigma.frame.page import given_in, page, problem_kept, rendered
from portal.sigma.reads.orders import order_numbered
from portal.sigma.shop.period import DAY, DayError, day_read
from portal.sigma.shop.quote import wish_of
from portal.sigma.shop.request_form import Wish, amounts_read, fields_of, known_only
from portal.sigma.shop.resource_labels import LABELS, size_fields
from quota import clock
from quota.billing.ledger import balance_of
from quota.market.orders import order_change
from quota.models import Order, OrderState
from quota.vocabulary.calendar import midnight
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Action, Principal, require
from quota.vocabulary.resources import NAMES

_FIELDS = {"csrfmiddlewaretoken", "until", "do", "key", "note", *LABELS}


@never_cache
@page
def change(request: HttpRequest, principal: Principal, number: int) -> HttpResponse:
    """Show the order (GET), preview a change (POST `do=plan`), or make the change (POST `do=change`)."""
    row = order_numbered(principal, number)
    require(principal, Action.QUOTA_BUY, tenant=row.tenant.name, cell=row.cell)
    wish = wish_of(row)
    given = fields_of(wish)
    given = {name: given[name] for name in ("until", *LABELS)}
    context: dict[str, Any] = {"order": row, "wish": wish, "given": given, "errors": {}}
    if request.method != "POST":
        return _form(request, context)
    given |= given_in(request.POST, *given)
    context |= given_in(request.POST, "note")
    with problem_kept(context):
        known_only(request.POST, _FIELDS)
        wanted = _wanted(row, wish, given, context["errors"])
        if request.POST.get("do") == "change":
            key = request.POST.get("key", "")[:32]  # if the same form is sent twice, the order changes only once
            key = key and f"change-{row.pk}-{key}"
            new = order_change(principal=principal, order=row, key=key, note=context["note"], **wanted)
            if new.state == OrderState.PENDING.value:
                text = _("Order %(new)d will replace order %(old)d when order %(new)d is approved.")
            else:
                text = _("Order %(new)d has replaced order %(old)d.")
            messages.success(request, text % {"new": new.pk, "old": row.pk})
            return redirect("sigma:order", number=new.pk)
        context["outcome"] = _preview(principal, row, wanted)
    return _form(request, context)


def _form(request: HttpRequest, context: dict[str, Any]) -> HttpResponse:
    context["sizes"] = size_fields(context["given"], context["errors"])
    context["key"] = request.POST.get("key") or uuid.uuid4().hex
    context["zone"] = context["wish"].zone.key
    context["today"] = clock.now().astimezone(context["wish"].zone).date()
    return rendered(request, "sigma/orders/change.html", context)


def _wanted(row: Order, wish: Wish, given: dict[str, str], errors: dict[str, str]) -> dict[str, Any]:
    """Return the new values of the order's fields that the form changes (`amounts`, `ends_at`). If a form field is
    wrong, add its error to `errors` and raise `Rejected`.
    """
    amounts = amounts_read(given, errors)
    wanted: dict[str, Any] = {}
    try:
        last = day_read(given["until"], wish.zone, ends=True)
    except DayError as error:
        errors["until"] = str(error)
    else:
        if last != wish.period.last:
            wanted["ends_at"] = midnight(last + DAY, wish.zone)
    if errors or amounts is None:
        raise Rejected("invalid", _("The order was not changed: correct the marked fields."), fields=errors)
    # The amounts of resources that the shop does not sell do not change.
    changed = tuple(a if NAMES[i] in given else row.amounts[i] for i, a in enumerate(amounts))
    if changed != tuple(row.amounts):
        wanted["amounts"] = changed
    return wanted


def _preview(principal: Principal, row: Order, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the price of a change, its effect on the budget, and who must approve it. The function makes the change in
    a transaction and rolls it back.
    """
    with transaction.atomic():
        before = balance_of(row.tenant)
        new = order_change(principal=principal, order=row, **wanted)
        after = balance_of(row.tenant)
        transaction.set_rollback(True)
    return {
        "price": new.price,
        "taken": max(0, before.available - after.available),
        "returned": max(0, after.available - before.available),
        "left": after.available,
        "waits": new.approver if new.state == OrderState.PENDING.value else "",
    }
