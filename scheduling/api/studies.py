"""REST views of study cells: copies of cells at one moment, which nobody can change."""

from __future__ import annotations

import io
from typing import Any, ClassVar

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.parsers import BaseParser
from rest_framework.request import Request
from rest_framework.response import Response

from quota.dry_run import DRY_RUN, dry_run
from scheduling.api.base import CellView, valid
from scheduling.history.studies import requests
from scheduling.history.studies.deletion import study_delete

CHECKPOINT = "application/octet-stream"


class RestoreSerializer(serializers.Serializer[Any]):
    """A request to restore a moment of a cell. Give either `revision` or `time`."""

    into = serializers.CharField(max_length=63, help_text="Name of the new study cell, a copy that nobody can change.")
    revision = serializers.IntegerField(min_value=0, max_value=2**62, required=False)
    time = serializers.DateTimeField(required=False)


class StudySerializer(serializers.Serializer[Any]):
    cell = serializers.CharField(help_text="Name of the study cell.")
    of = serializers.CharField(help_text="Name of the cell that was copied. A hash if the checkpoint is redacted.")
    revision = serializers.IntegerField(help_text="The revision that was copied.")
    redacted = serializers.BooleanField(help_text="Whether names are hashes.")
    machines = serializers.IntegerField()
    jobs = serializers.IntegerField()
    tasks = serializers.IntegerField()
    made_specs = serializers.IntegerField(
        help_text="How many specs were made from the requirements of tasks, because the original ones are unknown."
    )


class StreamParser(BaseParser):
    """A parser that returns the body as a stream, because the body may be large."""

    media_type = CHECKPOINT

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        return stream


class CheckpointRestoreView(CellView):
    rehearses_itself: ClassVar[bool] = True

    @extend_schema(
        operation_id="checkpoints_restore",
        request=RestoreSerializer,
        parameters=[DRY_RUN],
        responses={201: StudySerializer},
    )
    def post(self, request: Request, cell: str) -> Response:
        """Create a study cell with the state that the cell had at a revision or time. Only for SREs. The cell itself
        does not change.
        """
        given = valid(RestoreSerializer, request.data)
        done = requests.study_restore_requested(
            principal=self.principal, cell=self.cell(cell), dry_run=dry_run(request), **given
        )
        return Response(StudySerializer(done).data, status=201)


class StudyView(CellView):
    """A view of one study cell: a copy of a cell at one moment, which nobody can change."""

    rehearses_itself: ClassVar[bool] = True

    def get_parsers(self) -> list[Any]:
        return [StreamParser(), *super().get_parsers()]

    @extend_schema(
        operation_id="studies_import",
        request={CHECKPOINT: OpenApiTypes.BINARY},
        parameters=[DRY_RUN],
        responses={201: StudySerializer},
    )
    def put(self, request: Request, cell: str) -> Response:
        """Create a study cell from the file of a checkpoint, which is the body of the request. It may be a redacted
        copy from another installation. Only for SREs.
        """
        source = request.data or io.BytesIO()  # REST framework calls no parser for an empty body
        done = requests.study_import_requested(
            principal=self.principal,
            source=source,  # type: ignore[arg-type]
            into=cell,
            dry_run=dry_run(request),
        )
        return Response(StudySerializer(done).data, status=201)

    @extend_schema(operation_id="studies_delete", parameters=[DRY_RUN], responses={204: None})
    def delete(self, request: Request, cell: str) -> Response:
        """Delete a study cell with its journal and checkpoints. Only for SREs."""
        study_delete(principal=self.principal, cell=self.cell(cell), dry_run=dry_run(request))
        return Response(status=204)
