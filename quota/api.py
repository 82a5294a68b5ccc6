"""REST of who may ask for what: sign-in, tokens, tenants, members, bands, grants. Each validates, calls, serialises."""

from __future__ import annotations

from typing import Any

from allauth.mfa.utils import is_mfa_enabled
from django.contrib.auth import authenticate
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, inline_serializer
from rest_framework import exceptions, serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import SimpleRateThrottle
from rest_framework.views import APIView

from quota import selectors
from quota.errors import NotFound, Refused
from quota.models import Membership, PriorityBand, Quota, Tenant, Token
from quota.paging import IdPaging
from quota.permissions import Action, Principal, Role, Scope, require
from quota.rehearsal import RehearsedView, dry_run
from quota.resources import as_mapping
from quota.services.access import principal_of_user, token_issue, token_revoke, user_named
from quota.services.grants import quota_end, quota_grant
from quota.services.tenants import membership_set, tenant_create, tenant_set


def principal_of(request: Request) -> Principal:
    """Who asks. Only for views behind the default permission, which lets nobody anonymous in."""
    assert isinstance(request.auth, Principal)
    return request.auth


class LoginThrottle(SimpleRateThrottle):
    """Ten tries a minute from one address."""

    rate = "10/min"
    scope = "login"

    def get_cache_key(self, request: Request, view: APIView) -> str:
        return self.cache_format % {"scope": self.scope, "ident": self.get_ident(request)}


class QuotaView(RehearsedView):
    """A view whose path and query name things in PostgreSQL, which has no NUL character."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        for name, value in (*kwargs.items(), *request.query_params.items()):
            if "\x00" in str(value):
                raise Refused("invalid", f"{name}: holds a NUL character", fields={name: "NUL character"})


class TokenSerializer(serializers.ModelSerializer):
    tenant = serializers.SlugRelatedField(slug_field="name", read_only=True)
    user = serializers.CharField(source="user.username", read_only=True)

    class Meta:
        model = Token
        fields = [
            "key", "name", "user", "tenant", "scopes", "created_at", "expires_at", "last_used_at", "revoked_at",
        ]  # fmt: skip
        read_only_fields = fields


class NewTokenSerializer(serializers.Serializer):
    name = serializers.CharField(max_length=100)
    scopes = serializers.ListField(
        child=serializers.ChoiceField([scope.value for scope in Scope]),
        default=[Scope.READ.value, Scope.WRITE.value],
    )
    tenant = serializers.CharField(max_length=63, required=False, allow_null=True)
    expires_at = serializers.DateTimeField(required=False, allow_null=True)


class LoginSerializer(NewTokenSerializer):
    username = serializers.CharField(max_length=150)
    password = serializers.CharField(max_length=500, trim_whitespace=False)


IssuedToken = inline_serializer(
    "IssuedToken", {"secret": serializers.CharField(help_text="Shown this once."), "token": TokenSerializer()}
)


class LoginView(QuotaView):
    """A token for a user name and a password."""

    authentication_classes: list = []
    permission_classes: list = []
    throttle_classes = [LoginThrottle]

    @extend_schema(request=LoginSerializer, responses={201: IssuedToken}, auth=[])
    def post(self, request: Request) -> Response:
        given = _valid(LoginSerializer, request.data)
        user = authenticate(request._request, username=given["username"], password=given["password"])
        if user is None:
            raise exceptions.AuthenticationFailed("user name or password is wrong")
        if is_mfa_enabled(user):
            raise Refused(
                "second-factor-needed",
                "this account has a second factor, which a password alone must not pass; sign in at the portal and"
                " make a token on its Tokens page",
                status=403,
            )
        principal = principal_of_user(user, request_id=request._request.borg_request_id)
        return _issue(request, principal, user, given)


class TokensView(QuotaView):
    """One's own tokens."""

    @extend_schema(responses=TokenSerializer(many=True))
    def get(self, request: Request) -> Response:
        return _page(self, request, selectors.tokens_of(principal_of(request)), TokenSerializer)

    @extend_schema(request=NewTokenSerializer, responses={201: IssuedToken})
    def post(self, request: Request) -> Response:
        given = _valid(NewTokenSerializer, request.data)
        return _issue(request, principal_of(request), request.user, given)


class TokenView(QuotaView):
    @extend_schema(responses=TokenSerializer)
    def delete(self, request: Request, key: str) -> Response:
        """Revoke a token, at once and for good."""
        return Response(TokenSerializer(token_revoke(principal=principal_of(request), key=key)).data)


class TenantSerializer(serializers.ModelSerializer):
    class Meta:
        model = Tenant
        fields = ["name", "title", "contact", "max_jobs", "task_api", "created_at"]
        read_only_fields = ["task_api", "created_at"]
        extra_kwargs = {"name": {"validators": []}, "max_jobs": {"required": False}}


class TenantsView(QuotaView):
    @extend_schema(responses=TenantSerializer(many=True))
    def get(self, request: Request) -> Response:
        """The tenants one may see."""
        return _page(self, request, selectors.tenants_visible(principal_of(request)), TenantSerializer)

    @extend_schema(request=TenantSerializer, responses={201: TenantSerializer})
    def post(self, request: Request) -> Response:
        given = _valid(TenantSerializer, request.data)
        tenant = tenant_create(
            principal=principal_of(request), name=given["name"], title=given.get("title", ""),
            contact=given.get("contact", ""),
        )  # fmt: skip
        return Response(TenantSerializer(tenant).data, status=201)


