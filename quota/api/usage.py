"""REST API for the usage of jobs, compared with their tenant's quota."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.admission.suggested_quota import MOST_DAYS, usage_of
from quota.api.base import QuotaView, valid
from quota.models.fields import dns_label
from quota.selectors import tenant_named


class UsageQuerySerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(help_text="The tenant of the jobs.")
    cell = serializers.CharField(validators=[dns_label], help_text="The cell of the jobs.")
    band = serializers.CharField(validators=[dns_label], help_text="The band of the jobs.")
    days = serializers.IntegerField(
        default=14, min_value=1, max_value=MOST_DAYS, help_text="Number of days to look back, 14 by default."
    )


class ResourceUseSerializer(serializers.Serializer[Any]):
    """The usage of one resource, in the unit of the resource.

    `asked`: the largest sum of the jobs' limits in any hour. `reserved`: the largest sum of their reservations in any
    hour. `used_*`: percentiles of the usage per hour. `suggested`: the quota to own if jobs continue to request as
    much. `leaner`: the quota to own if the limits of jobs are a quarter above their usage.
    """

    name = serializers.CharField()
    granted = serializers.IntegerField()
    asked = serializers.IntegerField()
    reserved = serializers.IntegerField()
    used_p50 = serializers.IntegerField()
    used_p95 = serializers.IntegerField()
    used_max = serializers.IntegerField()
    suggested = serializers.IntegerField()
    leaner = serializers.IntegerField()


class UsageOfSerializer(serializers.Serializer[Any]):
    """Usage in a period. `hours`: the number of hours in which the tenant had live jobs; 0 means that no usage is
    known.
    """

    tenant = serializers.CharField()
    cell = serializers.CharField()
    band = serializers.CharField()
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    hours = serializers.IntegerField()
    resources = ResourceUseSerializer(many=True)


class UsageView(QuotaView):
    @extend_schema(parameters=[UsageQuerySerializer], responses=UsageOfSerializer)
    def get(self, request: Request) -> Response:
        """Return how much a tenant's jobs in a band of a cell request and use, and how much quota the tenant should
        own.
        """
        asked = valid(UsageQuerySerializer, request.query_params.dict())
        tenant = tenant_named(self.principal, asked["tenant"])
        detail = usage_of(self.principal, tenant, asked["cell"], asked["band"], asked["days"])
        return Response(UsageOfSerializer(detail).data)
