"""REST views of quarantine: tasks on machines that are not in this cell's history (DESIGN §2.4)."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.paging import IdPaging
from scheduling.access import selectors
from scheduling.api.base import CellView, valid
from scheduling.api.cell_shapes import MachineSerializer
from scheduling.machines.machines import quarantine_release


class QuarantinedSerializer(serializers.Serializer[Any]):
    key = serializers.CharField(help_text="uid/index/incarnation")
    name = serializers.CharField(help_text="Name of the task, as its machine reports it.")
    since = serializers.CharField()
    release = serializers.CharField(help_text="The decision: stop or keep. Empty if there is none yet.")


class QuarantineSerializer(serializers.Serializer[Any]):
    machine = serializers.CharField(source="hostname")
    tasks = QuarantinedSerializer(many=True, source="quarantined")


class DecisionSerializer(serializers.Serializer[Any]):
    action = serializers.CharField(
        help_text="stop ends the tasks; keep lets them run, and the cell does not manage them."
    )
    keys = serializers.ListField(
        child=serializers.CharField(max_length=100),
        required=False,
        allow_empty=False,
        help_text="Decide only about these tasks. Default: all without a decision.",
    )
    reason = serializers.CharField(max_length=200, required=False, allow_blank=True, default="")


class QuarantineView(CellView):
    pagination_class = IdPaging

    @extend_schema(operation_id="quarantine_list", responses=QuarantineSerializer(many=True))
    def get(self, request: Request, cell: str) -> Response:
        """List the machines with tasks in quarantine: tasks that are not in this cell's history."""
        rows = selectors.machines_in_quarantine(self.principal(), self.cell(cell))
        return self.page(rows, QuarantineSerializer)


class MachineQuarantineView(CellView):
    @extend_schema(operation_id="quarantine_release", request=DecisionSerializer, responses=MachineSerializer)
    def post(self, request: Request, cell: str, hostname: str) -> Response:
        """Stop or keep tasks in quarantine."""
        machine = selectors.machine_named(self.cell(cell), hostname)
        given = valid(DecisionSerializer, request.data)
        keys = given.get("keys")
        quarantine_release(
            principal=self.principal(), machine=machine, keys=keys, action=given["action"], reason=given["reason"]
        )
        shown = selectors.machine_named(machine.cell, hostname)
        return Response(MachineSerializer(shown, context={"extra": machine.cell.extra_resources}).data)
