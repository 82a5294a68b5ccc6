"""Paths of the API."""

from __future__ import annotations

from urllib.parse import quote


def part(text: object) -> str:
    """Return `text` with percent-encoding, for use as one segment of a URL path."""
    return quote(str(text), safe="", errors="surrogateescape")