class TenantChangeSerializer(serializers.Serializer):
    title = serializers.CharField(max_length=200, allow_blank=True)
    contact = serializers.EmailField(allow_blank=True, default="")
    max_jobs = serializers.IntegerField(min_value=0, required=False)
    task_api = serializers.ChoiceField(
        ["none", "read", "submit"], required=False, help_text="The most that its tasks may do with this API."
    )


class TenantView(QuotaView):
    @extend_schema(responses=TenantSerializer)
    def get(self, request: Request, tenant: str) -> Response:
        return Response(TenantSerializer(selectors.tenant_named(principal_of(request), tenant)).data)

    @extend_schema(request=TenantChangeSerializer, responses=TenantSerializer)
    def put(self, request: Request, tenant: str) -> Response:
        principal = principal_of(request)
        row = selectors.tenant_named(principal, tenant)
        given = _valid(TenantChangeSerializer, request.data)
        return Response(TenantSerializer(tenant_set(principal=principal, tenant=row, **given)).data)


class MemberSerializer(serializers.ModelSerializer):
    user = serializers.CharField(source="user.username")

    class Meta:
        model = Membership
        fields = ["user", "role"]


class RoleSerializer(serializers.Serializer):
    role = serializers.ChoiceField([role.value for role in Role])


class MembersView(QuotaView):
    @extend_schema(responses=MemberSerializer(many=True))
    def get(self, request: Request, tenant: str) -> Response:
        row = selectors.tenant_named(principal_of(request), tenant)
        members = row.memberships.select_related("user")
        return _page(self, request, members, MemberSerializer)


class MemberView(QuotaView):
    @extend_schema(request=RoleSerializer, responses=MemberSerializer)
    def put(self, request: Request, tenant: str, username: str) -> Response:
        """Give a user a role, or change it."""
        principal = principal_of(request)
        row = selectors.tenant_named(principal, tenant)
        require(principal, Action.TENANT_ADMIN, tenant=row.name)
        role = _valid(RoleSerializer, request.data)["role"]
        member = membership_set(principal=principal, tenant=row, user=user_named(username), role=role)
        return Response(MemberSerializer(member).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, tenant: str, username: str) -> Response:
        principal = principal_of(request)
        row = selectors.tenant_named(principal, tenant)
        require(principal, Action.TENANT_ADMIN, tenant=row.name)
        membership_set(principal=principal, tenant=row, user=user_named(username), role=None)
        return Response(status=204)


class BandSerializer(serializers.ModelSerializer):
    class Meta:
        model = PriorityBand
        fields = ["name", "low", "high", "prod", "preempts_within"]


class BandsView(QuotaView):
    @extend_schema(responses=BandSerializer(many=True))
    def get(self, request: Request) -> Response:
        """The priority bands, of §2.5 of the paper."""
        return _page(self, request, PriorityBand.objects.all(), BandSerializer)


class GrantSerializer(serializers.ModelSerializer):
    tenant = serializers.CharField(source="tenant.name")
    band = serializers.CharField(source="band.name")
    amounts = serializers.SerializerMethodField()

    class Meta:
        model = Quota
        fields = ["id", "tenant", "cell", "band", "amounts", "starts_at", "ends_at", "reason"]

    def get_amounts(self, quota: Quota) -> dict[str, int]:
        return as_mapping(quota.amounts)


class NewGrantSerializer(serializers.Serializer):
    tenant = serializers.CharField(max_length=63)
    cell = serializers.CharField(max_length=63)
    band = serializers.CharField(max_length=63)
    amounts = serializers.DictField(child=serializers.JSONField())
    starts_at = serializers.DateTimeField(required=False)
    ends_at = serializers.DateTimeField(required=False, allow_null=True)
    reason = serializers.CharField(max_length=200, required=False, allow_blank=True)


class GrantsView(QuotaView):
    @extend_schema(responses=GrantSerializer(many=True))
    def get(self, request: Request) -> Response:
        return _page(self, request, selectors.grants_visible(principal_of(request)), GrantSerializer)

    @extend_schema(request=NewGrantSerializer, responses={201: GrantSerializer})
    def post(self, request: Request) -> Response:
        principal = principal_of(request)
        require(principal, Action.PLATFORM_ADMIN)
        given = _valid(NewGrantSerializer, request.data)
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
        """Granted and in use, per tenant, cell and band, of the tenants one may see."""
        return Response([standing.as_json() for standing in selectors.standings(principal_of(request))])


def _issue(request: Request, principal: Principal, user: Any, given: dict[str, Any]) -> Response:
    tenant = selectors.tenant_named(principal, given["tenant"]) if given.get("tenant") else None
    token, secret = token_issue(
        principal=principal, user=user, name=given["name"], scopes=given["scopes"], tenant=tenant,
        expires_at=given.get("expires_at"),
    )  # fmt: skip
    return Response(
        {"secret": "" if dry_run(request) else secret, "token": TokenSerializer(token).data}, status=201
    )


def _valid(serializer: type[serializers.Serializer], data: Any) -> dict[str, Any]:
    """The validated data. Unknown fields are refused: a misspelt one must not pass in silence."""
    given = serializer(data=data)
    given.is_valid(raise_exception=True)
    unknown = sorted(set(data) - set(given.fields)) if isinstance(data, dict) else []
    if unknown:
        known = ", ".join(given.fields)
        raise exceptions.ValidationError(dict.fromkeys(unknown, f"unknown field; there is {known}"))
    return dict(given.validated_data)


def _page(
    view: APIView, request: Request, rows: QuerySet, serializer: type[serializers.Serializer]
) -> Response:
    paging = IdPaging()
    page = paging.paginate_queryset(rows, request, view=view)
    return paging.get_paginated_response(serializer(page, many=True).data)
