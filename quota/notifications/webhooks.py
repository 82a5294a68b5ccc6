"""Bodies and signatures of webhooks (pure).

Borg-Signature: t=1764028800,v1=<hex of HMAC-SHA256(secret, "1764028800." + body)>
For some time after a new secret was created, the header has two `v1`. The first is made with the new secret.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any


def secret_make() -> str:
    return f"whsec_{secrets.token_urlsafe(32)}"


def body_of(message: Mapping[str, Any]) -> bytes:
    """Return the body of a webhook: the same bytes for every attempt."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def sign(keys: Sequence[str], body: bytes, *, at_s: int) -> str:
    """Return the value of the header `Borg-Signature`, with one signature per key. `at_s`: seconds since 1970."""
    signed = f"{at_s}.".encode() + body
    marks = (hmac.new(key.encode(), signed, hashlib.sha256).hexdigest() for key in keys)
    return ",".join([f"t={at_s}", *(f"v1={mark}" for mark in marks)])
