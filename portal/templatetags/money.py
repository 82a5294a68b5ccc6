"""How pages write amounts of money, and times in a tenant's own zone."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from quota.vocabulary.money import format_credits

register = template.Library()


@register.filter("credits")
def in_credits(micro: int | None) -> SafeString | str:
    """`{{ 1200500000|credits }}` is 1,200.50, to the last micro-credit; a dash for none."""
    return "–" if micro is None else format_html('<span class="amount">{}</span>', format_credits(micro))


@register.filter
def movement(micro: int) -> SafeString | str:
    """A change with its sign; nothing for none."""
    if not micro:
        return ""
    tone = "in" if micro > 0 else "out"
    sign = "+" if micro > 0 else ""
    return format_html('<span class="amount amount-{}">{}{}</span>', tone, sign, format_credits(micro))


@register.filter
def in_zone(moment: dt.datetime | None, zone: str) -> SafeString | str:
    """`2026-11-21 13:05` in a time zone, exact in its title. Not a `<time>`, of which scripts make "3 days ago"."""
    if moment is None:
        return "–"
    local = moment.astimezone(ZoneInfo(zone))
    return format_html('<span class="amount" title="{}">{}</span>', f"{local:%F %T %Z}", f"{local:%F %H:%M}")


@register.filter
def day_in_zone(moment: dt.datetime | None, zone: str) -> str:
    return "–" if moment is None else f"{moment.astimezone(ZoneInfo(zone)):%F}"
