"""Template tags of the pages about quota and orders: amounts, prices, orders, and links to the shop."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from django import template
from django.urls import reverse
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.sigma.reads.order_state_texts import order_state_name
from portal.sigma.shop.period import QuotaPeriod
from portal.sigma.shop.quote import wish_of
from portal.sigma.shop.request_form import Wish, fields_of
from portal.sigma.shop.resource_labels import LABELS, band_words, wanted_words
from quota.models import Order, Quote, Record
from quota.pricing.price_formula import part_of
from quota.vocabulary.money import format_credits
from quota.vocabulary.resources import Vector

register = template.Library()


register.filter("wanted", wanted_words)
register.filter("band_help", band_words)


@register.simple_tag
def link_to(wish: Wish, *, amounts: Vector | None = None, first: dt.date | None = None, days: int | None = None) -> str:
    """Return a link to the shop whose form shows the request `wish`.

    `amounts`, `first` (the first day) and `days` (the number of days) replace values of the request.
    """
    period = wish.period if first is None else wish.period.moved(first)
    if days is not None:
        period = QuotaPeriod(period.first, period.first + dt.timedelta(days=days - 1))
    return shop_link(fields_of(replace(wish, amounts=amounts or wish.amounts, period=period)))


@register.simple_tag
def shop_link(fields: dict[str, str]) -> str:
    """Return a link to the shop. `fields`: the texts that the shop's form shows, by the name of the field."""
    return reverse("sigma:shop", query=fields)


@register.inclusion_tag("sigma/shop/parts.html")
def price_parts(parts: Iterable[Mapping[str, Any]], total: int) -> dict[str, Any]:
    """Return the template context that shows how a price is computed. `parts`: the stored `PricePart` of each resource,
    as a mapping. `total`: the price in micro-credits.
    """
    rows = [
        {
            "name": part.resource,
            "label": LABELS.get(part.resource, part.resource),
            "quantity": part.quantity,
            "hours": _short(float(part.hours)),
            "base": part.base,
            "band": _short(part.band_milli / 1000),
            "scarcity": _short(float(part.scarcity_milli) / 1000),
            "amount": part.amount,
        }
        for part in map(part_of, parts)
    ]
    return {"parts": rows, "total": total}


def _short(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".")


# The kinds of events of an order. "%s" is the author; events without an author happen automatically.
_EVENTS = {
    "order.placed": gettext_lazy("%s placed the order"),
    "order.passed-on": gettext_lazy("%s forwarded the order to the SREs"),
    "order.approved": gettext_lazy("%s approved the order"),
    "order.rejected": gettext_lazy("%s rejected the order"),
    "order.active": gettext_lazy("The order began, and its quota is in force"),
    "order.reminder": gettext_lazy("A reminder was sent that the order ends soon"),
    "order.renewed": gettext_lazy("%s renewed the order"),
    "order.renewal-failed": gettext_lazy("The order could not be renewed"),
    "order.expired": gettext_lazy("The order ended"),
    "order.cancelled": gettext_lazy("%s cancelled the order"),
    "order.changed": gettext_lazy("%s changed the order"),
    "order.transferred": gettext_lazy("%s transferred the order to another team"),
    "order.timed-out": gettext_lazy("The order was cancelled, because nobody decided in time"),
}
_TONES = {"pending": "wait", "approved": "good", "active": "good", "rejected": "bad"}


@register.simple_tag
def order_state(order: Order) -> SafeString:
    """Return the state of an order as a coloured label."""
    tone, text = _TONES.get(order.state, "plain"), order_state_name(order.state)
    return format_html('<span class="tag tag-{}">{}</span>', tone, text)


@register.simple_tag
def period_of(order: Order | Quote) -> str:
    """Return the first and the last day of an order or a quote, in the tenant's time zone: `1 Dec – 31 Dec 2026`."""
    period = wish_of(order).period
    first = "j M" if period.first.year == period.last.year else "j M Y"
    return f"{date_format(period.first, first)} – {date_format(period.last, 'j M Y')}"


@register.simple_tag
def order_replaces(order: Order) -> str:
    """Return the label of a link from `order` to the older order that `order` replaces."""
    labels = {
        "change": _("Older order (before the change)"),
        "renewal": _("Older order (before the renewal)"),
        "transfer": _("Older order (before the transfer)"),
    }
    return labels.get(order.replaced_as, _("Older order (before the replacement)"))


@register.simple_tag
def order_followed(order: Order) -> str:
    """Return the label of a link to `order`, for the page of the order that `order` replaced."""
    labels = {
        "change": _("Newer order (change)"),
        "renewal": _("Newer order (renewal)"),
        "transfer": _("Newer order (transfer)"),
    }
    return labels.get(order.replaced_as, _("Newer order (replacement)"))


@register.simple_tag
def order_event(record: Record) -> str:
    """Return an audit record of an order as a sentence with the author, the refund and the reason."""
    data = record.data
    if record.kind == "order.renewal-set":
        event = _("%s turned renewal on") if data.get("renew") else _("%s turned renewal off")
    else:
        event = str(_EVENTS.get(record.kind, record.kind))
    text = event % (data.get("by") or record.actor) if "%s" in event else event
    if data.get("back"):
        text += ", " + _("%s credits refunded") % format_credits(int(data["back"]), places=2)
    return f"{text}: {data['reason']}" if data.get("reason") else text
