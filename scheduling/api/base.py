"""Parts that the REST views share: they find cells and jobs, build pages, and check request bodies and query
parameters.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.db.models import Q, QuerySet
from rest_framework import serializers
from rest_framework.pagination import BasePagination
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param
from rest_framework.views import APIView

from quota.api.base import QuotaView, valid
from quota.paging import MAX_PAGE, PAGE, DescribedPaging, paged
from quota.vocabulary.errors import NotFound, invalid
from quota.vocabulary.permissions import Principal
from scheduling.access import selectors
from scheduling.history.archive.reading import ArchivedEvents
from scheduling.history.archive.recall import recall
from scheduling.models import Cell, Event, Job

__all__ = ["BodyParser", "CellView", "EventPaging", "flag", "valid", "whole"]


class BodyParser(BaseParser):
    """A parser that returns the body of a request as bytes. It rejects a body larger than the server accepts."""

    media_type = "application/json"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> bytes:  # type: ignore[override]
        body: bytes = parser_context["request"]._request.body
        if len(body) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:  # a chunked request has no Content-Length
            raise RequestDataTooBig
        return body


class CellView(QuotaView):
    """A view whose path starts with `cells/{cell}/`."""

    @property
    def principal(self) -> Principal:
        """Return the caller. The default permission rejects anonymous requests."""
        assert isinstance(self.request.auth, Principal)
        return self.request.auth

    def cell(self, name: str) -> Cell:
        """Return the cell of this name. Raises `NotFound` if the cell does not exist or the caller may not see it."""
        return selectors.cell_named(self.principal, name)

    def job(self, cell: str, tenant: str, job: str) -> Job:
        """Return the live job of this name. If no live job has the name, return the last job that had it, which may be
        only in the archive. Raises `NotFound` if the job does not exist or the caller may not see it.
        """
        found = self.cell(cell)
        try:
            return selectors.job_named(self.principal, found, tenant, job)
        except NotFound:
            if not recall(self.principal, found, tenant, job):
                raise
        return selectors.job_named(self.principal, found, tenant, job)

    def page(self, rows: QuerySet[Any], serializer: type[serializers.Serializer[Any]], **context: Any) -> Response:
        """Return one page of rows, ordered by id."""
        return paged(self, rows, lambda found: serializer(found, many=True, context=context).data)


class EventPaging(DescribedPaging, BasePagination):
    """Pages of the journal, newest first. A cursor contains the revision and the sequence number, because many events
    can have the same revision.
    """

    def __init__(self, archived: ArchivedEvents | None = None) -> None:
        """Create the pages. `archived`: the archived events that follow when PostgreSQL has no older ones; None if
        there are none.
        """
        self._archived = archived

    def paginate_queryset(  # type: ignore[override]
        self, queryset: QuerySet[Event], request: Request, view: APIView | None = None
    ) -> list[Event]:
        limit = whole(request, "limit", PAGE, low=1, high=MAX_PAGE)
        position = None
        if cursor := request.query_params.get("cursor"):
            position = revision, seq = _decode_cursor(cursor)
            older = Q(revision__lt=revision) | Q(seq__lt=seq)
            queryset = queryset.filter(older, revision__lte=revision)
        found = list(queryset[: limit + 1])
        following = None
        if len(found) <= limit and self._archived is not None:
            position = (found[-1].revision, found[-1].seq) if found else position
            page = self._archived.before(position, limit=limit + 1 - len(found))
            found, following = found + page.events, page.resume
        if len(found) > limit:
            following = found[limit - 1].revision, found[limit - 1].seq
        self._next = None
        if following is not None:
            url = request.build_absolute_uri()
            self._next = replace_query_param(url, "cursor", f"{following[0]}.{following[1]}")
        return found[:limit]

    def get_paginated_response(self, data: list[Any]) -> Response:
        return Response({"next": self._next, "previous": None, "results": data})


def whole(request: Request, name: str, default: int, *, low: int, high: int) -> int:
    """Return the query parameter `name` as an integer from `low` to `high`. Raises `Rejected` for another value."""
    given = request.query_params.get(name, "")
    if not given:
        return default
    try:
        number = int(given[:20])
    except ValueError:
        number = low - 1
    if not low <= number <= high:
        raise invalid(name, f"the value {given[:50]!r} is not accepted; give an integer from {low} to {high}")
    return number


def flag(request: Request, name: str) -> bool:
    """Return whether the query parameter `name` is true. Raises `Rejected` if it is neither true nor false."""
    given = request.query_params.get(name, "").lower()
    if given not in ("1", "true", "0", "false", ""):
        raise invalid(name, f"the value {given[:20]!r} is not accepted; give true or false")
    return given in ("1", "true")


def _decode_cursor(cursor: str) -> tuple[int, int]:
    revision, _, seq = cursor.partition(".")
    if not (revision.isdecimal() and seq.isdecimal() and len(revision) <= 18 and len(seq) <= 9):
        raise invalid("cursor", f"{cursor[:50]!r} is not a cursor; use the value of `next` in the answer before")
    return int(revision), int(seq)
