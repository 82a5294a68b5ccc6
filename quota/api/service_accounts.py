"""REST API for service accounts and their tokens."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.api.base import ListView, QuotaView
from quota.api.tokens import IssuedToken, TokenSerializer
from quota.dry_run import dry_run
from quota.models import ServiceAccount, Token
from quota.tenancy import member_lists
from quota.tenancy.service_accounts import (
    ROLES,
    SCOPES,
    service_account_create,
    service_account_named,
    service_account_remove,
    service_account_set,
    service_account_token,
)
from quota.vocabulary.permissions import Action


class ServiceAccountSerializer(serializers.ModelSerializer[Any]):
    name = serializers.CharField(source="short_name", help_text="The name inside the tenant.")
    user = serializers.CharField(source="user.username", help_text="The full name, as in records.")
    tenant = serializers.CharField(source="tenant.name")
    role = serializers.ChoiceField(ROLES)
    enabled = serializers.BooleanField(source="user.is_active")

    class Meta:
        model = ServiceAccount
        fields = ["name", "user", "tenant", "role", "description", "enabled", "created_by", "created_at"]


class NewServiceAccountSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=63)
    role = serializers.ChoiceField(ROLES)
    description = serializers.CharField(max_length=200, required=False, allow_blank=True)


class ServiceAccountChangeSerializer(serializers.Serializer[Any]):
    role = serializers.ChoiceField(ROLES, required=False)
    description = serializers.CharField(max_length=200, required=False, allow_blank=True)
    enabled = serializers.BooleanField(required=False)


class AccountTokenSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=100)
    scopes = serializers.ListField(child=serializers.ChoiceField(SCOPES), default=list(SCOPES))
    expires_at = serializers.DateTimeField(
        required=False, help_text="End of the token: by default in 90 days, at most in 366 days."
    )


class ServiceAccountsView(ListView):
    """List the service accounts of a tenant."""

    serializer_class = ServiceAccountSerializer

    def get_queryset(self) -> QuerySet[ServiceAccount]:
        return member_lists.service_accounts_of(self.principal, self.tenant())

    @extend_schema(request=NewServiceAccountSerializer, responses={201: ServiceAccountSerializer})
    def post(self, request: Request, tenant: str) -> Response:
        """Create a service account. Only for owners."""
        row = self.tenant(Action.TENANT_ADMIN)
        made = service_account_create(principal=self.principal, tenant=row, **self.body(NewServiceAccountSerializer))
        return Response(self.get_serializer(self.get_queryset().get(pk=made.pk)).data, status=201)


class ServiceAccountView(QuotaView):
    @extend_schema(request=ServiceAccountChangeSerializer, responses=ServiceAccountSerializer)
    def put(self, request: Request, tenant: str, account: str) -> Response:
        """Change the given fields of a service account. Tokens of a disabled account stop working immediately."""
        row = self.tenant(Action.TENANT_ADMIN)
        given = self.body(ServiceAccountChangeSerializer)
        found = service_account_named(row, account)
        service_account_set(principal=self.principal, account=found, **given)
        changed = member_lists.service_accounts_of(self.principal, row).get(pk=found.pk)
        return Response(ServiceAccountSerializer(changed).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, tenant: str, account: str) -> Response:
        """Delete a service account and its tokens permanently."""
        found = service_account_named(self.tenant(Action.TENANT_ADMIN), account)
        service_account_remove(principal=self.principal, account=found)
        return Response(status=204)


class ServiceAccountTokensView(ListView):
    """List the tokens of a service account. `DELETE /api/v1/tokens/{key}/` revokes a token."""

    serializer_class = TokenSerializer

    def get_queryset(self) -> QuerySet[Token]:
        return member_lists.tokens_of_account(self.principal, self._account())

    @extend_schema(request=AccountTokenSerializer, responses={201: IssuedToken})
    def post(self, request: Request, tenant: str, account: str) -> Response:
        """Issue a token for a service account."""
        found = self._account()
        given = self.body(AccountTokenSerializer)
        token, secret = service_account_token(principal=self.principal, account=found, **given)
        shown = "" if dry_run(request) else secret
        return Response({"secret": shown, "token": TokenSerializer(token).data}, status=201)

    def _account(self) -> ServiceAccount:
        return service_account_named(self.tenant(Action.TENANT_ADMIN), self.kwargs["account"])
