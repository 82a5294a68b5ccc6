"""Rejections of messages, with their reasons."""

from __future__ import annotations

import msgspec


class Refusal(msgspec.Struct, frozen=True, tag="refusal", tag_field="type"):
    """The reason why a message was rejected; nothing was changed. `retry`: whether a new attempt can help."""

    code: str
    field: str
    detail: str
    retry: bool = True


class MalformedMessage(ValueError):
    """A frame is not a message of this protocol; the text names the field."""
