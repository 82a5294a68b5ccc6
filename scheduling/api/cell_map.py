"""REST view of the map of a cell: all its machines, as columns."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request

from scheduling.api.base import CellView
from scheduling.cell_map.columns import encoded_map
from scheduling.cell_map.scopes import scope_of, shown_job


class MapBandSerializer(serializers.Serializer[Any]):
    name = serializers.CharField()
    low = serializers.IntegerField()
    high = serializers.IntegerField()


class MapTextsSerializer(serializers.Serializer[Any]):
    """Texts to which the columns `rack`, `power_domain`, `platform` and `capacity` refer by their place. `capacities`:
    pairs of CPU in millicores and RAM in MiB.
    """

    racks = serializers.ListField(child=serializers.CharField(allow_blank=True))
    power_domains = serializers.ListField(child=serializers.CharField(allow_blank=True))
    platforms = serializers.ListField(child=serializers.CharField(allow_blank=True))
    capacities = serializers.ListField(child=serializers.ListField(child=serializers.IntegerField()))


def _numbers(help_text: str, *, may_be_null: bool = False) -> serializers.ListField:
    return serializers.ListField(child=serializers.IntegerField(allow_null=may_be_null), help_text=help_text)


class MapMachinesSerializer(serializers.Serializer[Any]):
    """One list per property. The values at the same place of all lists are about the same machine. Tasks inside an
    alloc are left out of limits and reservations, because they use the capacity of their alloc.
    """

    id = _numbers("Ids of the machines, in ascending order.")
    name = serializers.ListField(child=serializers.CharField(), help_text="Host names.")
    state = serializers.ListField(child=serializers.CharField(), help_text="up, draining or down.")
    rack = _numbers("Index of the rack in the list `texts.racks`, from 0.")
    power_domain = _numbers("Index of the power domain in the list `texts.power_domains`, from 0.")
    platform = _numbers("Index of the platform in the list `texts.platforms`, from 0.")
    capacity = _numbers("Index of the capacity in the list `texts.capacities`, from 0.")
    tasks = _numbers("Tasks of all tenants.")
    limit_cpu_milli = _numbers("Sum of the limits of the tasks of all tenants, in millicores.")
    limit_ram_mib = _numbers("Sum of the limits of the tasks of all tenants, in MiB.")
    own_tasks = _numbers("Tasks that you may see.")
    reservation_cpu_milli = _numbers("Sum of the reservations of tasks that you may see, in millicores.")
    reservation_ram_mib = _numbers("Sum of the reservations of tasks that you may see, in MiB.")
    priority = _numbers("Highest priority of a task that you may see; -1 if there is none.")
    usage_cpu_milli = _numbers(
        "Newest CPU usage in millicores. SREs see that of the whole machine, others that of the tasks that they may"
        " see; null if it is not known.",
        may_be_null=True,
    )
    usage_ram_mib = _numbers("The same for RAM, in MiB.", may_be_null=True)
    job_tasks = serializers.ListField(
        child=serializers.IntegerField(), required=False, help_text="Tasks of the job of the parameter `job`."
    )


class MapSerializer(serializers.Serializer[Any]):
    """The machines of a cell. `revision`: the journal revision of the answer. `site`: empty if the cell has none.
    `own`: whether reservations, usage and priorities are only those of tasks that you may see.
    """

    cell = serializers.CharField()
    site = serializers.CharField(allow_blank=True)
    revision = serializers.IntegerField()
    at = serializers.DateTimeField()
    own = serializers.BooleanField()
    job = serializers.CharField(allow_null=True)
    bands = MapBandSerializer(many=True)
    texts = MapTextsSerializer()
    machines = MapMachinesSerializer()


class CellMapView(CellView):
    @extend_schema(
        operation_id="cells_map",
        parameters=[
            OpenApiParameter(
                "job", OpenApiTypes.STR, description="A job, as `tenant/name`: the answer counts its tasks per machine."
            )
        ],
        responses=MapSerializer,
    )
    def get(self, request: Request, cell: str) -> HttpResponse:
        """Return all machines of a cell with their capacity, limits, reservations and usage, as columns."""
        found = self.cell(cell)
        content = encoded_map(
            found,
            scope_of(self.principal, found),
            shown_job(self.principal, found, request.query_params.get("job", "")),
        )
        return HttpResponse(content, content_type="application/json")
