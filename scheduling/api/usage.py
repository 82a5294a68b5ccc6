"""REST view of the resource usage of tasks."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.access import selectors
from scheduling.api.base import CellView, whole
from scheduling.models import InstanceUsage
from scheduling.usage import usage_windows

MAX_HOURS = 168


class UsageSerializer(serializers.ModelSerializer[Any]):
    """The usage of a task in a window of five minutes: CPU in cores, memory in bytes.

    `cpu_usage_distribution`: the percentiles 0, 10, …, 100 of the CPU samples. `tail_cpu_usage_distribution`: the
    percentiles 91 to 99.
    """

    class Meta:
        model = InstanceUsage
        fields = [
            "start_time",
            "end_time",
            "incarnation",
            "average_usage_cpus",
            "average_usage_memory",
            "maximum_usage_cpus",
            "maximum_usage_memory",
            "random_sample_usage_cpus",
            "assigned_cpus",
            "assigned_memory",
            "page_cache_memory",
            "sample_rate",
            "cpu_usage_distribution",
            "tail_cpu_usage_distribution",
            "throttled_cpus",
            "disk_bytes",
            "read_bytes_s",
            "written_bytes_s",
            "received_bytes_s",
            "sent_bytes_s",
            "threads",
            "oom_kills",
        ]
        read_only_fields = fields


class TaskUsageView(CellView):
    @extend_schema(
        operation_id="tasks_usage",
        parameters=[OpenApiParameter("hours", OpenApiTypes.INT, description="Hours to look back. Default: 3.")],
        responses=UsageSerializer(many=True),
    )
    def get(self, request: Request, cell: str, tenant: str, job: str, index: int) -> Response:
        """List the usage of a task in windows of five minutes, oldest first."""
        task = selectors.task_at(self.job(cell, tenant, job), index)
        hours = whole(request, "hours", 3, low=1, high=MAX_HOURS)
        rows = usage_windows.of_task(task, since=timezone.now() - dt.timedelta(hours=hours))
        return Response(UsageSerializer(rows, many=True).data)
