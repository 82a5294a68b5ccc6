"""REST views of quarantine. A task is in quarantine if it runs on a machine but is missing in the cell's history."""

from __future__ import annotations

from functools import partial
from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.paging import IdPaging
from scheduling.access import selectors
from scheduling.api.base import CellView
from scheduling.api.cells import machine_action
from scheduling.machines.machines import quarantine_release


class QuarantinedSerializer(serializers.Serializer[Any]):
    key = serializers.CharField(help_text="Job uid, task index and incarnation, as `uid/index/incarnation`.")
    name = serializers.CharField(help_text="Name of the task, as its machine reports it.")
    since = serializers.CharField()
    release = serializers.CharField(help_text="The decision: `stop` or `keep`. Empty if there is none yet.")


class QuarantineSerializer(serializers.Serializer[Any]):
    machine = serializers.CharField(source="hostname")
    tasks = QuarantinedSerializer(many=True, source="quarantined")


class DecisionSerializer(serializers.Serializer[Any]):
    action = serializers.CharField(help_text="`stop` ends the tasks. `keep` lets them run, unmanaged by the cell.")
    keys = serializers.ListField(
        child=serializers.CharField(max_length=100),
        required=False,
        allow_empty=False,
        help_text="Keys of the tasks. Default: all tasks without a decision.",
    )
    reason = serializers.CharField(max_length=200, allow_blank=True, default="")


class QuarantineView(CellView):
    pagination_class = IdPaging

    @extend_schema(operation_id="quarantine_list", responses=QuarantineSerializer(many=True))
    def get(self, request: Request, cell: str) -> Response:
        """List the machines with tasks in quarantine. Such tasks run on a machine but are missing in the cell's
        history.
        """
        rows = selectors.machines_in_quarantine(self.principal, self.cell(cell))
        return self.page(rows, QuarantineSerializer)


MachineQuarantineView = machine_action(
    "quarantine_release",
    DecisionSerializer,
    partial(quarantine_release, keys=None),
    "Stop the tasks in quarantine on a machine, or keep them running.",
)
