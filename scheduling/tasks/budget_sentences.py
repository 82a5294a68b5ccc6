"""Sentences about disruption budgets: what a job allows, and what is left of it."""

from __future__ import annotations

import datetime as dt

from django.utils import timezone

from scheduling.core.explaining.wording import ENGLISH, Words
from scheduling.tasks.disruption_rates import DisruptionRate


def format_window(seconds: float, words: Words = ENGLISH) -> str:
    """Return the length of a window of time in the largest unit of which it is a multiple, for example `1 hour`."""
    number = round(seconds)
    if number % 86_400 == 0:
        return words.ngettext("%(number)d day", "%(number)d days", number // 86_400) % {"number": number // 86_400}
    if number % 3_600 == 0:
        return words.ngettext("%(number)d hour", "%(number)d hours", number // 3_600) % {"number": number // 3_600}
    if number % 60 == 0:
        return words.ngettext("%(number)d minute", "%(number)d minutes", number // 60) % {"number": number // 60}
    return words.gettext("%(number)d s") % {"number": number}


def rate_sentence(rate: DisruptionRate, words: Words = ENGLISH, *, needs: int = 1) -> str:
    """Return how many disruptions of a job are left now, and when the next one is possible. `needs`: how many tasks
    have to leave together.
    """
    window = format_window(rate.window_s, words)
    if 0 < rate.left < needs:
        text = words.gettext(
            "%(needs)d tasks in an alloc leave together, and %(left)d of %(most)d disruptions within %(window)s are"
            " left (disruption_budget.max_disruptions)."
        )
        return text % {"needs": needs, "left": rate.left, "most": rate.most, "window": window}
    if rate.left or rate.next_at is None:
        text = words.gettext(
            "%(left)d of %(most)d disruptions within %(window)s are left (disruption_budget.max_disruptions)."
        )
        return text % {"left": rate.left, "most": rate.most, "window": window}
    text = words.gettext(
        "No disruption is left: %(counted)d tasks were disrupted within %(window)s, and the job allows %(most)d"
        " (disruption_budget.max_disruptions). Drains evict no further task until %(time)s."
    )
    return text % {"counted": rate.counted, "most": rate.most, "window": window, "time": format_time(rate.next_at)}


def format_time(at: dt.datetime) -> str:
    """Return a time in the reader's time zone."""
    return f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S %Z}"


def budget_sentence(*, down: int, share: str, most: int, window_s: float, drains: int, words: Words = ENGLISH) -> str:
    """Return what the disruption budget of a job allows. `down`: how many tasks may be down at once; 0: no limit of the
    budget, so drains may have `drains` tasks down.
    `share`: the share of the tasks that this is, such as `10%`; empty if the job file has a number. `most`: how many
    disruptions may happen within `window_s` seconds; 0: no limit. The result is empty if nothing is limited.
    """
    parts = []
    if down:
        text = words.ngettext("at most %(down)d task down at once", "at most %(down)d tasks down at once", down)
        parts.append(text % {"down": down} + (f" ({share})" if share else ""))
    if most:
        text = words.ngettext(
            "at most %(most)d disruption within %(window)s", "at most %(most)d disruptions within %(window)s", most
        )
        parts.append(text % {"most": most, "window": format_window(window_s, words)})
    if not parts:
        return ""
    both = words.gettext(" and ").join(parts)
    text = words.gettext(
        "Drains and re-packing keep to the disruption budget, and preemption prefers other victims: %(rules)s."
    )
    sentence = text % {"rules": both}
    if not down:
        other = words.gettext("Drains may have %(drains)d tasks down at once (update.max_down).")
        sentence += " " + other % {"drains": drains}
    return sentence
