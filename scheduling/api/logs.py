"""REST view of task logs."""

from __future__ import annotations

import datetime as dt

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from quota.personal.preferences import log_opened
from quota.vocabulary.errors import invalid
from scheduling.access import selectors
from scheduling.api.base import CellView, whole
from scheduling.api.task_serializers import LogSerializer
from scheduling.machines.task_logs import MAX_LINES, MAX_LOG_BYTES, STREAMS, task_log


class LogsView(CellView):
    @extend_schema(
        operation_id="tasks_logs",
        parameters=[
            OpenApiParameter("stream", OpenApiTypes.STR, enum=list(STREAMS), description="Default: stdout."),
            OpenApiParameter("offset", OpenApiTypes.INT, description="Negative: from the end. Default: -65536."),
            OpenApiParameter("incarnation", OpenApiTypes.INT, description="Default: the newest."),
            OpenApiParameter("search", OpenApiTypes.STR, description="Return only `lines` that contain this text."),
            OpenApiParameter("ignore_case", OpenApiTypes.BOOL, description="Whether `search` ignores case."),
            OpenApiParameter("since", OpenApiTypes.DATETIME, description="Return only output from this time on."),
            OpenApiParameter(
                "lines", OpenApiTypes.INT, description=f"Largest number of lines to return, at most {MAX_LINES}."
            ),
            OpenApiParameter(
                "limit", OpenApiTypes.INT, description=f"Largest number of bytes to return, at most {MAX_LOG_BYTES}."
            ),
        ],
        responses=LogSerializer,
    )
    def get(self, request: Request, cell: str, tenant: str, job: str, index: int) -> Response:
        """Return a part of a task's log, or the lines that contain the text `search`. Repeat the request with the
        answer's `end` as `offset` until `complete` is true.
        """
        found = self.job(cell, tenant, job)
        task = selectors.task_at(found, index)
        stream = request.query_params.get("stream", "stdout")
        chunk = task_log(
            principal=self.principal,
            job=found,
            task=task,
            stream=stream,
            offset=whole(request, "offset", -65536, low=-(2**53), high=2**53),
            limit_bytes=whole(request, "limit", 65536, low=1, high=MAX_LOG_BYTES),
            incarnation=whole(request, "incarnation", 0, low=0, high=2**31 - 1),
            search=request.query_params.get("search", ""),
            ignore_case=request.query_params.get("ignore_case", "").lower() in ("1", "true", "yes"),
            since=_since(request),
            limit_lines=whole(request, "lines", MAX_LINES, low=1, high=MAX_LINES),
        )
        log_opened(self.principal)
        lines = [{"offset": line.offset, "text": line.text, "at": _as_text(line.at)} for line in chunk.lines]
        return Response(
            {
                "stream": stream,
                "offset": chunk.offset,
                "end": chunk.end,
                "text": chunk.text,
                "lines": lines,
                "complete": chunk.complete,
            }
        )


def _since(request: Request) -> float:
    """Return the parameter `since` in seconds since the epoch, or 0 if there is none. Raises `Rejected` if the text is
    not a time.
    """
    given = request.query_params.get("since", "")
    if not given:
        return 0.0
    try:
        read = dt.datetime.fromisoformat(given)
    except ValueError:
        raise invalid("since", f"{given[:50]!r} is not a time; give a time such as 2026-11-21T20:15:00Z") from None
    return (read if read.tzinfo is not None else read.replace(tzinfo=dt.UTC)).timestamp()


def _as_text(at: float) -> str | None:
    return dt.datetime.fromtimestamp(at, dt.UTC).isoformat() if at else None
