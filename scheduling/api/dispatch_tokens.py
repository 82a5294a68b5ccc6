"""REST views of tokens that may only dispatch templates: issue and list."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_field, inline_serializer
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota.api.base import ListView
from quota.api.tokens import TokenSerializer
from quota.dry_run import DRY_RUN, dry_run
from quota.models import Token
from quota.tenancy.tokens import default_end, issued_for
from quota.vocabulary.permissions import Scope
from scheduling.job_templates import dispatch_tokens


class _TokensSerializer(serializers.ListSerializer[Any]):
    """A list of tokens whose templates are read for all tokens at once."""

    def to_representation(self, data: Any) -> list[Any]:
        rows = list(data)
        dispatch_tokens.set_dispatches(rows)
        return super().to_representation(rows)


class DispatchTokenSerializer(TokenSerializer):
    templates = serializers.SerializerMethodField(help_text="The templates that the token may dispatch.")

    class Meta(TokenSerializer.Meta):
        list_serializer_class = _TokensSerializer
        fields = [*TokenSerializer.Meta.fields, "templates"]
        read_only_fields = fields

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_templates(self, row: Token) -> list[str]:
        if not hasattr(row, "dispatches"):  # a single token
            dispatch_tokens.set_dispatches([row])
        names: list[str] = row.dispatches  # type: ignore[attr-defined]
        return names


class NewDispatchTokenSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=100)
    templates = serializers.ListField(
        child=serializers.CharField(max_length=200),
        max_length=dispatch_tokens.MAX_TEMPLATES,
        help_text="Full names of templates of one tenant, CELL/TENANT/TEMPLATE.",
    )
    account = serializers.CharField(
        max_length=150,
        required=False,
        default="",
        help_text="A service account of the tenant, for which the token is issued. Default: yourself.",
    )
    expires_at = serializers.DateTimeField(
        required=False, help_text="End of the token: by default in 90 days, at most in 366 days for a service account."
    )


IssuedDispatchToken = inline_serializer(
    "IssuedDispatchToken",
    {"secret": serializers.CharField(help_text="Shown only once."), "token": DispatchTokenSerializer()},
)


class DispatchTokensView(ListView):
    """List tokens that may only dispatch templates: your own, and those of the service accounts of your tenants if you
    are an owner.
    """

    serializer_class = DispatchTokenSerializer

    def get_queryset(self) -> QuerySet[Token]:
        principal = self.principal
        if Scope.READ not in principal.scopes:
            return Token.objects.none()
        rows = Token.objects.filter(issued_for(principal), scopes=[Scope.DISPATCH.value])
        if principal.tenant is not None:
            rows = rows.filter(tenant__name=principal.tenant)
        return rows.select_related("tenant", "user", "parent", "successor").order_by("id")

    @extend_schema(
        operation_id="dispatch_tokens_issue",
        parameters=[DRY_RUN],
        request=NewDispatchTokenSerializer,
        responses={201: IssuedDispatchToken},
    )
    def post(self, request: Request) -> Response:
        """Issue a token that may only dispatch the given templates, and read the state of the jobs that it has
        dispatched. Every other request with it is answered with status 403.

        The caller needs a session or scope admin, and may dispatch the templates. `DELETE /api/v1/tokens/{key}/`
        revokes the token.
        """
        given = self.body(NewDispatchTokenSerializer)
        token, secret = dispatch_tokens.dispatch_token_issue(
            principal=self.principal,
            user=request.user,  # type: ignore[arg-type]
            name=given["name"],
            templates=given["templates"],
            account=given["account"],
            expires_at=given.get("expires_at") or default_end(self.principal),
        )
        shown = "" if dry_run(request) else secret
        return Response({"secret": shown, "token": DispatchTokenSerializer(token).data}, status=201)
