"""Messages on the first page of the SRE console. They say which cells are oversold, and how many orders and requests
wait for a decision of an SRE.
"""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from quota.models import CapabilityRequest, Order, OrderState, Shortfall


def add_market_messages(request: HttpRequest, site: str) -> None:
    """Add up to three messages: one about oversold cells, one about orders that wait for an SRE, and one about open
    requests for capabilities.
    """

    def add(level: int, text: str, page: str, query: str, link: str) -> None:
        url = reverse(f"{site}:{page}") + query
        messages.add_message(request, level, format_html('{} <a class="underline" href="{}">{}</a>', text, url, link))

    cells = sorted(set(Shortfall.objects.filter(closed_at__isnull=True).values_list("cell", flat=True)[:1000]))
    if cells:
        text = ngettext(
            "The prod quota that was sold exceeds the capacity of cell %(cells)s.",
            "The prod quota that was sold exceeds the capacity of cells %(cells)s.",
            len(cells),
        )
        add(
            messages.ERROR,
            text % {"cells": ", ".join(cells)},
            "quota_shortfall_changelist",
            "?open=yes",
            _("Show the shortfalls"),
        )
    waiting = Order.objects.filter(state=OrderState.PENDING.value, approver="sre").count()
    if waiting:
        text = ngettext("%d order waits for an SRE's decision.", "%d orders wait for an SRE's decision.", waiting)
        query = "?state__exact=pending&approver__exact=sre"
        add(messages.WARNING, text % waiting, "quota_order_changelist", query, _("Show the orders"))
    asked = CapabilityRequest.objects.filter(state="open").count()
    if asked:
        text = ngettext(
            "%d request for a capability waits for an SRE's decision.",
            "%d requests for capabilities wait for an SRE's decision.",
            asked,
        )
        add(
            messages.WARNING,
            text % asked,
            "quota_capabilityrequest_changelist",
            "?state__exact=open",
            _("Show the requests"),
        )
