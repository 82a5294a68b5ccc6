"""Errors as problem documents (RFC 9457): `code`, `detail`, and the fields and figures behind them."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.defaults import page_not_found
from rest_framework import exceptions, status
from rest_framework.response import Response

from quota.errors import Refused

CONTENT_TYPE = "application/problem+json"
_FOR_PROGRAMS = ("/api/", "/bns/", "/v3/")


def document(
    status_code: int,
    code: str,
    detail: str,
    *,
    fields: dict[str, str] | None = None,
    figures: dict[str, Any] | None = None,
    request_id: str = "",
) -> dict[str, Any]:
    """The body of a problem; `type` names the code, so it is stable while `detail` may be reworded."""
    body: dict[str, Any] = {"type": f"urn:borg:{code}", "status": status_code, "code": code, "detail": detail}
    if fields:
        body["fields"] = fields
    if figures:
        body["figures"] = figures
    if request_id:
        body["request_id"] = request_id
    return _writable(body)


def _writable(value: Any) -> Any:
    """The same where half a character that somebody sent, and a message repeats, is written as what it is."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_writable(name): _writable(part) for name, part in value.items()}
    return [_writable(part) for part in value] if isinstance(value, list | tuple) else value


def nowhere(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Addresses that lead nowhere: a document for programs, a page for people."""
    if not request.path.startswith(_FOR_PROGRAMS):
        return page_not_found(request, exception)
    detail = f"there is nothing at {request.path[:200]}; /api/v1/schema/ lists what there is"
    body = document(404, "not-found", detail, request_id=getattr(request, "borg_request_id", ""))
    return JsonResponse(body, status=404, content_type=CONTENT_TYPE)


def problem(error: Exception, context: dict[str, Any]) -> Response | None:
    """DRF's exception handler. None for what is no refusal: those become a 500 and a traceback in the log."""
    request_id = getattr(getattr(context.get("request"), "_request", None), "borg_request_id", "")
    headers: dict[str, str] = {}
    if isinstance(error, Refused):
        body = document(
            error.status, error.code, error.detail, fields=error.fields, figures=error.figures,
            request_id=request_id,
        )  # fmt: skip
        if "retry_after_s" in error.figures:
            headers["Retry-After"] = str(error.figures["retry_after_s"])
    elif isinstance(error, Http404):
        body = document(404, "not-found", "there is nothing here", request_id=request_id)
    elif isinstance(error, PermissionDenied):
        body = document(403, "forbidden", str(error) or "you may not do this", request_id=request_id)
    elif isinstance(error, RequestDataTooBig):
        body = document(
            413, "too-large", "the request body is larger than this server reads", request_id=request_id
        )
    elif isinstance(error, exceptions.ValidationError):
        fields = {str(name): _first(value) for name, value in _as_mapping(error.detail).items()}
        body = document(
            422,
            "invalid",
            "; ".join(f"{k}: {v}" for k, v in fields.items()),
            fields=fields,
            request_id=request_id,
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
