"""REST API for sign-in and tokens."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.contrib.auth import authenticate
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, inline_serializer
from rest_framework import exceptions, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota import selectors
from quota.api.base import ListView, QuotaView
from quota.dry_run import dry_run
from quota.models import ServiceAccount, Token
from quota.tenancy.authentication import principal_of_user
from quota.tenancy.provider_accounts import from_provider
from quota.tenancy.second_factor import check_code
from quota.tenancy.sign_in_limits import address_of, check_limited
from quota.tenancy.token_rotation import LONGEST_OVERLAP, OVERLAP, token_rotate
from quota.tenancy.tokens import default_end, token_issue, token_revoke
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import GENERAL_SCOPES, Principal, Scope

_HOUR = dt.timedelta(hours=1)


class TokenSerializer(serializers.ModelSerializer[Any]):
    tenant = serializers.SlugRelatedField(slug_field="name", read_only=True)  # type: ignore[var-annotated]
    user = serializers.CharField(source="user.username", read_only=True)
    parent = serializers.SlugRelatedField(  # type: ignore[assignment, var-annotated]
        slug_field="key",
        read_only=True,
        help_text="The key of the token that issued this one. When that token ends, this one ends too.",
    )
    successor = serializers.SlugRelatedField(  # type: ignore[var-annotated]
        slug_field="key", read_only=True, help_text="The key of the token that replaces this one after a rotation."
    )

    class Meta:
        model = Token
        fields = [
            "key",
            "name",
            "user",
            "tenant",
            "parent",
            "successor",
            "scopes",
            "created_at",
            "expires_at",
            "last_used_at",
            "revoked_at",
        ]
        read_only_fields = fields


class NewTokenSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=100)
    scopes = serializers.ListField(
        child=serializers.ChoiceField([scope.value for scope in GENERAL_SCOPES]),
        default=[Scope.READ.value, Scope.WRITE.value],
    )
    tenant = serializers.CharField(max_length=63, required=False, allow_null=True)
    expires_at = serializers.DateTimeField(
        required=False,
        allow_null=True,
        help_text="End of the token: by default in 90 days, and null for no end. A token that another token issues"
        " always ends, and never after its parent.",
    )


class TokenRotationSerializer(serializers.Serializer[Any]):
    overlap_hours = serializers.IntegerField(
        min_value=0,
        max_value=LONGEST_OVERLAP // _HOUR,
        default=OVERLAP // _HOUR,
        help_text="Hours for which the old token stays valid beside the new one.",
    )


class LoginSerializer(NewTokenSerializer):
    username = serializers.CharField(max_length=150)
    password = serializers.CharField(max_length=500, trim_whitespace=False)
    code = serializers.CharField(
        max_length=20,
        required=False,
        help_text="A code of the app, or a recovery code, if the account has a second factor.",
    )


IssuedToken = inline_serializer(
    "IssuedToken", {"secret": serializers.CharField(help_text="Shown only once."), "token": TokenSerializer()}
)


class LoginView(QuotaView):
    """Return a token for a user name and a password, and for a code if the account has a second factor."""

    authentication_classes: list[Any] = []
    permission_classes: list[Any] = []

    @extend_schema(request=LoginSerializer, responses={201: IssuedToken}, auth=[])
    def post(self, request: Request) -> Response:
        given = self.body(LoginSerializer)
        username, password = given["username"], given["password"]
        user = check_limited(
            username,
            address_of(request._request),
            lambda: authenticate(request._request, username=username, password=password),
        )
        if user is None:
            raise exceptions.AuthenticationFailed("the user name or password is wrong; check both")
        if ServiceAccount.objects.filter(user_id=user.pk).exists():
            raise Rejected(
                "service-account",
                f"{user.get_username()} is a service account, which cannot sign in; ask a tenant owner for a token",
                status=403,
            )
        if from_provider(user):
            raise Rejected(
                "at-the-provider",
                f"{user.get_username()} signs in only through the identity provider; sign in to the portal there, and"
                " create a token on the page Tokens",
                status=403,
            )
        check_code(user, given.get("code", ""))
        principal = principal_of_user(user, request_id=getattr(request._request, "borg_request_id", ""))
        return _issue(request, principal, user, given)


class TokensView(ListView):
    """List your own tokens."""

    serializer_class = TokenSerializer

    def get_queryset(self) -> QuerySet[Token]:
        return selectors.tokens_of(self.principal)

    @extend_schema(request=NewTokenSerializer, responses={201: IssuedToken})
    def post(self, request: Request) -> Response:
        """Issue a token.

        The caller needs a session, or a token with scope admin, which becomes the parent of the new token.
        """
        return _issue(request, self.principal, request.user, self.body(NewTokenSerializer))


class TokenView(QuotaView):
    @extend_schema(responses=TokenSerializer)
    def delete(self, request: Request, key: str) -> Response:
        """Revoke a token and its children immediately.

        The caller needs a session or scope admin, but any token may revoke itself.
        """
        return Response(TokenSerializer(token_revoke(principal=self.principal, key=key)).data)


class TokenRotationView(QuotaView):
    @extend_schema(request=TokenRotationSerializer, responses={201: IssuedToken})
    def post(self, request: Request, key: str) -> Response:
        """Issue a new token in place of a token, which then ends after some hours.

        The new token has the same name, scopes, tenant and duration. The caller needs a session or scope admin, but any
        token may rotate itself.
        """
        overlap = self.body(TokenRotationSerializer)["overlap_hours"] * _HOUR
        return _issued(request, *token_rotate(principal=self.principal, key=key, overlap=overlap))


def _issue(request: Request, principal: Principal, user: Any, given: dict[str, Any]) -> Response:
    tenant = selectors.tenant_named(principal, given["tenant"]) if given.get("tenant") else None
    token, secret = token_issue(
        principal=principal,
        user=user,
        name=given["name"],
        scopes=given["scopes"],
        tenant=tenant,
        expires_at=given["expires_at"] if "expires_at" in given else default_end(principal),
    )
    return _issued(request, token, secret)


def _issued(request: Request, token: Token, secret: str) -> Response:
    """Return the answer with a new token. A dry run does not return the secret."""
    return Response({"secret": "" if dry_run(request) else secret, "token": TokenSerializer(token).data}, status=201)
