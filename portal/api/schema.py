"""Generates the OpenAPI document from the views of the API."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import FieldDoesNotExist
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.plumbing import ResolvedComponent, is_serializer
from rest_framework import serializers
from rest_framework.permissions import SAFE_METHODS

from portal.http.errors import CONTENT_TYPE
from quota.api.problems import ProblemSerializer
from quota.dry_run import DRY_RUN, RehearsedView

_TEXT = {"type": "string"}
_PROBLEMS = {
    400: "The body is not JSON, or is nested too deeply.",
    401: "The token or the session is not valid.",
    403: "The caller does not have the permission for this operation.",
    404: "The object does not exist, or the caller may not see it.",
    406: "The answer is not available in a format that the header `Accept` allows.",
    409: "The current state of the object does not allow this.",
    412: "The object has changed since the plan whose revision `If-Match` names.",
    413: "The body is too large.",
    415: "The content type of the body is not supported.",
    422: "The request is invalid. The property `fields` names the wrong fields.",
    429: "The caller sent too many requests. Try again after `Retry-After` seconds.",
    503: "A part of the system does not answer. Try again, after `Retry-After` seconds if it is given.",
}
_HEADERS = {
    401: {"WWW-Authenticate": {"schema": _TEXT, "required": True}},
    429: {
        "Retry-After": {"schema": {"type": "integer", "minimum": 0}},
        "RateLimit-Policy": {"schema": _TEXT, "description": "The limits: `q` requests per `w` seconds."},
        "RateLimit": {
            "schema": _TEXT,
            "description": "`r`: the requests that are left. After `t` seconds, the full number is available again.",
        },
    },
    503: {"Retry-After": {"schema": {"type": "integer", "minimum": 0}}},
}


class Schema(AutoSchema):
    """Describes one view in the OpenAPI document. The description includes dry runs, nullable fields, and the error
    responses of each operation.
    """

    def get_override_parameters(self) -> list[Any]:
        found = list(super().get_override_parameters())
        if self.method not in SAFE_METHODS and isinstance(self.view, RehearsedView):
            found.append(DRY_RUN)
        return found

    def _get_response_bodies(self, direction: str = "response") -> dict[str, Any]:
        bodies: dict[str, Any]
        answered = self.get_response_serializers()
        if self.method == "DELETE" and is_serializer(answered):  # by default, the generator would write an empty 204
            bodies = {"200": self._get_response_for_code(answered, "200", direction=direction)}  # type: ignore[no-untyped-call]
        else:
            bodies = super()._get_response_bodies(direction)  # type: ignore[arg-type]
        for status in self._problem_statuses():
            bodies.setdefault(str(status), self._problem(status))
        return dict(sorted(bodies.items()))

    def _problem_statuses(self) -> list[int]:
        found = [401, 403, 404, 406, 409, 422, 429, 503]
        if self.method in ("POST", "PUT", "PATCH"):
            found += [400, 413, 415]
        if any(getattr(one, "name", "") == "If-Match" for one in self.get_override_parameters()):
            found.append(412)
        return found

    def _problem(self, status: int) -> dict[str, Any]:
        """Return an OpenAPI reference to the error response with this HTTP status. All operations share the
        response.
        """
        schema = self.resolve_serializer(ProblemSerializer(), "response").ref
        shared = ResolvedComponent(  # type: ignore[no-untyped-call]
            name=f"Problem{status}",
            type=ResolvedComponent.RESPONSE,
            schema={
                "description": _PROBLEMS[status],
                "headers": _HEADERS.get(status, {}),
                "content": {CONTENT_TYPE: {"schema": schema}},
            },
            object=status,
        )
        self.registry.register_on_missing(shared)
        return shared.ref

    def _map_serializer_field(self, field: Any, direction: str, bypass_extensions: bool = False) -> Any:
        """Return the schema of a serializer's field. A read-only field allows null or blank if its database column
        allows it.
        """
        column = _column_of(field) if field.read_only else None
        if column is not None:
            field.allow_null = field.allow_null or column.null
            if isinstance(field, serializers.CharField | serializers.ChoiceField):
                field.allow_blank = field.allow_blank or column.blank
        found = super()._map_serializer_field(field, direction, bypass_extensions)  # type: ignore[no-untyped-call]
        if getattr(field, "allow_blank", False) and "format" in found:
            found = {name: value for name, value in found.items() if name != "format"}  # "" does not match the format
        return found


def _column_of(field: serializers.Field[Any]) -> Any:  # type: ignore[type-arg]
    """Return the model field that contains the value of a serializer's field. Return None if there is no such model
    field.
    """
    model = getattr(getattr(field.parent, "Meta", None), "model", None)
    if model is None or not isinstance(field.source, str):
        return None
    try:
        column = model._meta.get_field(field.source.partition(".")[0])
    except FieldDoesNotExist:
        return None
    return column if column.concrete else None
