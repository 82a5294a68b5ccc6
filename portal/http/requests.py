"""Request ids, which connect log lines, events and the answer of a request."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import Any, cast

import structlog
from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest

from portal.http.errors import LaterPage
from portal.settings.policies import PERMISSIONS

_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestMiddleware:
    """Use the caller's `X-Request-ID` if it is safe to log, or else create one, and return it in the answer.

    Every answer also lists the browser features that pages may not use (`Permissions-Policy`).
    """

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        if iscoroutinefunction(self):
            return self._handle(request)
        self._begin(request)
        response = _unreadable(request) or self.get_response(request)
        return self._end(request, response.page() if isinstance(response, LaterPage) else response)

    async def _handle(self, request: HttpRequest) -> HttpResponse:
        self._begin(request)
        response = _unreadable(request) or await self.get_response(request)  # type: ignore[misc]
        if isinstance(response, LaterPage):
            response = await sync_to_async(response.page)()
        return self._end(request, response)

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
    """Reject an address with a NUL character, which PostgreSQL cannot store. The API has its own error for that."""
    if request.path.startswith(("/api/", "/bns/")):
        return None
    if "\x00" in request.path or "%00" in request.META.get("QUERY_STRING", ""):
        return HttpResponseBadRequest(
            "The address contains a NUL character. Leave it out.\n", content_type="text/plain"
        )
    return None
