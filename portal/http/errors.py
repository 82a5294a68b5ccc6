"""Errors as problem documents (RFC 9457): `code`, `detail`, the rejected fields, and the numbers that explain the
error.
"""

from __future__ import annotations

import sys
from typing import Any, cast

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.views.defaults import page_not_found
from rest_framework import exceptions
from rest_framework.response import Response

from portal.http.outages import RETRY_AFTER_S, Outage, outage_of
from quota.vocabulary.errors import Rejected

CONTENT_TYPE = "application/problem+json"
_FOR_PROGRAMS = ("/api/", "/bns/", "/v3/", "/metrics", "/healthz", "/readyz", "/.well-known/")
_BROKEN = (
    "The portal could not answer because of an internal error. Its log has the error under the id of this request. "
    "Report the id to an SRE."
)


def document(problem: Rejected, request_id: str) -> dict[str, Any]:
    """Return the body of a problem. `type` contains the code, so `type` stays the same if `detail` is reworded."""
    body = {
        "type": f"urn:borg:{problem.code}",
        "status": problem.status,
        "code": problem.code,
        "detail": problem.detail,
        **({"fields": problem.fields} if problem.fields else {}),
        **({"figures": problem.figures} if problem.figures else {}),
        **({"request_id": request_id} if request_id else {}),
    }
    return cast("dict[str, Any]", _writable(body))


def _writable(value: Any) -> Any:
    """Return `value` with all lone surrogates escaped, because UTF-8 cannot encode them.

    An error message may repeat text of a client that contains a lone surrogate.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_writable(name): _writable(part) for name, part in value.items()}
    return [_writable(part) for part in value] if isinstance(value, list | tuple) else value


def _json(problem: Rejected, request_id: str) -> HttpResponse:
    return JsonResponse(document(problem, request_id), status=problem.status, content_type=CONTENT_TYPE)


def nowhere(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Answer 404 for an unknown address: a problem document for programs, a page for people."""
    if not request.path.startswith(_FOR_PROGRAMS):
        return page_not_found(request, exception)
    detail = f"The address {request.path[:200]} does not exist. /api/v1/schema/ lists all addresses."
    return _json(Rejected("not-found", detail, status=404), getattr(request, "borg_request_id", ""))


def broken(request: HttpRequest) -> HttpResponse:
    """Answer an error that no other handler covers: 503 for an outage, or else 500.

    Programs get a problem document and people get a page. This function does not need the database. Django calls it
    for errors of views and of every middleware, inside the `except` block.
    """
    error = sys.exc_info()[1]
    request_id = getattr(request, "borg_request_id", "")
    if error is not None and (found := outage_of(error)):
        return unavailable(found, path=request.path, request_id=request_id)
    if not request.path.startswith(_FOR_PROGRAMS):
        return HttpResponse(render_to_string("500.html"), status=500)
    return _json(Rejected("internal-error", _BROKEN, status=500), request_id)


def unavailable(outage: Outage, *, path: str, request_id: str = "") -> HttpResponse:
    """Return the answer to a request for `path` during an outage, with Retry-After."""
    if path.startswith(_FOR_PROGRAMS):
        answer = _json(Rejected(outage.code, outage.detail, status=outage.status), request_id)
    else:
        answer = HttpResponse(render_to_string("503.html", {"outage": outage}), status=outage.status)
    answer["Retry-After"] = str(outage.retry_after_s)
    answer["Cache-Control"] = "no-store"
    if request_id:
        answer["X-Request-ID"] = request_id
    return answer


def problem(error: Exception, context: dict[str, Any]) -> Response | None:
    """Return the REST answer to an error, or None for a fault of the server, which the view `broken` answers. DRF calls
    this function.
    """
    rejected = _rejection_of(error)
    if rejected is None:
        return None
    headers = {}
    if rejected.status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="borg"'
    if rejected.status == 503:
        found = outage_of(error)
        if found is not None:
            rejected = Rejected(found.code, found.detail, status=found.status)
        headers["Retry-After"] = str(found.retry_after_s if found else RETRY_AFTER_S)
    if "retry_after_s" in rejected.figures:
        headers["Retry-After"] = str(rejected.figures["retry_after_s"])
    request_id = getattr(getattr(context.get("request"), "_request", None), "borg_request_id", "")
    body = document(rejected, request_id)
    return Response(body, status=rejected.status, content_type=CONTENT_TYPE, headers=headers)


def _rejection_of(error: Exception) -> Rejected | None:
    """Return the rejection that describes an error of a view, or None if the error is a fault of the server."""
    match error:
        case Rejected():
            return error
        case Http404():
            return Rejected("not-found", "This address does not exist. Check the names in it.", status=404)
        case PermissionDenied():
            return Rejected("forbidden", str(error) or "You do not have permission for this request.", status=403)
        case RequestDataTooBig():
            detail = "The request body is larger than this server accepts. Send a smaller body."
            return Rejected("too-large", detail, status=413)
        case exceptions.ValidationError():
            found = error.detail if isinstance(error.detail, dict) else {"request": error.detail}
            fields = {str(name): _first(value) for name, value in found.items()}
            return Rejected("invalid", "; ".join(f"{name}: {wrong}" for name, wrong in fields.items()), fields=fields)
        case exceptions.APIException():
            signed_out = isinstance(error, exceptions.NotAuthenticated | exceptions.AuthenticationFailed)
            code = str(error.default_code).replace("_", "-")
            return Rejected(code, str(error.detail), status=401 if signed_out else error.status_code)
    return None


def _first(value: Any) -> str:
    """Return the first text in nested lists and mappings of errors."""
    while isinstance(value, list | dict) and value:
        value = value[0] if isinstance(value, list) else next(iter(value.values()))
    return str(value)
