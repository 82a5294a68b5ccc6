"""REST API for the secrets of tenants. A value can be set, but no answer contains one."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.api.base import ListView, QuotaView
from quota.dry_run import DRY_RUN
from quota.models import Tenant
from quota.vocabulary.errors import invalid
from scheduling.models import Secret, SecretGrant, SecretVersion
from scheduling.secrets import secrets, selectors
from scheduling.secrets.grant_rules import MAX_VALUE_BYTES

_FORCE = OpenApiParameter(
    "force", OpenApiTypes.BOOL, description="Delete it even if live jobs, cron jobs or workflows use it."
)
# Base64 is a third longer than the value.
_MAX_BASE64 = MAX_VALUE_BYTES * 4 // 3 + 8


class SecretVersionSerializer(serializers.ModelSerializer[Any]):
    class Meta:
        model = SecretVersion
        fields = ["version", "size_bytes", "is_text", "fingerprint", "key_id", "created_by", "created_at"]


class SecretGrantSerializer(serializers.ModelSerializer[Any]):
    class Meta:
        model = SecretGrant
        fields = ["jobs", "cell", "created_by", "created_at"]


class SecretSerializer(serializers.ModelSerializer[Any]):
    """A secret without its value. `fingerprint`: equal values of one secret have equal fingerprints under one key."""

    tenant = serializers.CharField(source="tenant.name")
    versions = SecretVersionSerializer(source="shown_versions", many=True, help_text="Newest first.")
    grants = SecretGrantSerializer(source="shown_grants", many=True)

    class Meta:
        model = Secret
        fields = ["name", "tenant", "newest_version", "versions", "grants", "created_by", "created_at"]


class SecretUseSerializer(serializers.Serializer[Any]):
    cell = serializers.CharField()
    job = serializers.CharField()


class SecretDetailSerializer(SecretSerializer):
    used_by = serializers.SerializerMethodField(help_text="Live jobs, cron jobs and workflows that use the secret.")

    class Meta(SecretSerializer.Meta):
        fields = [*SecretSerializer.Meta.fields, "used_by"]

    @extend_schema_field(SecretUseSerializer(many=True))
    def get_used_by(self, row: Secret) -> list[dict[str, str]]:
        jobs = selectors.using_jobs(self.context["principal"], row, self.context["users"])
        return [{"cell": job.cell, "job": job.name} for job in jobs]


class SecretValueSerializer(serializers.Serializer[Any]):
    value = serializers.CharField(
        required=False, trim_whitespace=False, write_only=True, help_text="The value as text. It is never returned."
    )
    value_base64 = serializers.CharField(
        required=False, max_length=_MAX_BASE64, write_only=True, help_text="The value in base64, instead of `value`."
    )


class GrantedJobsSerializer(serializers.Serializer[Any]):
    jobs = serializers.CharField(
        max_length=64, help_text="Name of a job, or the beginning of names and `*`, such as `shop-*`."
    )
    cell = serializers.CharField(max_length=63, default="", allow_blank=True, help_text="Empty for all cells.")


class _SecretView(QuotaView):
    def shown(
        self, tenant: Tenant, name: str, changed: secrets.SecretChange | None = None, *, status: int = 200
    ) -> Response:
        """Return the answer with a secret. `changed`: the change that has just been made."""
        row = selectors.secret_shown(self.principal, tenant, name)
        context = {"principal": self.principal, "users": changed.users if changed is not None else None}
        return Response(SecretDetailSerializer(row, context=context).data, status=status)


class SecretsView(ListView):
    """List the secrets of a tenant, without their values."""

    serializer_class = SecretSerializer

    def get_queryset(self) -> QuerySet[Secret]:
        return selectors.secrets_of(self.principal, self.tenant()).select_related("tenant")


class SecretView(_SecretView):
    @extend_schema(operation_id="secrets_get", responses=SecretDetailSerializer)
    def get(self, request: Request, tenant: str, secret: str) -> Response:
        """Return a secret with its versions, its grants and the jobs that use it, without its value."""
        return self.shown(self.tenant(), secret)

    @extend_schema(
        operation_id="secrets_set",
        parameters=[DRY_RUN],
        request=SecretValueSerializer,
        responses={201: SecretDetailSerializer},
    )
    def put(self, request: Request, tenant: str, secret: str) -> Response:
        """Set a value, which becomes the newest version. Create the secret if it does not exist.

        Running tasks that use the newest version as a file get it within seconds.
        """
        row = self.tenant()
        value = _value(self.body(SecretValueSerializer))
        changed = secrets.secret_set(principal=self.principal, tenant=row, name=secret, value=value)
        return self.shown(row, secret, changed, status=201)

    @extend_schema(operation_id="secrets_delete", parameters=[DRY_RUN, _FORCE], responses={204: None})
    def delete(self, request: Request, tenant: str, secret: str) -> Response:
        """Delete a secret with all versions and grants. Running tasks keep the value that they have."""
        force = request.query_params.get("force", "") in ("1", "true")
        secrets.secret_delete(principal=self.principal, tenant=self.tenant(), name=secret, force=force)
        return Response(status=204)


class SecretGrantView(_SecretView):
    @extend_schema(
        operation_id="secrets_grant",
        parameters=[DRY_RUN],
        request=GrantedJobsSerializer,
        responses=SecretDetailSerializer,
    )
    def post(self, request: Request, tenant: str, secret: str) -> Response:
        """Let jobs of the tenant use a secret. Only for owners. Idempotent."""
        row, given = self.tenant(), self.body(GrantedJobsSerializer)
        changed = secrets.secret_grant(principal=self.principal, tenant=row, name=secret, **given)
        return self.shown(row, secret, changed)


class SecretRevokeView(_SecretView):
    @extend_schema(
        operation_id="secrets_revoke",
        parameters=[DRY_RUN],
        request=GrantedJobsSerializer,
        responses=SecretDetailSerializer,
    )
    def post(self, request: Request, tenant: str, secret: str) -> Response:
        """Delete a grant. Only for owners. Running tasks keep the value that they have."""
        row, given = self.tenant(), self.body(GrantedJobsSerializer)
        changed = secrets.secret_revoke(principal=self.principal, tenant=row, name=secret, **given)
        return self.shown(row, secret, changed)


def _value(given: dict[str, Any]) -> bytes:
    """Return the value in a request. Raises `Rejected`, without the value, if there is none or more than one."""
    if len(given) != 1:
        raise invalid("value", "the request needs one value; give either value or value_base64")
    if "value" in given:
        return str(given["value"]).encode()
    try:
        return base64.b64decode(given["value_base64"], validate=True)
    except (binascii.Error, ValueError):
        raise invalid("value_base64", "the value is not base64; encode it, or give it as text in value") from None
