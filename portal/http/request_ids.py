"""Gives each request an id. The log lines, the journal events and the response of a request all contain its id."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any, cast

import structlog
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest

from portal.settings.security_headers import PERMISSIONS

_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestMiddleware:
    """A middleware that gives each request an id. The header `X-Request-ID` of the response contains the id.

    If the client sent an id that is safe to log, the middleware uses that id. Otherwise, it creates an id. It also adds
    the header `Permissions-Policy`, which lists the browser features that pages may not use.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        given = request.headers.get("X-Request-ID", "")
        request_id = given if _SAFE_ID.fullmatch(given) else uuid.uuid4().hex
        cast(Any, request).borg_request_id = request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        response = _unreadable(request) or self.get_response(request)
        response["X-Request-ID"] = request_id
        response.headers.setdefault("Permissions-Policy", PERMISSIONS)
        return response


def _unreadable(request: HttpRequest) -> HttpResponse | None:
    """Return an error response if the URL contains a NUL character, which PostgreSQL cannot store. Return None for all
    other URLs.

    URLs of the REST interface also get None, because the REST interface rejects such characters itself.
    """
    if request.path.startswith(("/api/", "/bns/")):
        return None
    if "\x00" in request.path or "%00" in request.META.get("QUERY_STRING", ""):
        return HttpResponseBadRequest(
            "The address contains a NUL character. Remove it from the address.\n", content_type="text/plain"
        )
    return None
