"""The common part of quota's REST views: the caller, valid input, pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import QuerySet
from rest_framework import exceptions, serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from quota.paging import paged
from quota.rehearsal import RehearsedView
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal


def principal_of(request: Request) -> Principal:
    """Return the caller. Only for views behind the default permission, which rejects anonymous callers."""
    assert isinstance(request.auth, Principal)
    return request.auth


class QuotaView(RehearsedView):
    """A view that rejects NUL characters in its path and query, because PostgreSQL cannot store them."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        for name, value in (*kwargs.items(), *request.query_params.items()):
            if "\x00" in str(value):
                raise Rejected("invalid", f"{name}: holds a NUL character", fields={name: "NUL character"})


def valid(serializer: type[serializers.Serializer[Any]], data: Any) -> dict[str, Any]:
    """The validated data. Unknown fields are rejected: a misspelt one must not pass in silence."""
    given = serializer(data=data)
    given.is_valid(raise_exception=True)
    unknown = sorted(set(data) - set(given.fields)) if isinstance(data, dict) else []
    if unknown:
        known = ", ".join(given.fields)
        raise exceptions.ValidationError(dict.fromkeys(unknown, f"unknown field; the known fields are {known}"))
    return dict(given.validated_data)


def page(
    view: APIView,
    request: Request,
    rows: QuerySet[Any],
    serializer: type[serializers.Serializer[Any]],
    *,
    context: Mapping[str, Any] | None = None,
) -> Response:
    """Return one page of `rows`. `context`: for the serializer."""
    return paged(view, rows, lambda found: serializer(found, many=True, context=dict(context or {})).data)
