"""REST of organisations, teams, and their members."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota import selectors
from quota.api.base import QuotaView, page, principal_of, valid
from quota.models import Membership, Tenant
from quota.paging import IdPaging
from quota.tenancy import people
from quota.tenancy.members import member_leave, member_named, membership_set
from quota.tenancy.tenants import tenant_create, tenant_move, tenant_set
from quota.vocabulary.permissions import Action, Role, require

PARENT = OpenApiParameter("parent", OpenApiTypes.STR, description="Only the teams of this organisation.")


class TenantSerializer(serializers.ModelSerializer[Any]):
    parent = serializers.SlugRelatedField(  # type: ignore[assignment, var-annotated]
        slug_field="name", read_only=True, help_text="The organisation that the team belongs to."
    )

    class Meta:
        model = Tenant
        fields = ["name", "title", "contact", "parent", "time_zone", "max_jobs", "max_teams", "task_api", "created_at"]
        read_only_fields = fields


class NewTenantSerializer(serializers.Serializer[Any]):
    name = serializers.CharField(max_length=63)
    title = serializers.CharField(max_length=200, required=False, allow_blank=True)
    contact = serializers.EmailField(required=False, allow_blank=True)
    parent = serializers.CharField(  # type: ignore[assignment]
        max_length=63, required=False, allow_null=True, help_text="The organisation. Only SREs may leave it out."
    )
    time_zone = serializers.CharField(max_length=64, required=False)


class TenantsView(QuotaView):
    pagination_class = IdPaging

    @extend_schema(parameters=[PARENT], responses=TenantSerializer(many=True))
    def get(self, request: Request) -> Response:
        """List the tenants that you may see."""
        rows = selectors.tenants_visible(principal_of(request)).select_related("parent")
        if parent := request.query_params.get("parent"):
            rows = rows.filter(parent__name=parent)
        return page(self, request, rows, TenantSerializer)

    @extend_schema(request=NewTenantSerializer, responses={201: TenantSerializer})
    def post(self, request: Request) -> Response:
        """Create a tenant on its own, or a team of an organisation."""
        given = valid(NewTenantSerializer, request.data)
        return Response(TenantSerializer(tenant_create(principal=principal_of(request), **given)).data, status=201)


class TenantChangeSerializer(serializers.Serializer[Any]):
    title = serializers.CharField(max_length=200, allow_blank=True)
    contact = serializers.EmailField(allow_blank=True, default="")
    max_jobs = serializers.IntegerField(min_value=0, required=False, help_text="Only SREs change it.")
    max_teams = serializers.IntegerField(min_value=0, required=False, help_text="Only SREs change it.")
    time_zone = serializers.CharField(
        max_length=64, required=False, help_text="Time zone of the IANA database, such as Europe/Zurich."
    )
    task_api = serializers.ChoiceField(
        ["none", "read", "submit"], required=False, help_text="The most that tasks of its jobs may do with this API."
    )


class TenantView(QuotaView):
    @extend_schema(responses=TenantSerializer)
    def get(self, request: Request, tenant: str) -> Response:
        return Response(TenantSerializer(selectors.tenant_named(principal_of(request), tenant)).data)

    @extend_schema(request=TenantChangeSerializer, responses=TenantSerializer)
    def put(self, request: Request, tenant: str) -> Response:
        principal = principal_of(request)
        row = selectors.tenant_named(principal, tenant)
        given = valid(TenantChangeSerializer, request.data)
        return Response(TenantSerializer(tenant_set(principal=principal, tenant=row, **given)).data)


class MoveSerializer(serializers.Serializer[Any]):
    parent = serializers.CharField(
        max_length=63, allow_null=True, help_text="null: the tenant belongs to no organisation."
    )  # type: ignore[assignment]


class TenantMoveView(QuotaView):
    @extend_schema(request=MoveSerializer, responses=TenantSerializer)
    def post(self, request: Request, tenant: str) -> Response:
        """Move a tenant below an organisation, or out of it. Only for SREs."""
        principal = principal_of(request)
        row = selectors.tenant_named(principal, tenant)
        parent = valid(MoveSerializer, request.data)["parent"]
        return Response(TenantSerializer(tenant_move(principal=principal, tenant=row, parent=parent)).data)


class MemberSerializer(serializers.ModelSerializer[Any]):
    user = serializers.CharField(source="user.username")
    service_account = serializers.SerializerMethodField()

    class Meta:
        model = Membership
        fields = ["user", "role", "service_account"]

    def get_service_account(self, member: Membership) -> bool:
        return hasattr(member.user, "service_account")


class RoleSerializer(serializers.Serializer[Any]):
    role = serializers.ChoiceField([role.value for role in Role])


class MembersView(QuotaView):
    pagination_class = IdPaging

    @extend_schema(responses=MemberSerializer(many=True))
    def get(self, request: Request, tenant: str) -> Response:
        principal = principal_of(request)
        row = selectors.tenant_named(principal, tenant)
        return page(self, request, people.members_of(principal, row), MemberSerializer)


class MemberView(QuotaView):
    @extend_schema(request=RoleSerializer, responses=MemberSerializer)
    def put(self, request: Request, tenant: str, username: str) -> Response:
        """Change the role of a member. SREs can also add a member; owners send invitations."""
        principal = principal_of(request)
        row = selectors.tenant_named(principal, tenant)
        require(principal, Action.TENANT_ADMIN, tenant=row.name)
        role = valid(RoleSerializer, request.data)["role"]
        user = member_named(principal, row, username, joining=True)
        member = membership_set(principal=principal, tenant=row, user=user, role=role)
        return Response(MemberSerializer(member).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, tenant: str, username: str) -> Response:
        """Remove a member. Members may remove themselves."""
        principal = principal_of(request)
        row = selectors.tenant_named(principal, tenant)
        if principal.user_id is not None and username == request.user.get_username():
            member_leave(principal=principal, tenant=row, user=request.user)  # type: ignore[arg-type]
            return Response(status=204)
        require(principal, Action.TENANT_ADMIN, tenant=row.name)
        user = member_named(principal, row, username)
        membership_set(principal=principal, tenant=row, user=user, role=None)
        return Response(status=204)
