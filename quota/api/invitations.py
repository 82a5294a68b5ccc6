"""REST API for invitations. Signed-in people accept them in the portal."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota import clock
from quota.api.base import ListView, QuotaView
from quota.dry_run import dry_run
from quota.models import Invitation
from quota.tenancy import member_lists
from quota.tenancy.invitations import invitation_mail, invitation_send, invitation_withdraw, link_of
from quota.vocabulary.permissions import Action, Role


class InvitationSerializer(serializers.ModelSerializer[Any]):
    tenant = serializers.CharField(source="tenant.name")
    state = serializers.SerializerMethodField()

    class Meta:
        model = Invitation
        fields = ["key", "tenant", "email", "role", "state", "invited_by", "created_at", "expires_at", "accepted_at"]

    def get_state(self, row: Invitation) -> str:
        return state_of(row)


def state_of(row: Invitation) -> str:
    """Return the state of an invitation: open, accepted, withdrawn or expired."""
    if row.accepted_at is not None:
        return "accepted"
    if row.withdrawn_at is not None:
        return "withdrawn"
    return "expired" if row.expires_at <= clock.now() else "open"


class NewInvitationSerializer(serializers.Serializer[Any]):
    email = serializers.CharField(max_length=254)
    role = serializers.ChoiceField([role.value for role in Role])
    expires_at = serializers.DateTimeField(
        required=False, help_text="End of the invitation: by default in 7 days, at most in 30 days."
    )


SentInvitation = inline_serializer(
    "SentInvitation",
    {
        "invitation": InvitationSerializer(),
        "link": serializers.CharField(help_text="Shown only once. Any person who has the link may join."),
        "mail": serializers.CharField(help_text="Why the mail could not be sent; empty if it was."),
    },
)


class InvitationsView(ListView):
    """List the invitations of a tenant. Only for owners."""

    serializer_class = InvitationSerializer

    def get_queryset(self) -> QuerySet[Invitation]:
        return member_lists.invitations_of(self.principal, self.tenant())

    @extend_schema(request=NewInvitationSerializer, responses={201: SentInvitation})
    def post(self, request: Request, tenant: str) -> Response:
        """Invite a person by e-mail. The answer is the same whether the address belongs to a user or not."""
        row = self.tenant(Action.TENANT_ADMIN)
        given = self.body(NewInvitationSerializer)
        invitation, secret = invitation_send(principal=self.principal, tenant=row, **given)
        rehearsed = dry_run(request)
        return Response(
            {
                "invitation": InvitationSerializer(invitation).data,
                "link": "" if rehearsed else link_of(secret),
                "mail": "" if rehearsed else invitation_mail(invitation, secret),
            },
            status=201,
        )


class InvitationView(QuotaView):
    @extend_schema(responses=InvitationSerializer)
    def delete(self, request: Request, tenant: str, invitation: str) -> Response:
        """Withdraw an invitation. Its link stops working."""
        done = invitation_withdraw(principal=self.principal, tenant=self.tenant(), key=invitation)
        return Response(InvitationSerializer(done).data)
