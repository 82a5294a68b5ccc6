"""REST views of a cell's checkpoints: files with the state of the cell at one revision."""

from __future__ import annotations

from typing import Any

from django.http import FileResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.dry_run import DRY_RUN
from scheduling.api.base import CellView, valid
from scheduling.history.checkpoints import requests


class SectionSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    rows = serializers.IntegerField()
    bytes = serializers.IntegerField(help_text="Size in the file.")
    raw_bytes = serializers.IntegerField(help_text="Size without compression.")
    sha256 = serializers.CharField()


class CheckpointSerializer(serializers.Serializer[Any]):
    cell = serializers.CharField(source="header.cell")
    revision = serializers.IntegerField(source="header.revision")
    taken_at = serializers.DateTimeField(source="header.taken")
    size_bytes = serializers.IntegerField()
    history = serializers.CharField(
        source="header.history",
        help_text="Id of the cell's history. It changes when the database or the cell is restored.",
    )
    extra_resources = serializers.ListField(child=serializers.CharField(), source="header.extra_resources")


class CheckpointDetailSerializer(CheckpointSerializer):
    sections = SectionSerializer(many=True, source="header.sections")


class RequestedSerializer(serializers.Serializer[Any]):
    revision = serializers.IntegerField(
        help_text="The cell's present revision. The checkpoint will have this revision or a later one."
    )


class CheckpointsView(CellView):
    @extend_schema(operation_id="checkpoints_list", responses=CheckpointSerializer(many=True))
    def get(self, request: Request, cell: str) -> Response:
        """List the stored checkpoints of the cell, newest first. Only for SREs."""
        found = requests.checkpoints_listed(principal=self.principal, cell=self.cell(cell))
        return Response(CheckpointSerializer(found, many=True).data)

    @extend_schema(
        operation_id="checkpoints_save", request=None, parameters=[DRY_RUN], responses={202: RequestedSerializer}
    )
    def post(self, request: Request, cell: str) -> Response:
        """Request a checkpoint. A worker saves it within seconds; the list shows it then."""
        revision = requests.checkpoint_request(principal=self.principal, cell=self.cell(cell))
        return Response({"revision": revision}, status=202)


class CheckpointView(CellView):
    @extend_schema(operation_id="checkpoints_get", responses=CheckpointDetailSerializer)
    def get(self, request: Request, cell: str, revision: int) -> Response:
        """Return the header and the sections of a checkpoint. The checksums of all sections are verified first."""
        found = requests.checkpoint_verified(principal=self.principal, cell=self.cell(cell), revision=revision)
        return Response(CheckpointDetailSerializer(found).data)


class CheckpointContentView(CellView):
    @extend_schema(
        operation_id="checkpoints_download", responses={(200, "application/octet-stream"): OpenApiTypes.BINARY}
    )
    def get(self, request: Request, cell: str, revision: int) -> FileResponse:
        """Download the file of a checkpoint. It contains data of all tenants, but no environment values."""
        found = requests.checkpoint_content(principal=self.principal, cell=self.cell(cell), revision=revision)
        name = f"{cell}-{revision}.checkpoint"
        return FileResponse(found, as_attachment=True, filename=name, content_type="application/octet-stream")


class RedactedCheckpointView(CellView):
    @extend_schema(
        operation_id="checkpoints_export", responses={(200, "application/octet-stream"): OpenApiTypes.BINARY}
    )
    def get(self, request: Request, cell: str, revision: int) -> FileResponse:
        """Download a redacted copy of a checkpoint, to reproduce a scheduler bug elsewhere. Names are replaced by
        hashes with a key that is not stored. Commands and environments are left out.
        """
        found = requests.checkpoint_redacted(principal=self.principal, cell=self.cell(cell), revision=revision)
        name = f"redacted-{revision}.checkpoint"
        return FileResponse(found, as_attachment=True, filename=name, content_type="application/octet-stream")


class MomentSerializer(serializers.Serializer[Any]):
    revision = serializers.IntegerField(required=False, min_value=0, max_value=2**53, default=None)
    time = serializers.DateTimeField(required=False, default=None)
    hours = serializers.FloatField(required=False, default=0.0)


class MomentCheckpointView(CellView):
    @extend_schema(
        operation_id="checkpoints_moment",
        parameters=[
            OpenApiParameter("revision", int, description="The revision. Default: the present one."),
            OpenApiParameter("time", OpenApiTypes.DATETIME, description="A time, instead of a revision."),
            OpenApiParameter(
                "hours", float, description="Number of hours after this moment whose events are included."
            ),
        ],
        responses={(200, "application/octet-stream"): OpenApiTypes.BINARY},
    )
    def get(self, request: Request, cell: str) -> FileResponse:
        """Download a checkpoint of any moment, made on demand, for the simulator. It also contains the usage of tasks,
        and the jobs, failures and ends of tasks in the hours afterwards.
        """
        given = valid(MomentSerializer, request.query_params)
        found = requests.checkpoint_of_moment(principal=self.principal, cell=self.cell(cell), **given)
        name = f"{cell}.checkpoint"
        return FileResponse(found, as_attachment=True, filename=name, content_type="application/octet-stream")
