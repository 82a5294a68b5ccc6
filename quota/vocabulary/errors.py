"""Rejections: one class, which REST renders as RFC 9457 and the CLI as a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Rejected(Exception):
    """A request that breaks a rule. Nothing was changed.

    `code`: stable, kebab-case, for programs. `detail`: one sentence for people: what was wanted, what was
    found, what to do. `fields`: `{path of the field: what is wrong with it}`. `figures`: the numbers behind
    the verdict, JSON-ready. `status`: the HTTP status that fits.
    """

    status = 422

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        fields: Mapping[str, str] | None = None,
        figures: Mapping[str, Any] | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.fields = dict(fields or {})
        self.figures = dict(figures or {})
        if status is not None:
            self.status = status


def invalid(field: str, detail: str, code: str = "invalid") -> Rejected:
    """Return the rejection of one field. `detail`: what is wrong with it, or what it accepts."""
    return Rejected(code, f"{field}: {detail}", fields={field: detail})


class NotFound(Rejected):
    """The thing named does not exist, or the caller may not know that it does."""

    status = 404

    def __init__(self, what: str, name: str, *, known: Sequence[str] = ()) -> None:
        hint = f"; there is {', '.join(known)}" if known else ""
        super().__init__("not-found", f"no {what} {name!r}{hint}", fields={what: f"no such {what}"})


class Forbidden(Rejected):
    """The caller is known and may not do this."""

    status = 403

    def __init__(self, action: str, detail: str) -> None:
        super().__init__("forbidden", detail, figures={"action": action})


class Conflict(Rejected):
    """The state of the thing does not allow this now."""

    status = 409
