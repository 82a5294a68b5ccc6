"""Template filters for amounts of money, and for times in a tenant's time zone."""

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
    """Return `1,200.50` for `{{ 1200500000|credits }}`, exact to the micro-credit; a dash for None."""
    return "–" if micro is None else format_html('<span class="amount">{}</span>', format_credits(micro))


@register.filter
def movement(micro: int) -> SafeString | str:
    """Return a change with its sign; nothing for 0."""
    if not micro:
        return ""
    tone = "in" if micro > 0 else "out"
    sign = "+" if micro > 0 else ""
    return format_html('<span class="amount amount-{}">{}{}</span>', tone, sign, format_credits(micro))


@register.filter
def in_zone(moment: dt.datetime | None, zone: str) -> SafeString | str:
    """Return `2026-11-21 13:05` in a time zone, with the exact time as its title.

    The element is not a `<time>`, because the script turns those into "3 days ago".
    """
    if moment is None:
        return "–"
    local = moment.astimezone(ZoneInfo(zone))
    return format_html('<span class="amount" title="{}">{}</span>', f"{local:%F %T %Z}", f"{local:%F %H:%M}")


@register.filter
def day_in_zone(moment: dt.datetime | None, zone: str) -> str:
    return "–" if moment is None else f"{moment.astimezone(ZoneInfo(zone)):%F}"
