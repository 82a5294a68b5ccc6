"""Bodies and signatures of webhooks (pure).

Borg-Signature: t=1764028800,v1=<hex of HMAC-SHA256(secret, "1764028800." + body)>
After a rotation of the secret there are two `v1`, the older one until its time is over.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

# How old a signature may be, for receivers: an answer to a replay of what somebody overheard.
TOLERANCE_S = 300


def secret_make() -> str:
    return f"whsec_{secrets.token_urlsafe(32)}"


def body_of(message: Mapping[str, Any]) -> bytes:
    """The same bytes for every attempt."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def sign(keys: Sequence[str], body: bytes, *, at_s: int) -> str:
    """The header's value; `at_s`: seconds since 1970."""
    signed = f"{at_s}.".encode() + body
    marks = (hmac.new(key.encode(), signed, hashlib.sha256).hexdigest() for key in keys)
    return ",".join([f"t={at_s}", *(f"v1={mark}" for mark in marks)])


def is_signed(key: str, header: str, body: bytes, *, now_s: int, tolerance_s: int = TOLERANCE_S) -> bool:
    """Return whether `header` is a fresh signature of `body` by `key`, as a receiver checks it."""
    given = [part.partition("=") for part in header.split(",")]
    times = [value for name, _, value in given if name == "t"]
    if len(times) != 1 or not (times[0].isascii() and times[0].isdecimal() and len(times[0]) < 12):
        return False
    at_s = int(times[0])
    wanted = sign([key], body, at_s=at_s).partition(",v1=")[2]
    known = any(hmac.compare_digest(value.encode(), wanted.encode()) for name, _, value in given if name == "v1")
    return known and abs(now_s - at_s) <= tolerance_s
