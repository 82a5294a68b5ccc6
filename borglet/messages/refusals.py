"""Rejections of messages, with their reasons."""

from __future__ import annotations

import msgspec


class Refusal(msgspec.Struct, frozen=True, tag="refusal", tag_field="type"):
    """Why a message was not accepted; nothing was changed. `retry` says whether coming back can help."""

    code: str
    field: str
    detail: str
    retry: bool = True


class MalformedMessage(ValueError):
    """A frame is not a message of this protocol; the text names the field."""
