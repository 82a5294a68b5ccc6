"""REST view of what the deletion of a cell would end, and the serializer of its answer."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from scheduling.api.base import CellView
from scheduling.cells.deletion import cell_deletion

CONFIRM = OpenApiParameter(
    "confirm", OpenApiTypes.STR, required=True, description="The name of the cell again, as a confirmation."
)
DELETED = OpenApiParameter(
    "deleted", OpenApiTypes.BOOL, description="True lists the deleted cells instead. Only for SREs."
)


class HeldQuotaSerializer(serializers.Serializer[Any]):
    """The quota that tenants hold now or later. `until`: when the last of it ends; null if one has no end, or if there
    is none.
    """

    grants = serializers.IntegerField(help_text="Grants whose grace period has not ended.")
    orders = serializers.IntegerField(help_text="Waiting orders: they hold capacity and money, and have no grant yet.")
    until = serializers.DateTimeField(allow_null=True)
    tenants = serializers.ListField(child=serializers.CharField())


class CellDeletionSerializer(serializers.Serializer[Any]):
    """What the deletion of a cell would end, and what is in the way."""

    cell = serializers.CharField()
    jobs = serializers.IntegerField(help_text="Live jobs.")
    alloc_sets = serializers.IntegerField(help_text="Live alloc sets.")
    tasks = serializers.IntegerField(help_text="Pending and running tasks.")
    machines = serializers.DictField(child=serializers.IntegerField(), help_text="How many are in each state.")
    quota = HeldQuotaSerializer()
    packages = serializers.IntegerField(help_text="Packages, which are deleted.")
    cron_jobs = serializers.IntegerField(help_text="Cron jobs, which are deleted.")
    templates = serializers.IntegerField(help_text="Templates, which are deleted.")
    workflows = serializers.IntegerField(help_text="Workflows, which are deleted.")
    capabilities = serializers.IntegerField(help_text="Capabilities for this cell, which end with it.")
    dns_zone = serializers.CharField(help_text="The DNS zone of the cell, which disappears.")
    dns_names = serializers.IntegerField(help_text="How many jobs, tasks and machines have names in the zone.")
    tenants = serializers.ListField(
        child=serializers.CharField(),
        help_text="Tenants that have quota, packages, jobs, cron jobs, templates or workflows in the cell.",
    )
    jobs_ended = serializers.IntegerField(help_text="Ended jobs. SREs can still read them.")
    archive_files = serializers.IntegerField(help_text="Files of the archive. SREs can still read them.")
    archive_bytes = serializers.IntegerField()
    problems = serializers.DictField(
        child=serializers.CharField(), help_text="By field, what is in the way of the deletion, and what to do."
    )


class CellDeletionView(CellView):
    @extend_schema(operation_id="cells_deletion", responses=CellDeletionSerializer)
    def get(self, request: Request, cell: str) -> Response:
        """Return what the deletion of a cell would end, and what is in the way. Changes nothing. Only for SREs."""
        found = cell_deletion(principal=self.principal, cell=self.cell(cell))
        return Response(CellDeletionSerializer(found).data)
