"""Template tags of the market pages: amounts, orders, and links to the shop's form."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

from django import template
from django.urls import reverse
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from portal.sigma.reads.market import zone_of
from portal.sigma.reads.order_words import kind_words
from portal.sigma.shop.confirm import wish_of
from portal.sigma.shop.period import QuotaPeriod
from portal.sigma.shop.sizes import band_words, wanted_words
from portal.sigma.shop.wish import Wish, fields_of
from quota.models import Order, PriorityBand, Quote, Record
from quota.vocabulary.money import format_credits
from quota.vocabulary.resources import Vector

register = template.Library()


@register.simple_tag
def wanted(amounts: Sequence[int]) -> str:
    """Return the amounts that are not zero as `4 cores, 16 GiB RAM`."""
    return wanted_words(amounts) or _("nothing")


@register.simple_tag
def band_help(band: PriorityBand | None) -> str:
    """Return a description of the band."""
    return band_words(band) if band is not None else ""


@register.simple_tag
def link_to(wish: Wish, *, amounts: Vector | None = None, first: dt.date | None = None, days: int | None = None) -> str:
    """Return a link to the shop with this wish, partly changed."""
    period = wish.period if first is None else wish.period.moved(first)
    if days is not None:
        period = QuotaPeriod(period.first, period.first + dt.timedelta(days=days - 1))
    return shop_link(fields_of(wish, amounts=amounts or wish.amounts, period=period))


@register.simple_tag
def shop_link(fields: dict[str, str]) -> str:
    """Return a link to the shop with its form filled in."""
    return f"{reverse('sigma:shop')}?{urlencode(fields)}"


@register.simple_tag
def wanted_or_dash(amounts: Sequence[int]) -> str:
    return wanted_words(amounts) or "–"


@register.simple_tag
def signed(micro: int) -> SafeString | str:
    """Return a change of money as `+12.50` or `−3.00`; a dash for 0."""
    if not micro:
        return "–"
    return f"{'+' if micro > 0 else '−'}{format_credits(abs(micro))}"


@register.simple_tag
def signed_away(micro: int) -> str:
    """Return an amount without its sign, for a line that names the direction."""
    return format_credits(abs(micro))


_STATES = {
    "": gettext_lazy("any"),
    "waiting": gettext_lazy("waiting"),
    "draft": gettext_lazy("draft"),
    "pending": gettext_lazy("waits for approval"),
    "approved": gettext_lazy("approved"),
    "active": gettext_lazy("active"),
    "expired": gettext_lazy("ended"),
    "rejected": gettext_lazy("rejected"),
    "cancelled": gettext_lazy("cancelled"),
}
# Events that happen automatically, without a user.
_UNASKED = {"order.active", "order.expired", "order.reminder", "order.timed-out", "order.renewal-failed"}
_TONES = {"pending": "wait", "approved": "good", "active": "good", "rejected": "bad"}


@register.simple_tag
def order_state(order: Order) -> SafeString:
    """Return the state of an order as a coloured label."""
    tone, text = _TONES.get(order.state, "plain"), _STATES.get(order.state, order.state)
    return format_html('<span class="tag tag-{}">{}</span>', tone, text)


@register.simple_tag
def order_state_name(name: str) -> str:
    return str(_STATES.get(name, name))


@register.simple_tag
def period_of(order: Order | Quote) -> str:
    """Return the first and the last day in the tenant's time zone."""
    period = wish_of(order, zone_of(order.tenant)).period
    first = "j M" if period.first.year == period.last.year else "j M Y"
    return f"{date_format(period.first, first)} – {date_format(period.last, 'j M Y')}"


@register.simple_tag
def order_replaces(order: Order) -> str:
    labels = {"change": _("Changes"), "renewal": _("Renews"), "transfer": _("Transferred from")}
    return labels.get(order.replaced_as, _("Replaces"))


@register.simple_tag
def order_followed(order: Order) -> str:
    labels = {"change": _("Changed to"), "renewal": _("Renewed as"), "transfer": _("Transferred as")}
    return labels.get(order.replaced_as, _("Replaced by"))


@register.simple_tag
def order_event(record: Record) -> str:
    """Return an event of an order, with its author and the reason."""
    event = kind_words(record.kind)
    data = record.data
    if record.kind == "order.renewal-set":
        event = _("renewal switched on") if data.get("renew") else _("renewal switched off")
    by = str(data.get("by") or "") or record.actor
    text = event if record.kind in _UNASKED else _("%(what)s by %(who)s") % {"what": event, "who": by}
    if data.get("back"):
        text += ", " + _("%s credits refunded") % format_credits(int(data["back"]), places=2)
    return f"{text}: {data['reason']}" if data.get("reason") else text


@register.filter
def clock(moment: dt.datetime, zone: str) -> str:
    """Return an instant in the tenant's time zone: `22 Nov, 14:05`."""
    return date_format(moment.astimezone(ZoneInfo(zone)), "j M, H:i")
