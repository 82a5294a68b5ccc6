"""Describes the problems of a job's tasks in sentences, for REST, CLI and portal. The portal passes its translations as
arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduling.core.explaining.wording import ENGLISH, Words
from scheduling.core.vocabulary.job_health import Troubles


def format_troubles(troubles: Troubles, *, living: int, words: Words = ENGLISH) -> list[str]:
    """Return one sentence for each kind of problem; crashes come first. `living`: how many tasks of the job are not
    dead.
    """
    _, ngettext = words.gettext, words.ngettext
    detail = []
    if troubles.crashing:
        text = ngettext(
            "%(number)d of %(living)d tasks keeps crashing.",
            "%(number)d of %(living)d tasks keep crashing.",
            troubles.crashing,
        )
        detail.append(text % {"number": troubles.crashing, "living": living})
    if troubles.unhealthy:
        text = ngettext(
            "%(number)d of %(living)d tasks runs, and its health check fails.",
            "%(number)d of %(living)d tasks run, and their health checks fail.",
            troubles.unhealthy,
        )
        detail.append(text % {"number": troubles.unhealthy, "living": living})
    if troubles.failed:
        text = ngettext(
            "%d task failed permanently and is not started again.",
            "%d tasks failed permanently and are not started again.",
            troubles.failed,
        )
        detail.append(text % troubles.failed)
    return detail


def format_crash(
    index: int, *, machine: str, restarts: int, exit_text: str, detail: str = "", words: Words = ENGLISH
) -> str:
    """Return a sentence that says where the task `index` crashes, and how its processes last ended."""
    _, ngettext = words.gettext, words.ngettext
    where = (
        _("Task %(index)d on %(machine)s") % {"index": index, "machine": machine}
        if machine
        else _("Task %d waits for another machine") % index
    )
    parts = [exit_text or detail]
    if restarts:
        parts.append(ngettext("%d restart", "%d restarts", restarts) % restarts)
    message = ", ".join(part for part in parts if part)
    return f"{where}: {message}." if message else f"{where}."


def exit_words(ended: Mapping[str, Any] | None, words: Words = ENGLISH) -> str:
    """Return a text that says how processes ended, such as "exit status 1" or "signal 9 (out of memory)"."""
    _ = words.gettext
    if not ended:
        return ""
    cause = str(ended.get("cause", "")).replace("-", " ")
    if ended.get("signal"):
        text = _("signal %d") % ended["signal"]
    elif ended.get("status") is not None:
        text = _("exit status %d") % ended["status"]
    else:
        return cause
    return text if cause in ("exited", "signaled") else f"{text} ({cause})"
