"""REST view of a cell's statistics, such as evictions and scheduling delays, which are counted from its journal."""

from __future__ import annotations

import datetime as dt

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.api.base import CellView, whole
from scheduling.history.statistics.reports import statistics
from scheduling.history.statistics.tallies import Figure

MAX_HOURS = 400 * 24


class EvictionRateSerializer(serializers.Serializer[object]):
    """The number of evictions of prod tasks or of other tasks by one cause. `per_task_week`: the number of evictions
    per task and week; null if no task was running.
    """

    prod = serializers.BooleanField()
    cause = serializers.CharField()
    evictions = serializers.IntegerField()
    per_task_week = serializers.FloatField(allow_null=True)


class PercentilesSerializer(serializers.Serializer[object]):
    """The distribution of a time in seconds. The values are null if nothing was counted."""

    prod = serializers.BooleanField()
    what = serializers.CharField()
    number = serializers.IntegerField()
    mean = serializers.FloatField(allow_null=True)
    p50 = serializers.FloatField(allow_null=True)
    p90 = serializers.FloatField(allow_null=True)
    p99 = serializers.FloatField(allow_null=True)


class PendingHoursSerializer(serializers.Serializer[object]):
    """The hours that tasks were pending for one reason, summed over all tasks."""

    prod = serializers.BooleanField()
    reason = serializers.CharField()
    hours = serializers.FloatField()


class StatisticsSerializer(serializers.Serializer[object]):
    """The statistics of a cell from `since` to `until`.

    `evictions`: the number of evictions per cause (Figure 3). `starts`: the parts of the time from submission to
    running: queue, install, start, total. `package_installs`, `package_starts`: the time until a package was installed,
    and the time from submission to running, per package. `delays`: how long tasks waited for their first placement, or
    for a later one (`again`). `pending`: the time that tasks were pending, per reason.
    """

    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    prod_task_weeks = serializers.FloatField()
    nonprod_task_weeks = serializers.FloatField()
    evictions = EvictionRateSerializer(many=True)
    starts = PercentilesSerializer(many=True)
    package_installs = PercentilesSerializer(many=True)
    package_starts = PercentilesSerializer(many=True)
    delays = PercentilesSerializer(many=True)
    pending = PendingHoursSerializer(many=True)


class StatisticsView(CellView):
    @extend_schema(
        operation_id="cells_statistics",
        parameters=[
            OpenApiParameter("hours", OpenApiTypes.INT, description="Full hours to look back. Default: 168, a week.")
        ],
        responses=StatisticsSerializer,
    )
    def get(self, request: Request, cell: str) -> Response:
        """Return evictions per task-week, times from submission to running, delays of the scheduler, and pending hours
        of a cell. Only SREs may read them. The current hour is included.
        """
        hours = whole(request, "hours", 168, low=1, high=MAX_HOURS)
        until = timezone.now()
        since = until.replace(minute=0, second=0, microsecond=0) - dt.timedelta(hours=hours)
        found = statistics(self.principal, self.cell(cell), since=since, until=until)
        content = {
            "since": since,
            "until": until,
            "prod_task_weeks": found.task_weeks(prod=True),
            "nonprod_task_weeks": found.task_weeks(prod=False),
            "evictions": [one._asdict() for one in found.evictions()],
            "starts": [one._asdict() for one in found.starts()],
            "package_installs": [one._asdict() for one in found.packages()],
            "package_starts": [one._asdict() for one in found.packages(Figure.PACKAGE_TOTAL)],
            "delays": [one._asdict() for one in found.delays()],
            "pending": [one._asdict() for one in found.pending()],
        }
        return Response(StatisticsSerializer(content).data)
