"""Request ids, which connect log lines, events and the answer of a request."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any, cast

import structlog
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest

from portal.settings.policies import PERMISSIONS

_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestMiddleware:
    """Use the caller's `X-Request-ID` if it is safe to log, or else create one, and return it in the answer.

    Every answer also lists the browser features that pages may not use (`Permissions-Policy`).
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        self._begin(request)
        return self._end(request, _unreadable(request) or self.get_response(request))

    def _begin(self, request: HttpRequest) -> None:
        given = request.headers.get("X-Request-ID", "")
        cast(Any, request).borg_request_id = given if _SAFE_ID.fullmatch(given) else uuid.uuid4().hex
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=getattr(request, "borg_request_id", ""))

    def _end(self, request: HttpRequest, response: HttpResponse) -> HttpResponse:
        response["X-Request-ID"] = getattr(request, "borg_request_id", "")
        response.headers.setdefault("Permissions-Policy", PERMISSIONS)
        return response


def _unreadable(request: HttpRequest) -> HttpResponse | None:
    """Reject a URL with a NUL character, which PostgreSQL cannot store. The API has its own error for that."""
    if request.path.startswith(("/api/", "/bns/")):
        return None
    if "\x00" in request.path or "%00" in request.META.get("QUERY_STRING", ""):
        return HttpResponseBadRequest(
            "The address contains a NUL character. Leave it out.\n", content_type="text/plain"
        )
    return None
