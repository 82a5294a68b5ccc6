"""How a command ends when it can't do what was asked: exit status 1 refused or failed, 2 bad usage."""

from __future__ import annotations

from typing import Any


class Failed(Exception):
    """Shown as one sentence, with what was wrong with each field; as the problem document with `--json`."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        fields: dict[str, str] | None = None,
        document: dict[str, Any] | None = None,
        status: int = 1,
    ) -> None:
        super().__init__(detail)
        self.code, self.detail, self.fields = code, detail, fields or {}
        self.document = document or {"code": code, "detail": detail, **({"fields": fields} if fields else {})}
        self.status = status
