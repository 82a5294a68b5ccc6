"""REST of capabilities (§2.5): held, asked for, granted, revoked."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota import selectors
from quota.api.base import QuotaView, page, principal_of, valid
from quota.models import Capability, CapabilityRequest
from quota.paging import IdPaging
from quota.tenancy import people
from quota.tenancy.access import user_named
from quota.tenancy.capabilities import capability_answer, capability_ask, capability_grant, capability_revoke
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, CapabilityKind, require

KINDS = [kind.value for kind in CapabilityKind]


class CapabilitySerializer(serializers.ModelSerializer[Any]):
    user = serializers.CharField(source="user.username")

    class Meta:
        model = Capability
        fields = ["id", "user", "kind", "cell", "reason", "granted_by", "created_at", "expires_at"]


class NewCapabilitySerializer(serializers.Serializer[Any]):
    user = serializers.CharField(max_length=150)
    kind = serializers.ChoiceField(KINDS)
    cell = serializers.CharField(
        max_length=63, required=False, allow_blank=True, trim_whitespace=False, help_text="Cell; empty: every cell."
    )
    reason = serializers.CharField(max_length=500)
    expires_at = serializers.DateTimeField(
        required=False, help_text="When it ends: by default in 90 days, at most in 366."
    )


class CapabilitiesView(QuotaView):
    pagination_class = IdPaging

    @extend_schema(responses=CapabilitySerializer(many=True))
    def get(self, request: Request) -> Response:
        """List your capabilities, and those of the members of tenants that you own. SREs see all."""
        return page(self, request, people.capabilities_visible(principal_of(request)), CapabilitySerializer)

    @extend_schema(request=NewCapabilitySerializer, responses={201: CapabilitySerializer})
    def post(self, request: Request) -> Response:
        """Grant a capability, or change its end. Only for SREs."""
        principal = principal_of(request)
        require(principal, Action.PLATFORM_ADMIN)
        given = valid(NewCapabilitySerializer, request.data)
        made = capability_grant(principal=principal, user=user_named(given.pop("user")), **given)
        return Response(CapabilitySerializer(made).data, status=201)


class CapabilityView(QuotaView):
    @extend_schema(responses={204: None})
    def delete(self, request: Request, capability: int) -> Response:
        """Revoke a capability at once. Only for SREs."""
        principal = principal_of(request)
        require(principal, Action.PLATFORM_ADMIN)
        row = people.capabilities_visible(principal).filter(pk=capability).first()
        if row is None:
            raise NotFound("capability", str(capability))
        capability_revoke(principal=principal, capability=row)
        return Response(status=204)


class CapabilityRequestSerializer(serializers.ModelSerializer[Any]):
    user = serializers.CharField(source="user.username")
    tenant = serializers.CharField(source="tenant.name")

    class Meta:
        model = CapabilityRequest
        fields = [
            "id",
            "tenant",
            "user",
            "kind",
            "cell",
            "reason",
            "until",
            "asked_by",
            "asked_at",
            "state",
            "answer",
            "answered_by",
            "answered_at",
            "capability",
        ]


class AskSerializer(serializers.Serializer[Any]):
    tenant = serializers.CharField(max_length=63)
    user = serializers.CharField(max_length=150, required=False, help_text="User who gets it; by default yourself.")
    kind = serializers.ChoiceField(KINDS)
    cell = serializers.CharField(max_length=63, required=False, allow_blank=True, trim_whitespace=False)
    reason = serializers.CharField(max_length=500)
    until = serializers.DateTimeField(required=False, help_text="When it ends: by default in 90 days, at most in 366.")


class AnswerSerializer(serializers.Serializer[Any]):
    granted = serializers.BooleanField()
    answer = serializers.CharField(max_length=500, required=False, allow_blank=True)
    until = serializers.DateTimeField(required=False, help_text="End, if it differs from the requested one.")


class CapabilityRequestsView(QuotaView):
    pagination_class = IdPaging

    @extend_schema(responses=CapabilityRequestSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List requests for capabilities and their answers."""
        rows = people.requests_visible(principal_of(request))
        return page(self, request, rows, CapabilityRequestSerializer)

    @extend_schema(request=AskSerializer, responses={201: CapabilityRequestSerializer})
    def post(self, request: Request) -> Response:
        """Request a capability from the SREs, for yourself, or as an owner for a member or service account."""
        principal = principal_of(request)
        given = valid(AskSerializer, request.data)
        tenant = selectors.tenant_named(principal, given.pop("tenant"))
        username = given.pop("user", principal.name)
        made = capability_ask(principal=principal, tenant=tenant, username=username, **given)
        return Response(CapabilityRequestSerializer(made).data, status=201)


class CapabilityRequestView(QuotaView):
    @extend_schema(request=AnswerSerializer, responses=CapabilityRequestSerializer)
    def put(self, request: Request, asked: int) -> Response:
        """Grant or reject a request. Only for SREs."""
        principal = principal_of(request)
        require(principal, Action.PLATFORM_ADMIN)
        given = valid(AnswerSerializer, request.data)
        row = people.requests_visible(principal).filter(pk=asked).first()
        if row is None:
            raise NotFound("request", str(asked))
        return Response(CapabilityRequestSerializer(capability_answer(principal=principal, request=row, **given)).data)
