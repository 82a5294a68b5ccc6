"""REST of service accounts and their tokens."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota import selectors
from quota.api.access import IssuedToken, TokenSerializer
from quota.api.base import QuotaView, page, principal_of, valid
from quota.models import ServiceAccount, Tenant
from quota.paging import IdPaging
from quota.rehearsal import dry_run
from quota.tenancy import people
from quota.tenancy.service_accounts import (
    ROLES,
    SCOPES,
    service_account_create,
    service_account_named,
    service_account_remove,
    service_account_set,
    service_account_token,
)
from quota.vocabulary.permissions import Action, Principal, require


class ServiceAccountSerializer(serializers.ModelSerializer[Any]):
    name = serializers.SerializerMethodField(help_text="Its name inside its tenant.")
    user = serializers.CharField(source="user.username", help_text="Its full name, in records and as an actor.")
    tenant = serializers.CharField(source="tenant.name")
    role = serializers.ChoiceField(ROLES)
    enabled = serializers.BooleanField(source="user.is_active")

    class Meta:
        model = ServiceAccount
        fields = ["name", "user", "tenant", "role", "description", "enabled", "created_by", "created_at"]

    def get_name(self, account: ServiceAccount) -> str:
        return account.short_name


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
        required=False, help_text="When it ends: by default in 90 days, at most in 366."
    )


class ServiceAccountsView(QuotaView):
    pagination_class = IdPaging

    @extend_schema(responses=ServiceAccountSerializer(many=True))
    def get(self, request: Request, tenant: str) -> Response:
        principal = principal_of(request)
        row = selectors.tenant_named(principal, tenant)
        return page(self, request, people.service_accounts_of(principal, row), ServiceAccountSerializer)

    @extend_schema(request=NewServiceAccountSerializer, responses={201: ServiceAccountSerializer})
    def post(self, request: Request, tenant: str) -> Response:
        principal = principal_of(request)
        row = _owned(principal, tenant)
        given = valid(NewServiceAccountSerializer, request.data)
        made = service_account_create(principal=principal, tenant=row, **given)
        return Response(_shown(principal, row, made), status=201)


class ServiceAccountView(QuotaView):
    @extend_schema(request=ServiceAccountChangeSerializer, responses=ServiceAccountSerializer)
    def put(self, request: Request, tenant: str, account: str) -> Response:
        """Change the given fields. Tokens of a disabled account stop working at once."""
        principal = principal_of(request)
        row = _owned(principal, tenant)
        given = valid(ServiceAccountChangeSerializer, request.data)
        done = service_account_set(principal=principal, account=service_account_named(row, account), **given)
        return Response(_shown(principal, row, done))

    @extend_schema(responses={204: None})
    def delete(self, request: Request, tenant: str, account: str) -> Response:
        """Delete the account and its tokens permanently."""
        principal = principal_of(request)
        row = _owned(principal, tenant)
        service_account_remove(principal=principal, account=service_account_named(row, account))
        return Response(status=204)


class ServiceAccountTokensView(QuotaView):
    pagination_class = IdPaging

    @extend_schema(responses=TokenSerializer(many=True))
    def get(self, request: Request, tenant: str, account: str) -> Response:
        """List the tokens of the account. `tokens/{key}/` revokes one."""
        principal = principal_of(request)
        found = service_account_named(_owned(principal, tenant), account)
        return page(self, request, people.tokens_of_account(principal, found), TokenSerializer)

    @extend_schema(request=AccountTokenSerializer, responses={201: IssuedToken})
    def post(self, request: Request, tenant: str, account: str) -> Response:
        principal = principal_of(request)
        row = _owned(principal, tenant)
        given = valid(AccountTokenSerializer, request.data)
        token, secret = service_account_token(principal=principal, account=service_account_named(row, account), **given)
        shown = "" if dry_run(request) else secret
        return Response({"secret": shown, "token": TokenSerializer(token).data}, status=201)


def _owned(principal: Principal, name: str) -> Tenant:
    tenant = selectors.tenant_named(principal, name)
    require(principal, Action.TENANT_ADMIN, tenant=tenant.name)
    return tenant


def _shown(principal: Principal, tenant: Tenant, account: ServiceAccount) -> dict[str, object]:
    row = people.service_accounts_of(principal, tenant).get(pk=account.pk)
    return dict(ServiceAccountSerializer(row).data)
