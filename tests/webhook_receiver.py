"""The check of a webhook's signature, as a receiver of webhooks implements it."""

from __future__ import annotations

import hmac

from quota.notifications.webhooks import sign


def is_signed(key: str, header: str, body: bytes, *, now_s: int, tolerance_s: int = 300) -> bool:
    """Return whether `header` is a fresh signature of `body` by `key`, as a receiver checks it."""
    given = [part.partition("=") for part in header.split(",")]
    times = [value for name, _, value in given if name == "t"]
    if len(times) != 1 or not (times[0].isascii() and times[0].isdecimal() and len(times[0]) < 12):
        return False
    at_s = int(times[0])
    wanted = sign([key], body, at_s=at_s).partition(",v1=")[2]
    known = any(hmac.compare_digest(value.encode(), wanted.encode()) for name, _, value in given if name == "v1")
    return known and abs(now_s - at_s) <= tolerance_s
