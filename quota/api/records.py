"""REST API for the platform's records: each change, with its time and its actor."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers

from quota.api.base import ListView
from quota.models import Record
from quota.paging import IdPaging
from quota.tenancy.audit import records_visible


class RecordSerializer(serializers.ModelSerializer[Any]):
    class Meta:
        model = Record
        fields = ["revision", "time", "kind", "tenant", "actor", "request_id", "data"]


class RecordQuerySerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(max_length=63, required=False, help_text="Return only records of this tenant.")
    kind = serializers.CharField(
        max_length=64,
        required=False,
        help_text="Return only this kind, such as member.set, or all kinds that begin with this text, such as member.",
    )
    actor = serializers.CharField(max_length=200, required=False, help_text="The full name of the actor.")
    since = serializers.DateTimeField(required=False, help_text="Return only records from this time on.")
    until = serializers.DateTimeField(required=False, help_text="Return only records before this time.")


class RecordPaging(IdPaging):
    """Pages with the newest record first."""

    ordering = "-revision"


@extend_schema(parameters=[RecordQuerySerializer])
class RecordsView(ListView):
    """List changes of the tenants that you own, newest first. SREs see all changes."""

    serializer_class = RecordSerializer
    pagination_class = RecordPaging

    def get_queryset(self) -> QuerySet[Record]:
        return records_visible(self.principal, **self.query(RecordQuerySerializer))
