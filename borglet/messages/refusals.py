"""Messages that reject another message, and the error for a message that is not valid."""

from __future__ import annotations

import msgspec


class Refusal(msgspec.Struct, frozen=True, tag="refusal", tag_field="type"):
    """The rejection of a message. The rejected message has changed nothing. `retry`: whether the same message may
    succeed later.
    """

    code: str
    field: str
    detail: str
    retry: bool = True


class MalformedMessage(ValueError):
    """The error for a frame that is not a message of this protocol. The text names the wrong field."""
