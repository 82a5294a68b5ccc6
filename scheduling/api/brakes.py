"""REST views of a cell's brakes. A brake holds back an action of the cell until an SRE releases it."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.access import selectors
from scheduling.api.base import CellView, valid
from scheduling.brakes.stored_brakes import RELEASED_S, brake_keep, brake_release


class BrakeSerializer(serializers.Serializer[Any]):
    brake = serializers.CharField(
        source="kind",
        help_text="`lost` limits the rescheduling of tasks of lost machines; `stops` limits automatic stops of tasks.",
    )
    state = serializers.CharField(help_text="State of the brake: open, bounded, held, released or kept.")
    since = serializers.DateTimeField(allow_null=True)
    tasks_held = serializers.IntegerField(
        source="wanted", help_text="Number of tasks that the brake keeps from being stopped or moved."
    )
    detail = serializers.CharField()
    decided_by = serializers.CharField()
    until = serializers.DateTimeField(allow_null=True, help_text="When the SRE's release ends.")


class KeepSerializer(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=500)


class ReleaseSerializer(KeepSerializer):
    seconds = serializers.FloatField(
        default=RELEASED_S, min_value=1, help_text="For `stops`: how long the release lasts, in seconds."
    )


class BrakesView(CellView):
    @extend_schema(operation_id="brakes_list", responses=BrakeSerializer(many=True))
    def get(self, request: Request, cell: str) -> Response:
        """List the two brakes of the cell, with their state. The brake `lost` limits how fast tasks of lost machines
        are placed on other machines, and `stops` limits how many running tasks the cell may stop automatically.
        """
        return Response(BrakeSerializer(selectors.brakes_of(self.cell(cell)), many=True).data)


class BrakeReleaseView(CellView):
    @extend_schema(operation_id="brakes_release", request=ReleaseSerializer, responses=BrakeSerializer)
    def post(self, request: Request, cell: str, brake: str) -> Response:
        """Release the brake. The cell then continues the action that the brake held back: it reschedules the tasks of
        lost machines, or stops more tasks than the limit allows.
        """
        given = valid(ReleaseSerializer, request.data)
        released = brake_release(principal=self.principal, cell=self.cell(cell), kind=brake, **given)
        return Response(BrakeSerializer(released).data)


class BrakeKeepView(CellView):
    @extend_schema(operation_id="brakes_keep", request=KeepSerializer, responses=BrakeSerializer)
    def post(self, request: Request, cell: str, brake: str) -> Response:
        """Decide that the brake stays. The cell does not continue the action until the cause of the brake has ended."""
        given = valid(KeepSerializer, request.data)
        kept = brake_keep(principal=self.principal, cell=self.cell(cell), kind=brake, **given)
        return Response(BrakeSerializer(kept).data)
