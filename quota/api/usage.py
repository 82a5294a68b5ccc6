"""REST of what jobs really used of their tenant's quota."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.admission.sizing import MOST_DAYS, usage_of
from quota.api.base import QuotaView, principal_of, valid
from quota.models.fields import dns_label
from quota.selectors import tenant_named


class UsageQuerySerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    cell = serializers.CharField(validators=[dns_label])
    band = serializers.CharField(validators=[dns_label])
    days = serializers.IntegerField(default=14, min_value=1, max_value=MOST_DAYS)


class ResourceUseSerializer(serializers.Serializer[Any]):
    """The usage of one resource, in units of the axis. `asked`, `reserved`: in the hour with the most; `used_*`: over
    the hours.

    `suggested`: to own, when jobs go on asking as they did; `leaner`: when their limits were what they use, and a
    quarter more.
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
    """`hours`: in which jobs lived there; 0: nothing is known."""

    tenant = serializers.CharField()
    cell = serializers.CharField()
    band = serializers.CharField()
    since = serializers.DateTimeField()
    until = serializers.DateTimeField()
    hours = serializers.IntegerField()
    resources = ResourceUseSerializer(many=True)


class UsageView(QuotaView):
    @extend_schema(
        parameters=[
            OpenApiParameter("tenant", OpenApiTypes.STR, required=True, description="The tenant of the jobs."),
            OpenApiParameter("cell", OpenApiTypes.STR, required=True, description="The cell of the jobs."),
            OpenApiParameter("band", OpenApiTypes.STR, required=True, description="The band of the jobs."),
            OpenApiParameter("days", OpenApiTypes.INT, description="Number of days to look back, 14 by default."),
        ],
        responses=UsageOfSerializer,
    )
    def get(self, request: Request) -> Response:
        """Return requests and usage of a tenant's jobs in a band of a cell, by hour, and how much quota to own."""
        asked = valid(UsageQuerySerializer, request.query_params.dict())
        principal = principal_of(request)
        tenant = tenant_named(principal, asked["tenant"])
        detail = usage_of(principal, tenant, asked["cell"], asked["band"], asked["days"])
        return Response(UsageOfSerializer(detail).data)
