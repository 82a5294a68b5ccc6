"""The REST view that records a simulated week as the history of a study cell: a cell in which nothing runs."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.dry_run import DRY_RUN
from scheduling.api.base import CellView, valid
from scheduling.recording.requests import DAYS, MACHINES, SEED, record_request


class RecordingSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=63, help_text="Name of the new cell.")
    machines = serializers.IntegerField(default=MACHINES, help_text="Number of randomly generated machines.")
    days = serializers.FloatField(default=DAYS, help_text="Length of the history.")
    seed = serializers.IntegerField(default=SEED, help_text="Seed of all random choices.")


class RecordingsView(CellView):
    @extend_schema(
        operation_id="cells_record",
        request=RecordingSerializer,
        parameters=[DRY_RUN],
        responses={202: RecordingSerializer},
    )
    def post(self, request: Request) -> Response:
        """Request a study cell with the history of a simulated week. Nothing runs there, and nothing is charged. A
        worker needs about two minutes; the cell exists when it is complete. Only for SREs.
        """
        given = valid(RecordingSerializer, request.data)
        record_request(principal=self.principal, **given)
        return Response(given, status=202)
