"""The REST view that sets a cell back to an earlier moment, in place."""

from __future__ import annotations

from typing import Any, ClassVar

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.dry_run import DRY_RUN, dry_run
from scheduling.api.base import CellView, valid
from scheduling.history.restoring import requests


class RestoreInPlaceSerializer(serializers.Serializer[Any]):
    """A request to set a cell back. Give either `revision` or `time`."""

    revision = serializers.IntegerField(min_value=0, max_value=2**62, required=False)
    time = serializers.DateTimeField(required=False)
    if_revision = serializers.IntegerField(
        min_value=0,
        max_value=2**62,
        required=False,
        help_text="The `revision` that a dry run has shown. Required without `dry_run`. If jobs were changed"
        " since, the request is rejected.",
    )


class RestoredNamesSerializer(serializers.Serializer[Any]):
    number = serializers.IntegerField()
    tasks = serializers.IntegerField(help_text="Live tasks of these jobs; 0 for machines.")
    names = serializers.ListField(child=serializers.CharField(), help_text="The first 100 names.")


class RestoreProblemSerializer(serializers.Serializer[Any]):
    job = serializers.CharField(help_text="Tenant and name of the job.")
    reason = serializers.CharField()


class RestoredSerializer(serializers.Serializer[Any]):
    cell = serializers.CharField()
    revision = serializers.IntegerField(help_text="The revision of the cell before the restore.")
    to_revision = serializers.IntegerField(help_text="The revision to which the cell is set back.")
    events = serializers.DictField(
        child=serializers.IntegerField(),
        help_text="Number of events after this moment, by kind. They stay in the journal.",
    )
    stopped = RestoredNamesSerializer(help_text="Jobs that were submitted since. They are killed.")
    submitted = RestoredNamesSerializer(help_text="Jobs that have ended since. They are submitted again as new jobs.")
    changed = RestoredNamesSerializer(
        help_text="Jobs whose spec has changed since. They are updated to the earlier spec."
    )
    tasks_revived = serializers.IntegerField(help_text="Tasks of live jobs that become pending again.")
    tasks_ended = serializers.IntegerField(
        help_text="Tasks of live jobs that were dead at that moment, and are live now. They are ended."
    )
    tasks_finished = serializers.IntegerField(help_text="Tasks that have finished since. They are not repeated.")
    tasks_elsewhere = serializers.IntegerField(
        help_text="Tasks that now run on another machine than at that moment. They stay there."
    )
    joined = RestoredNamesSerializer(help_text="Machines that joined since. They stay.")
    removed = RestoredNamesSerializer(help_text="Machines that were removed since. They do not come back.")
    machines_changed = RestoredNamesSerializer(
        help_text="Machines whose properties or state have changed since. They stay as they are."
    )
    problems_number = serializers.IntegerField(help_text="Number of jobs that cannot be set back.")
    problems = RestoreProblemSerializer(many=True, help_text="The first 100 of these jobs.")
    history = serializers.CharField(help_text="Id of the new history; empty for a dry run.")


class CheckpointRestoreInPlaceView(CellView):
    rehearses_itself: ClassVar[bool] = True

    @extend_schema(
        operation_id="checkpoints_restore_in_place",
        request=RestoreInPlaceSerializer,
        parameters=[DRY_RUN],
        responses=RestoredSerializer,
    )
    def post(self, request: Request, cell: str) -> Response:
        """Set the cell back to a revision or time: the same jobs with the same specs, and the same tasks alive. A dry
        run shows what would be lost. Only for SREs.
        """
        given = valid(RestoreInPlaceSerializer, request.data)
        done = requests.restore_requested(
            principal=self.principal, cell=self.cell(cell), dry_run=dry_run(request), **given
        )
        return Response(RestoredSerializer(done).data)
