"""Messages on the console's first page about market and tenant tasks that wait for an SRE."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from quota.models import CapabilityRequest, Order, OrderState, Shortfall


def add_market_messages(request: HttpRequest, site: str) -> None:
    """Add messages about oversold cells, waiting orders and capability requests. Three queries."""
    cells = sorted(set(Shortfall.objects.filter(closed_at__isnull=True).values_list("cell", flat=True)[:1000]))
    if cells:
        text = ngettext(
            "More prod quota is sold than the capacity of cell %(cells)s.",
            "More prod quota is sold than the capacity of cells %(cells)s.",
            len(cells),
        ) % {"cells": ", ".join(cells)}
        _add_message(request, messages.ERROR, text, f"{site}:quota_shortfall_changelist", "?open=yes", _("Show"))
    waiting = Order.objects.filter(state=OrderState.PENDING.value, approver="sre").count()
    if waiting:
        text = ngettext(
            "%(number)d order waits for an SRE to decide.", "%(number)d orders wait for an SRE to decide.", waiting
        ) % {"number": waiting}
        query = "?state__exact=pending&approver__exact=sre"
        _add_message(request, messages.WARNING, text, f"{site}:quota_order_changelist", query, _("Decide"))
    asked = CapabilityRequest.objects.filter(state="open").count()
    if asked:
        text = ngettext(
            "%(number)d request for a capability waits for an SRE to answer.",
            "%(number)d requests for capabilities wait for an SRE to answer.",
            asked,
        ) % {"number": asked}
        page = f"{site}:quota_capabilityrequest_changelist"
        _add_message(request, messages.WARNING, text, page, "?state__exact=open", _("Answer"))


def _add_message(request: HttpRequest, level: int, text: str, page: str, query: str, link: str) -> None:
    messages.add_message(
        request, level, format_html('{} <a class="underline" href="{}{}">{}</a>', text, reverse(page), query, link)
    )
