"""How a command ends when it can't do what was asked: exit status 1 refused or failed, 2 bad usage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REFUSED, BAD_USAGE = 1, 2


class Failed(Exception):
    """Shown as one sentence, with what was wrong with each field; as the problem document with `--json`.

    `passing`: nobody was reached, or the portal has trouble of its own: the same may work in a moment.
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        fields: Mapping[str, str] | None = None,
        document: dict[str, Any] | None = None,
        status: int = REFUSED,
        passing: bool = False,
    ) -> None:
        super().__init__(detail)
        self.code, self.detail, self.fields = code, detail, dict(fields or {})
        self.document = document or {
            "code": code, "detail": detail, **({"fields": self.fields} if self.fields else {}),
        }  # fmt: skip
        self.status, self.passing = status, passing


def bad_usage(detail: str, **fields: str) -> Failed:
    """What the caller typed makes no sense: nothing was sent."""
    return Failed("bad-usage", detail, fields=fields, status=BAD_USAGE)
