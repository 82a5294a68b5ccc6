"""REST of what tasks print."""

from __future__ import annotations

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling import selectors
from scheduling.api.base import CellView, whole
from scheduling.api.serializers import LogSerializer
from scheduling.services.task_logs import MAX_LOG_BYTES, STREAMS, task_log


class LogsView(CellView):
    @extend_schema(
        operation_id="tasks_logs",
        parameters=[
            OpenApiParameter("stream", OpenApiTypes.STR, enum=list(STREAMS), description="stdout unless told."),
            OpenApiParameter("offset", OpenApiTypes.INT, description="-65536 unless told; below 0: from the end."),
            OpenApiParameter("limit", OpenApiTypes.INT, description=f"Bytes; 65536, or up to {MAX_LOG_BYTES}."),
        ],
        responses=LogSerializer,
    )  # fmt: skip
    def get(self, request: Request, cell: str, tenant: str, job: str, index: int) -> Response:
        """Part of what a task printed on its machine."""
        found = self.job(cell, tenant, job)
        task = selectors.task_at(found, index)
        stream = request.query_params.get("stream", "stdout")
        chunk = task_log(
            principal=self.principal(),
            job=found,
            task=task,
            stream=stream,
            offset=whole(request, "offset", -65536, low=-(2**53), high=2**53),
            limit_bytes=whole(request, "limit", 65536, low=1, high=MAX_LOG_BYTES),
        )
        return Response({"stream": stream, "offset": chunk.offset, "end": chunk.end, "text": chunk.text})
