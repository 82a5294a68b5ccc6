"""Template tags for times, quantities, amounts of money, states, bars and the navigation."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from django import template
from django.template.context import Context
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from portal.sigma.frame.navigation import SECTIONS, section_of
from portal.sigma.reads.event_sentences import exit_of
from portal.sigma.reads.journal import EventSentence
from quota.notifications.inbox import UNREAD_SHOWN, unread_count
from quota.tenancy.authentication import principal_of_user
from quota.vocabulary import money as amounts
from quota.vocabulary.resources import NAMES, describe, format_vector
from scheduling.core.vocabulary.job_health import JobHealth
from scheduling.core.vocabulary.requirement import split_task_id
from scheduling.jobs.health import health_of
from scheduling.models import Job
from scheduling.services.outcomes import ServiceState

register = template.Library()

# The units of relative times, each with its length in seconds. Lists have many times, and a lazy text is slow.
_UNITS: tuple[tuple[int, Callable[[int], str]], ...] = (
    (86400, lambda number: ngettext("%d day", "%d days", number)),
    (3600, lambda number: ngettext("%d hr.", "%d hr.", number)),
    (60, lambda number: ngettext("%d min.", "%d min.", number)),
    (1, lambda number: ngettext("%d sec.", "%d sec.", number)),
)
# The tone of a state sets the colour of its label. The label always shows the state as a word too.
_TONES = {
    word: tone
    for tone, words in {
        "good": ("up", "running", "healthy", "done", "finished", "active", "submitted", "succeeded"),
        "wait": (
            *("pending", "assigned", "installing", "starting", "stopping", "draining", "open"),
            *("warning", "updating", "degraded", "suspended", "skipped", "paused", "ready", "cancelling"),
        ),
        "bad": (
            *("backoff", "down", "failed", "unhealthy", "stopped", "rolled-back", "expired", "revoked"),
            *("urgent", "failing", "crashing", "missed", "rejected", "cancelled"),
        ),
    }.items()
    for word in words
}


@register.filter
def ago(value: dt.datetime | None) -> SafeString | str:
    """Return an HTML element with a time relative to now, such as `3 min. ago`. Its tooltip is the exact time. A script
    in the browser updates the text.
    """
    if value is None:
        return "–"
    text = _relative(value, timezone.now())
    return format_html('<time datetime="{}" title="{}">{}</time>', value.isoformat(), exact(value), text)


@register.filter
def exact(value: dt.datetime | None) -> str:
    """Return the exact time with its time zone, or a dash for None."""
    return timezone.localtime(value).strftime("%Y-%m-%d %H:%M:%S %Z") if value else "–"


@register.filter
def resources(vector: Sequence[int]) -> str:
    """Format the amounts of all resources in a vector that are not 0, such as `1 core, 4 GiB of RAM`."""
    return format_vector(vector)


@register.filter
def quantity(value: int, resource: str) -> str:
    """Format an amount of a resource with its unit: `{{ 67108864|quantity:"ram" }}` shows `64 MiB`."""
    return describe(NAMES.index(resource), int(value))


@register.filter
def number(value: int) -> str:
    """Format a count with commas between thousands: `{{ 150000|number }}` shows `150,000`."""
    return f"{int(value):,}"


@register.filter
def money(micro: int | None) -> SafeString | str:
    """Format an amount of micro-credits in credits: `{{ 12500000|money }}` shows `12.50`. If the amount was rounded,
    the tooltip shows the exact amount.
    """
    if micro is None:
        return "–"
    shown, whole = amounts.format_credits(int(micro), places=2), amounts.format_credits(int(micro))
    return shown if shown == whole else format_html('<span title="{}">{}</span>', whole, shown)


@register.filter
def money_exact(micro: int | None) -> str:
    """Return an amount in credits without rounding, or a dash for None. `micro`: the amount in micro-credits."""
    return "–" if micro is None else amounts.format_credits(int(micro))


@register.filter("credits")
def in_credits(micro: int | None) -> SafeString | str:
    """Format micro-credits as exact credits, aligned in tables: `{{ 1200500000|credits }}` shows `1,200.50`."""
    return format_html('<span class="amount">{}</span>', money_exact(micro))


@register.filter
def movement(micro: int) -> SafeString | str:
    """Return a change of money with its sign, such as `+12.50`, or "" for 0."""
    if not micro:
        return ""
    tone, sign = ("in", "+") if micro > 0 else ("out", "")
    return format_html('<span class="amount amount-{}">{}{}</span>', tone, sign, amounts.format_credits(micro))


@register.filter
def in_zone(moment: dt.datetime | None, zone: str) -> SafeString | str:
    """Return a time such as `2026-11-21 13:05` in the time zone `zone`. The tooltip shows the seconds and the zone.

    The result is not a `<time>` element, because a script replaces the text of `<time>` elements by relative times.
    """
    if moment is None:
        return "–"
    local = moment.astimezone(ZoneInfo(zone))
    return format_html('<span class="amount" title="{}">{}</span>', f"{local:%F %T %Z}", f"{local:%F %H:%M}")


register.filter("exit_words", exit_of)


@register.filter
def breakable(name: str) -> SafeString:
    """Return a long name as HTML in which lines may break only after dots and slashes."""
    return format_html_join(SafeString("<wbr>"), "{}", ((part,) for part in re.findall(r"[^./]*[./]?", name) if part))


@register.filter
def task_index(identity: int) -> int:
    """Return the index that a task has in its job. `identity`: the id of the task."""
    return split_task_id(identity)[1]


@register.simple_tag
def machine_link(cell: str, hostname: str) -> SafeString | str:
    """Return a link to the page of a machine, or a dash if there is no machine."""
    if not hostname or not cell:
        return hostname or "–"
    return format_html('<a href="{}">{}</a>', reverse("sigma:machine", args=[cell, hostname]), hostname)


@register.simple_tag(takes_context=True)
def event_sentence(context: Context, row: EventSentence) -> SafeString | str:
    """Return the sentence of an event, in which the name of the machine is a link to its page. The cell is that of the
    page, or of its job.
    """
    job = context.get("job")
    cell = job.cell if job is not None else context.get("cell")
    # The name of another thing may contain the hostname, so it must stand alone.
    parts = re.split(rf"(?<![\w.-]){re.escape(row.hostname)}(?![\w-])", row.sentence, maxsplit=1)
    if not row.hostname or cell is None or len(parts) == 1:
        return row.sentence
    return format_html("{}{}{}", parts[0], machine_link(cell.name, row.hostname), parts[1])


@register.simple_tag
def state(word: str, text: str = "") -> SafeString | str:
    """Return a state as a coloured label. `text`: the text of the label, if it is not the name of the state."""
    if not word:
        return "–"
    return format_html('<span class="tag tag-{}">{}</span>', _TONES.get(word, "plain"), text or _(word))


# A stopped service is not in trouble, unlike a stopped update.
_OF_SERVICES = {
    ServiceState.HEALTHY: ("good", gettext_lazy("healthy")),
    ServiceState.DEGRADED: ("wait", gettext_lazy("degraded")),
    ServiceState.DOWN: ("bad", gettext_lazy("down")),
    ServiceState.PARTLY_STOPPED: ("wait", gettext_lazy("partly stopped")),
    ServiceState.STOPPED: ("plain", gettext_lazy("stopped")),
}


@register.simple_tag
def service_state(found: ServiceState) -> SafeString:
    """Return the state of a service as a coloured label."""
    return format_html('<span class="tag tag-{}">{}</span>', *_OF_SERVICES[found])


@register.simple_tag
def state_name(word: str) -> str:
    """Return the name of a state in the language of the page."""
    return _(word)


@register.simple_tag
def health(job: Job) -> SafeString | str:
    """Return the health of a job as a coloured label. For a job that has ended, the label shows its outcome."""
    found = health_of(job).state
    word = (job.outcome or job.state) if found is JobHealth.ENDED else found.value
    return state(word)


# Pages of machines have hundreds of bars, and a template for each took most of the time of such a page.
_BAR = (
    '<div class="bar"><div class="bar-text">{}<span>{} <span class="soft">/ {}</span></span></div>'
    '<progress class="bar-line bar-{}" max="100" value="{}" aria-label="{}">{} %</progress></div>'
)


@register.simple_tag
def bar(label: str, used: int, total: int, resource: str) -> SafeString:
    """Return a bar that shows which part of `total` is used, and both amounts. `total`: 0 if nothing is granted."""
    percent = min(100.0, 100.0 * used / total) if total else (100.0 if used else 0.0)
    index = NAMES.index(resource)
    of_used, of_total = describe(index, used), describe(index, total)
    tone = "bad" if used > total else "wait" if percent >= 90 else "good"
    title = format_html("<span>{}</span>", label) if label else ""
    told = _("%(what)s: %(used)s of %(total)s") % {"what": label or resource, "used": of_used, "total": of_total}
    return format_html(_BAR, title, of_used, of_total, tone, round(percent), told, round(percent))


@register.simple_tag
def options(names: Sequence[object], chosen: object) -> SafeString:
    """Return the `<option>` elements for these names. The one that equals `chosen` is selected."""
    return format_html_join(
        "", "<option{}>{}</option>", ((SafeString(" selected") if one == chosen else "", one) for one in names)
    )


@register.simple_tag
def titled_options(choices: Sequence[tuple[object, str]]) -> SafeString:
    """Return the `<option>` elements for these choices. Each choice is a pair of a value and its title."""
    return format_html_join("", '<option value="{}">{}</option>', choices)


@register.inclusion_tag("sigma/parts/navigation.html", takes_context=True)
def navigation(context: Context) -> dict[str, Any]:
    """Return the template context of the navigation: all sections, and the pages of the current section."""
    here = _page_of(context)
    section = section_of(here)
    pages = [
        {"title": link.title, "url": reverse(f"sigma:{link.name}"), "current": link.holds(here)}
        for link in (section.links if section is not None else ())
    ]
    return {
        "title": section.title if section is not None else "",
        "pages": pages if len(pages) > 1 else [],
        "sections": [
            {
                "title": one.title,
                "url": reverse(f"sigma:{one.links[0].name}"),
                "current": "" if one != section else "page" if one.links[0].holds(here) else "true",
            }
            for one in SECTIONS
        ],
    }


@register.inclusion_tag("sigma/parts/bell.html", takes_context=True)
def bell(context: Context) -> dict[str, Any]:
    """Return the template context of the link to the notices, with the number of unread notices. Makes one query, and
    on account pages two.
    """
    request = context.get("request")
    principal = getattr(request, "borg_principal", None)
    if principal is None and request is not None and request.user.is_authenticated:
        principal = principal_of_user(request.user)  # account pages of allauth have no principal
    count = getattr(request, "borg_unread", None)  # the home page has counted already
    if count is None:
        count = unread_count(principal) if principal is not None else 0
    return {
        "news": f"{UNREAD_SHOWN}+" if count > UNREAD_SHOWN else count,
        "current": {"notices": "page", "channels": "true", "channel": "true"}.get(_page_of(context), ""),
    }


@register.simple_tag(takes_context=True)
def current(context: Context, *names: str) -> SafeString | str:
    """Return ` aria-current="page"` if the current page is one of `names`."""
    return SafeString(' aria-current="page"') if _page_of(context) in names else ""


def _page_of(context: Context) -> str:
    """Return the URL name of the current page. Return "" if the page is not one of the pages for tenants."""
    match = getattr(context.get("request"), "resolver_match", None)
    return (match.url_name or "") if match is not None and match.namespace == "sigma" else ""


def _relative(value: dt.datetime, now: dt.datetime) -> str:
    seconds = (now - value).total_seconds()
    span = int(abs(seconds))
    size, unit = next((pair for pair in _UNITS if span >= pair[0]), _UNITS[-1])
    text = unit(span // size) % (span // size)
    return _("%s ago") % text if seconds >= 0 else _("in %s") % text
