"""Reads the name of a browser from the header `User-Agent` (pure)."""

from __future__ import annotations

_NAMES = (("Edg", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrom", "Chrome"), ("Safari/", "Safari"))
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS", "macOS"),
    ("CrOS", "ChromeOS"),
    ("Linux", "Linux"),
)
_LONGEST = 40  # characters


def browser_of(user_agent: str) -> str:
    """Return a text such as "Firefox, Linux". If the header names no known browser, return its beginning.

    The first part that the header contains counts, because Chrome also says Safari, and Android also says Linux.
    """

    def first(known: tuple[tuple[str, str], ...]) -> str:
        return next((name for part, name in known if part in user_agent), "")

    found = ", ".join(filter(None, (first(_NAMES), first(_SYSTEMS))))
    return found or user_agent[:_LONGEST] or "unknown browser"
