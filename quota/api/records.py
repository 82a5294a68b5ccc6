"""REST of the records: what happened, and who did it."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.api.base import QuotaView, page, principal_of, valid
from quota.models import Record
from quota.paging import IdPaging
from quota.tenancy.audit import records_visible

_FILTERS = (
    ("tenant", OpenApiTypes.STR, "Of this tenant alone."),
    ("kind", OpenApiTypes.STR, "A kind such as member.set, or its beginning, member."),
    ("actor", OpenApiTypes.STR, "The full name of the actor."),
    ("since", OpenApiTypes.DATETIME, "From this time on."),
    ("until", OpenApiTypes.DATETIME, "Before this time."),
)


class RecordSerializer(serializers.ModelSerializer[Any]):
    class Meta:
        model = Record
        fields = ["revision", "time", "kind", "tenant", "actor", "request_id", "data"]


class FilterSerializer(serializers.Serializer[Any]):
    """The query as fields, so that what is malformed is named like those of a body."""

    tenant = serializers.CharField(max_length=63, required=False, allow_blank=True)
    kind = serializers.CharField(max_length=64, required=False, allow_blank=True)
    actor = serializers.CharField(max_length=200, required=False, allow_blank=True)
    since = serializers.DateTimeField(required=False)
    until = serializers.DateTimeField(required=False)


class RecordPaging(IdPaging):
    """Pages with the newest record first."""

    ordering = "-revision"


class RecordsView(QuotaView):
    pagination_class = RecordPaging

    @extend_schema(
        parameters=[OpenApiParameter(name, kind, description=what) for name, kind, what in _FILTERS],
        responses=RecordSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """List changes of the tenants that you own, newest first. SREs see all."""
        names = [name for name, _, _ in _FILTERS]
        given = valid(FilterSerializer, {n: request.query_params[n] for n in names if n in request.query_params})
        rows = records_visible(principal_of(request), **given)
        return page(self, request, rows, RecordSerializer)
