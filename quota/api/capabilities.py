"""REST API for capabilities (§2.5) and requests for them."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota import selectors
from quota.api.base import ListView, QuotaView
from quota.models import Capability, CapabilityRequest
from quota.tenancy import member_lists
from quota.tenancy.authentication import user_named
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
        max_length=63, required=False, allow_blank=True, trim_whitespace=False, help_text="If empty, all cells."
    )
    reason = serializers.CharField(max_length=500)
    expires_at = serializers.DateTimeField(
        required=False, help_text="End of the capability: by default in 90 days, at most in 366 days."
    )


class CapabilitiesView(ListView):
    """List your capabilities, and the capabilities of members of tenants that you own. SREs see all capabilities."""

    serializer_class = CapabilitySerializer

    def get_queryset(self) -> QuerySet[Capability]:
        return member_lists.capabilities_visible(self.principal)

    @extend_schema(request=NewCapabilitySerializer, responses={201: CapabilitySerializer})
    def post(self, request: Request) -> Response:
        """Grant a capability, or change its end. Only for SREs."""
        require(self.principal, Action.PLATFORM_ADMIN)
        given = self.body(NewCapabilitySerializer)
        made = capability_grant(principal=self.principal, user=user_named(given.pop("user")), **given)
        return Response(CapabilitySerializer(made).data, status=201)


class CapabilityView(QuotaView):
    @extend_schema(responses={204: None})
    def delete(self, request: Request, capability: int) -> Response:
        """Revoke a capability immediately. Only for SREs."""
        require(self.principal, Action.PLATFORM_ADMIN)
        row = member_lists.capabilities_visible(self.principal).filter(pk=capability).first()
        if row is None:
            raise NotFound("capability", str(capability))
        capability_revoke(principal=self.principal, capability=row)
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
    user = serializers.CharField(max_length=150, required=False, help_text="Name of the user; by default yourself.")
    kind = serializers.ChoiceField(KINDS)
    cell = serializers.CharField(max_length=63, required=False, allow_blank=True, trim_whitespace=False)
    reason = serializers.CharField(max_length=500)
    until = serializers.DateTimeField(
        required=False, help_text="End of the capability: by default in 90 days, at most in 366 days."
    )


class AnswerSerializer(serializers.Serializer[Any]):
    granted = serializers.BooleanField()
    answer = serializers.CharField(max_length=500, required=False, allow_blank=True)
    until = serializers.DateTimeField(required=False, help_text="End of the capability; by default as requested.")


class CapabilityRequestsView(ListView):
    """List requests for capabilities and their answers."""

    serializer_class = CapabilityRequestSerializer

    def get_queryset(self) -> QuerySet[CapabilityRequest]:
        return member_lists.requests_visible(self.principal)

    @extend_schema(request=AskSerializer, responses={201: CapabilityRequestSerializer})
    def post(self, request: Request) -> Response:
        """Request a capability from the SREs for yourself.

        An owner can also request a capability for a member or service account.
        """
        given = self.body(AskSerializer)
        tenant = selectors.tenant_named(self.principal, given.pop("tenant"))
        username = given.pop("user", self.principal.name)
        made = capability_ask(principal=self.principal, tenant=tenant, username=username, **given)
        return Response(CapabilityRequestSerializer(made).data, status=201)


class CapabilityRequestView(QuotaView):
    @extend_schema(request=AnswerSerializer, responses=CapabilityRequestSerializer)
    def put(self, request: Request, asked: int) -> Response:
        """Grant or reject a request for a capability. Only for SREs."""
        require(self.principal, Action.PLATFORM_ADMIN)
        given = self.body(AnswerSerializer)
        row = member_lists.requests_visible(self.principal).filter(pk=asked).first()
        if row is None:
            raise NotFound("request", str(asked))
        answered = capability_answer(principal=self.principal, request=row, **given)
        return Response(CapabilityRequestSerializer(answered).data)
