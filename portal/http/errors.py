"""Errors as problem documents (RFC 9457): `code`, `detail`, and the fields and figures behind them."""

from __future__ import annotations

import sys
from typing import Any, cast

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.views.defaults import page_not_found, permission_denied
from rest_framework import exceptions, status
from rest_framework.response import Response

from portal.http.outages import RETRY_AFTER_S, Outage, outage_of
from quota.vocabulary.errors import Rejected

CONTENT_TYPE = "application/problem+json"
_FOR_PROGRAMS = ("/api/", "/bns/", "/v3/", "/metrics", "/healthz", "/readyz", "/.well-known/")
_BROKEN = (
    "The portal could not answer because of an internal error. Its log has the error under this request's id. "
    "Report it to an SRE."
)


def document(
    status_code: int,
    code: str,
    detail: str,
    *,
    fields: dict[str, str] | None = None,
    figures: dict[str, Any] | None = None,
    request_id: str = "",
) -> dict[str, Any]:
    """Return the body of a problem. `type` contains the code, so it is stable even if `detail` is reworded."""
    body: dict[str, Any] = {"type": f"urn:borg:{code}", "status": status_code, "code": code, "detail": detail}
    if fields:
        body["fields"] = fields
    if figures:
        body["figures"] = figures
    if request_id:
        body["request_id"] = request_id
    return cast("dict[str, Any]", _writable(body))


def document_of(problem: Rejected, request_id: str) -> dict[str, Any]:
    return document(
        problem.status,
        problem.code,
        problem.detail,
        fields=problem.fields,
        figures=problem.figures,
        request_id=request_id,
    )


def _writable(value: Any) -> Any:
    """Return `value` with lone surrogates escaped: a message may repeat one that a client sent."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_writable(name): _writable(part) for name, part in value.items()}
    return [_writable(part) for part in value] if isinstance(value, list | tuple) else value


def nowhere(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer 404 for an unknown address: a problem document for programs, a page for people."""
    if not request.path.startswith(_FOR_PROGRAMS):
        return page_not_found(request, exception)
    detail = f"there is nothing at {request.path[:200]}; /api/v1/schema/ lists all addresses"
    body = document(404, "not-found", detail, request_id=getattr(request, "borg_request_id", ""))
    return JsonResponse(body, status=404, content_type=CONTENT_TYPE)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer 403 with a page."""
    return permission_denied(request, exception)


def broken(request: HttpRequest) -> HttpResponse:
    """Answer an error that no other handler covers: 503 for an outage, else 500.

    Programs get a problem document and people get a page. Nothing here needs the database. Django calls this for
    errors of views and of every middleware, inside the `except` block.
    """
    error = sys.exc_info()[1]
    found = outage_of(error) if error is not None else None
    request_id = getattr(request, "borg_request_id", "")
    if found is not None:
        return unavailable(found, path=request.path, request_id=request_id)
    if not request.path.startswith(_FOR_PROGRAMS):
        return HttpResponse(render_to_string("500.html"), status=500)
    body = document(500, "internal-error", _BROKEN, request_id=request_id)
    return JsonResponse(body, status=500, content_type=CONTENT_TYPE)


def unavailable(outage: Outage, *, path: str, request_id: str = "") -> HttpResponse:
    """Return the answer to a request for `path` during an outage, with Retry-After."""
    answer: HttpResponse
    if path.startswith(_FOR_PROGRAMS):
        body = document(outage.status, outage.code, outage.detail, request_id=request_id)
        answer = JsonResponse(body, status=outage.status, content_type=CONTENT_TYPE)
    else:
        answer = HttpResponse(render_to_string("503.html", {"outage": outage}), status=outage.status)
    answer["Retry-After"] = str(outage.retry_after_s)
    answer["Cache-Control"] = "no-store"
    if request_id:
        answer["X-Request-ID"] = request_id
    return answer


def problem(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler. None for errors that are not a rejection: `broken` answers those."""
    request_id = getattr(getattr(context.get("request"), "_request", None), "borg_request_id", "")
    headers: dict[str, str] = {}
    if isinstance(error, Rejected):
        if error.status == status.HTTP_503_SERVICE_UNAVAILABLE:
            if found := outage_of(error):
                error = Rejected(found.code, found.detail, status=found.status)
            headers["Retry-After"] = str(found.retry_after_s if found else RETRY_AFTER_S)
        body = document_of(error, request_id)
        if "retry_after_s" in error.figures:
            headers["Retry-After"] = str(error.figures["retry_after_s"])
    elif isinstance(error, Http404):
        body = document(404, "not-found", "there is nothing here", request_id=request_id)
    elif isinstance(error, PermissionDenied):
        body = document(403, "forbidden", str(error) or "you may not do this", request_id=request_id)
    elif isinstance(error, RequestDataTooBig):
        detail = "the request body is larger than this server accepts; send a smaller one"
        body = document(413, "too-large", detail, request_id=request_id)
    elif isinstance(error, exceptions.ValidationError):
        fields = {str(name): _first(value) for name, value in _as_mapping(error.detail).items()}
        body = document(
            422, "invalid", "; ".join(f"{k}: {v}" for k, v in fields.items()), fields=fields, request_id=request_id
        )
    elif isinstance(error, exceptions.APIException):
        code = str(error.default_code).replace("_", "-")
        body = document(error.status_code, code, str(error.detail), request_id=request_id)
        if isinstance(error, exceptions.NotAuthenticated | exceptions.AuthenticationFailed):
            body["status"] = status.HTTP_401_UNAUTHORIZED
            headers["WWW-Authenticate"] = 'Bearer realm="borg"'
    else:
        return None
    return Response(body, status=body["status"], content_type=CONTENT_TYPE, headers=headers)


def _as_mapping(detail: Any) -> dict[str, Any]:
    return detail if isinstance(detail, dict) else {"request": detail}


def _first(value: Any) -> str:
    while isinstance(value, list | dict) and value:
        value = value[0] if isinstance(value, list) else next(iter(value.values()))
    return str(value)
