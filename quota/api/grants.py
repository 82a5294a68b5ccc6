"""REST of what is granted and in use."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota import selectors
from quota.api.base import QuotaView, page, principal_of, valid
from quota.market.grants import quota_end, quota_grant
from quota.models import Quota
from quota.paging import IdPaging
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, require
from quota.vocabulary.resources import as_mapping


class GrantSerializer(serializers.ModelSerializer[Any]):
    tenant = serializers.CharField(source="tenant.name")
    band = serializers.CharField(source="band.name")
    amounts = serializers.SerializerMethodField()

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

    def get_amounts(self, quota: Quota) -> dict[str, int]:
        return as_mapping(quota.amounts)


class NewGrantSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(max_length=63)
    cell = serializers.CharField(max_length=63)
    band = serializers.CharField(max_length=63)
    amounts = serializers.DictField(child=serializers.JSONField())
    starts_at = serializers.DateTimeField(required=False)
    ends_at = serializers.DateTimeField(required=False, allow_null=True)
    reason = serializers.CharField(max_length=200, required=False, allow_blank=True)
    beyond_capacity = serializers.BooleanField(
        required=False, help_text="Grant more than the cell has, for trials. Needs a reason."
    )


class GrantsView(QuotaView):
    pagination_class = IdPaging

    @extend_schema(responses=GrantSerializer(many=True))
    def get(self, request: Request) -> Response:
        return page(self, request, selectors.grants_visible(principal_of(request)), GrantSerializer)

    @extend_schema(request=NewGrantSerializer, responses={201: GrantSerializer})
    def post(self, request: Request) -> Response:
        principal = principal_of(request)
        require(principal, Action.PLATFORM_ADMIN)
        given = valid(NewGrantSerializer, request.data)
        tenant = selectors.tenant_named(principal, given.pop("tenant"))
        quota = quota_grant(principal=principal, tenant=tenant, **given)
        return Response(GrantSerializer(quota).data, status=201)


class GrantView(QuotaView):
    @extend_schema(responses=GrantSerializer)
    def delete(self, request: Request, grant: int) -> Response:
        """End a grant now."""
        principal = principal_of(request)
        quota = selectors.grants_visible(principal).filter(pk=grant).first()
        if quota is None:
            raise NotFound("grant", str(grant))
        return Response(GrantSerializer(quota_end(principal=principal, quota=quota)).data)


StandingSerializer = inline_serializer(
    "Standing",
    {
        "tenant": serializers.CharField(),
        "cell": serializers.CharField(),
        "band": serializers.CharField(),
        "granted": serializers.DictField(child=serializers.IntegerField()),
        "used": serializers.DictField(child=serializers.IntegerField()),
    },
    many=True,
)


class StandingView(QuotaView):
    @extend_schema(responses=StandingSerializer)
    def get(self, request: Request) -> Response:
        """List granted and used quota per tenant, cell and band, for the tenants that you may see."""
        return Response([standing.as_json() for standing in selectors.standings(principal_of(request))])
