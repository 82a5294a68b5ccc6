"""Rejections of requests. REST renders them as problem documents (RFC 9457), and the CLI as sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Rejected(Exception):
    """The rejection of a request. The request has changed nothing.

    `code`: a stable word for programs, such as `last-owner`. `detail`: a text for people, which says what was asked
    for, what was found and what to do. `fields`: the error of each invalid field, by the path of the field. `figures`:
    the numbers that explain the rejection, for JSON. `status`: the HTTP status.
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
    """Return a `Rejected` because the value of one field is not valid. `detail`: what is wrong with the value, or which
    values are accepted.
    """
    return Rejected(code, f"{field}: {detail}", fields={field: detail})


class NotFound(Rejected):
    """The rejection of a request for an object that does not exist, or that the caller may not see."""

    status = 404

    def __init__(self, what: str, name: str, *, known: Sequence[str] = ()) -> None:
        hint = f"; give one of {', '.join(known)}" if known else ""
        super().__init__("not-found", f"there is no {what} {name!r}{hint}", fields={what: f"no such {what}"})


class Forbidden(Rejected):
    """The rejection of an action for which the caller has no permission."""

    status = 403

    def __init__(self, action: str, detail: str) -> None:
        super().__init__("forbidden", detail, figures={"action": action})


class Conflict(Rejected):
    """The rejection of a request that the current state of an object does not allow."""

    status = 409
