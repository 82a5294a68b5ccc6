"""What waits for an SRE in the market and at the tenants, shown on the console's first page."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from quota.models import CapabilityRequest, Order, OrderState, Shortfall


def notify_market(request: HttpRequest, site: str) -> None:
    """Messages: cells that are short of what is sold, orders and requests for capabilities that wait. Three queries."""
    cells = sorted(
        set(Shortfall.objects.filter(closed_at__isnull=True).values_list("cell", flat=True)[:1000])
    )
    if cells:
        told = ngettext(
            "More prod quota is sold than the capacity of cell %(cells)s.",
            "More prod quota is sold than the capacity of cells %(cells)s.",
            len(cells),
        ) % {"cells": ", ".join(cells)}
        _show(request, messages.ERROR, told, f"{site}:quota_shortfall_changelist", "?open=yes", _("Look"))
    waiting = Order.objects.filter(state=OrderState.PENDING.value, approver="sre").count()
    if waiting:
        told = ngettext(
            "%(number)d order waits for an SRE to decide.",
            "%(number)d orders wait for an SRE to decide.",
            waiting,
        ) % {"number": waiting}
        query = "?state__exact=pending&approver__exact=sre"
        _show(request, messages.WARNING, told, f"{site}:quota_order_changelist", query, _("Decide"))
    asked = CapabilityRequest.objects.filter(state="open").count()
    if asked:
        text = ngettext(
            "%(number)d request for a capability waits for an SRE to answer.",
            "%(number)d requests for capabilities wait for an SRE to answer.",
            asked,
        ) % {"number": asked}
        page = f"{site}:quota_capabilityrequest_changelist"
        _show(request, messages.WARNING, text, page, "?state__exact=open", _("Answer"))


def _show(request: HttpRequest, level: int, told: str, page: str, query: str, link: str) -> None:
    messages.add_message(
        request,
        level,
        format_html('{} <a class="underline" href="{}{}">{}</a>', told, reverse(page), query, link),
    )
