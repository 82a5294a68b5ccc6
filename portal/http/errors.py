"""Returns errors as problem documents (RFC 9457). A document contains the code of the error, a message, the wrong
fields, and numbers that explain the error.
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
FOR_PROGRAMS = ("/api/", "/bns/", "/v3/", "/metrics", "/healthz", "/readyz", "/.well-known/")
_BROKEN = (
    "The portal could not answer because of an internal error. Its log has the error under the id of this request. "
    "Report the id to an SRE."
)


def document(problem: Rejected, request_id: str) -> dict[str, Any]:
    """Return the problem document of an error as a dictionary. `type` contains the code of the error and not the
    message, so `type` does not change if the message is reworded.
    """
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
    """Return `value` with all lone surrogates (invalid characters) escaped, because UTF-8 cannot encode them.

    An error message can contain such characters if it repeats text from a client.
    """
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_writable(name): _writable(part) for name, part in value.items()}
    return [_writable(part) for part in value] if isinstance(value, list | tuple) else value


def _json(problem: Rejected, request_id: str) -> HttpResponse:
    return JsonResponse(document(problem, request_id), status=problem.status, content_type=CONTENT_TYPE)


def nowhere(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Return a response with status 404 for an unknown URL. Programs get a problem document, and people get a page."""
    if not request.path.startswith(FOR_PROGRAMS):
        return page_not_found(request, exception)
    detail = f"The address {request.path[:200]} does not exist. /api/v1/schema/ lists all addresses."
    return _json(Rejected("not-found", detail, status=404), getattr(request, "borg_request_id", ""))


def broken(request: HttpRequest) -> HttpResponse:
    """Return the response for an error that no other handler covers. The status is 503 for an outage, and 500
    otherwise.

    Programs get a problem document, and people get a page. Django calls this function inside the `except` block, for
    errors of views and middlewares. The function does not use the database.
    """
    error = sys.exc_info()[1]
    request_id = getattr(request, "borg_request_id", "")
    if error is not None and (found := outage_of(error)):
        return unavailable(found, path=request.path, request_id=request_id)
    if not request.path.startswith(FOR_PROGRAMS):
        return HttpResponse(render_to_string("500.html"), status=500)
    return _json(Rejected("internal-error", _BROKEN, status=500), request_id)


def unavailable(outage: Outage, *, path: str, request_id: str = "") -> HttpResponse:
    """Return the response to a request for `path` during an outage. It has the header Retry-After."""
    if path.startswith(FOR_PROGRAMS):
        rejected = Rejected(outage.code, outage.detail, status=outage.status, figures=outage.figures)
        answer = _json(rejected, request_id)
    else:
        answer = HttpResponse(render_to_string("503.html", {"outage": outage}), status=outage.status)
    answer["Retry-After"] = str(outage.retry_after_s)
    answer["Cache-Control"] = "no-store"
    if request_id:
        answer["X-Request-ID"] = request_id
    return answer


def problem(error: Exception, context: dict[str, Any]) -> Response | None:
    """Return the REST response for an error of a view. Return None for a fault of the server, which the view `broken`
    answers. Django REST framework calls this function.
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
    """Return the error of a view as a `Rejected`. Return None if the error is a fault of the server."""
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
    """Return the first text in nested lists and dictionaries of error messages."""
    while isinstance(value, list | dict) and value:
        value = value[0] if isinstance(value, list) else next(iter(value.values()))
    return str(value)
