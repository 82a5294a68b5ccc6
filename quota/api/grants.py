"""REST API for grants of quota, and for the quota that is granted and in use."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota import selectors
from quota.api.base import AmountsField, ListView, QuotaView
from quota.market.grants import quota_end, quota_grant
from quota.models import Quota
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, require


class GrantSerializer(serializers.ModelSerializer[Any]):
    tenant = serializers.CharField(source="tenant.name")
    band = serializers.CharField(source="band.name")
    amounts = AmountsField()

    class Meta:
        model = Quota
        fields = [
            "id",
            "tenant",
            "cell",
            "band",
            "amounts",
            "starts_at",
            "ends_at",
            "grace_until",
            "beyond_capacity",
            "order",
            "reason",
        ]


class NewGrantSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(max_length=63)
    cell = serializers.CharField(max_length=63)
    band = serializers.CharField(max_length=63)
    amounts = serializers.DictField(child=serializers.JSONField())
    starts_at = serializers.DateTimeField(required=False)
    ends_at = serializers.DateTimeField(required=False, allow_null=True)
    reason = serializers.CharField(max_length=200, required=False, allow_blank=True)
    beyond_capacity = serializers.BooleanField(
        required=False, help_text="True grants more than the cell has, for trials. This needs a reason."
    )


class GrantsView(ListView):
    """List the grants of the tenants that you may see."""

    serializer_class = GrantSerializer

    def get_queryset(self) -> QuerySet[Quota]:
        return selectors.grants_visible(self.principal)

    @extend_schema(request=NewGrantSerializer, responses={201: GrantSerializer})
    def post(self, request: Request) -> Response:
        """Grant quota to a tenant. Only for SREs."""
        require(self.principal, Action.PLATFORM_ADMIN)
        given = self.body(NewGrantSerializer)
        tenant = selectors.tenant_named(self.principal, given.pop("tenant"))
        quota = quota_grant(principal=self.principal, tenant=tenant, **given)
        return Response(GrantSerializer(quota).data, status=201)


class GrantView(QuotaView):
    @extend_schema(responses=GrantSerializer)
    def delete(self, request: Request, grant: int) -> Response:
        """End a grant now. Only for SREs."""
        quota = selectors.grants_visible(self.principal).filter(pk=grant).first()
        if quota is None:
            raise NotFound("grant", str(grant))
        return Response(GrantSerializer(quota_end(principal=self.principal, quota=quota)).data)


class StandingSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField()
    cell = serializers.CharField()
    band = serializers.CharField()
    granted = AmountsField()
    used = AmountsField()


class StandingView(QuotaView):
    @extend_schema(responses=StandingSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List granted and used quota per tenant, cell and band, for the tenants that you may see."""
        return Response(StandingSerializer(selectors.standings(self.principal), many=True).data)
