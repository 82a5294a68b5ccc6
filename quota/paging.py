"""Pages of a list in the order of the rows' ids. A *cursor* in the URL marks where a page begins.

The attribute `pagination_class` of a view defines the paging of its list, also in the OpenAPI document.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from django.db.models import QuerySet
from rest_framework import exceptions
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from quota.vocabulary.errors import Rejected, invalid

PAGE, MAX_PAGE = 100, 1000


class DescribedPaging:
    """Paging that describes the pages of a list and their query parameters in the OpenAPI document."""

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        link = {"type": ["string", "null"], "format": "uri"}
        return {
            "type": "object",
            "required": ["next", "previous", "results"],
            "properties": {"next": link, "previous": link, "results": schema},
        }

    def get_schema_operation_parameters(self, view: APIView) -> list[dict[str, Any]]:
        cursor = {
            "name": "cursor",
            "in": "query",
            "description": "The cursor of a page, from `next` or `previous` of another page.",
            "schema": {"type": "string"},
        }
        limit = {
            "name": "limit",
            "in": "query",
            "description": f"Rows per page, {PAGE} by default, at most {MAX_PAGE}.",
            "schema": {"type": "integer", "minimum": 1, "maximum": MAX_PAGE},
        }
        return [cursor, limit]


class IdPaging(DescribedPaging, CursorPagination):
    """Paging by id. Raises `Rejected` for a limit out of range, and for an invalid cursor."""

    page_size = PAGE
    page_size_query_param = "limit"
    max_page_size = MAX_PAGE
    ordering = "id"

    def get_page_size(self, request: Request) -> int:
        given = request.query_params.get("limit", "")
        if not given:
            return PAGE
        if not _is_whole(given, digits=4) or not 1 <= int(given) <= MAX_PAGE:
            raise invalid("limit", f"{given[:50]!r} rows per page are not possible; give 1 to {MAX_PAGE}")
        return int(given)

    def decode_cursor(self, request: Request) -> Cursor | None:
        try:
            cursor = super().decode_cursor(request)
        except exceptions.NotFound as error:
            raise _invalid_cursor(request) from error
        if cursor is not None and cursor.position is not None and not _is_whole(cursor.position, digits=18):  # type: ignore[arg-type]
            raise _invalid_cursor(request)
        return cursor


class NewestPaging(IdPaging):
    """Paging by id, newest first."""

    ordering = "-id"


class MergedRows:
    """The rows of several lists in the order of their ids, for `IdPaging` and for Django's `Paginator`. Each page takes
    one query per list.

    `most`: the largest number that `count` returns, because counting many rows takes long. `Paginator` cannot show rows
    after this number, but `IdPaging` can.
    """

    ordered = True  # for `Paginator`

    def __init__(self, *lists: QuerySet[Any], order: str = "id", most: int = 1_000) -> None:
        self._lists, self._order, self._most = lists, order, most

    def order_by(self, order: str) -> MergedRows:
        return MergedRows(*(rows.order_by(order) for rows in self._lists), order=order, most=self._most)

    def filter(self, *conditions: Any, **values: Any) -> MergedRows:
        lists = (rows.filter(*conditions, **values) for rows in self._lists)
        return MergedRows(*lists, order=self._order, most=self._most)

    def count(self) -> int:
        return min(sum(rows.order_by()[: self._most].count() for rows in self._lists), self._most)

    def __getitem__(self, part: slice) -> list[Any]:
        found = [row for rows in self._lists for row in rows.order_by(self._order)[: part.stop]]
        found.sort(key=lambda row: row.id, reverse=self._order.startswith("-"))
        return found[part]


def paged(view: APIView, rows: QuerySet[Any] | MergedRows, shown: Callable[[list[Any]], Iterable[Any]]) -> Response:
    """Return one page of `rows` with the paging of the view. `shown`: a function that converts the rows of the page to
    the items of the answer.
    """
    pages = view.pagination_class()  # type: ignore[attr-defined]
    return cast("Response", pages.get_paginated_response(shown(pages.paginate_queryset(rows, view.request, view=view))))


def _is_whole(text: str, *, digits: int) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= digits


def _invalid_cursor(request: Request) -> Rejected:
    given = request.query_params.get("cursor", "")
    return invalid("cursor", f"the cursor {given[:50]!r} is malformed; use the cursor in `next` of the page before")
