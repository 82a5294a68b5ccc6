"""REST API for organisations, teams, and their members."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_view
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from quota import selectors
from quota.api.base import ListView, QuotaView
from quota.models import Membership, Tenant
from quota.tenancy import member_lists
from quota.tenancy.members import member_leave, member_named, membership_set
from quota.tenancy.tenants import tenant_create, tenant_move, tenant_set
from quota.vocabulary.permissions import Action, Role, require


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
        max_length=63, required=False, allow_null=True, help_text="The organisation. Only SREs may omit this field."
    )
    time_zone = serializers.CharField(max_length=64, required=False)


class TenantQuerySerializer(serializers.Serializer[Any]):
    parent = serializers.CharField(required=False, help_text="Return only the teams of this organisation.")  # type: ignore[assignment]


@extend_schema_view(get=extend_schema(parameters=[TenantQuerySerializer]))
class TenantsView(ListView):
    """List the tenants that you may see."""

    serializer_class = TenantSerializer

    def get_queryset(self) -> QuerySet[Tenant]:
        rows = selectors.tenants_visible(self.principal).select_related("parent")
        parent = self.query(TenantQuerySerializer).get("parent")
        return rows.filter(parent__name=parent) if parent else rows

    @extend_schema(request=NewTenantSerializer, responses={201: TenantSerializer})
    def post(self, request: Request) -> Response:
        """Create a team of an organisation, or a tenant that belongs to no organisation."""
        made = tenant_create(principal=self.principal, **self.body(NewTenantSerializer))
        return Response(TenantSerializer(made).data, status=201)


class TenantChangeSerializer(serializers.Serializer[Any]):
    title = serializers.CharField(max_length=200, allow_blank=True)
    contact = serializers.EmailField(allow_blank=True, default="")
    max_jobs = serializers.IntegerField(min_value=0, required=False, help_text="Only SREs change this field.")
    max_teams = serializers.IntegerField(min_value=0, required=False, help_text="Only SREs change this field.")
    time_zone = serializers.CharField(
        max_length=64, required=False, help_text="Time zone of the IANA database, such as Europe/Zurich."
    )
    task_api = serializers.ChoiceField(
        ["none", "read", "submit"], required=False, help_text="The most that the tenant's tasks may do with this API."
    )


class TenantView(QuotaView):
    @extend_schema(responses=TenantSerializer)
    def get(self, request: Request, tenant: str) -> Response:
        """Return a tenant."""
        return Response(TenantSerializer(self.tenant()).data)

    @extend_schema(request=TenantChangeSerializer, responses=TenantSerializer)
    def put(self, request: Request, tenant: str) -> Response:
        """Change the settings of a tenant. Only for owners."""
        row = tenant_set(principal=self.principal, tenant=self.tenant(), **self.body(TenantChangeSerializer))
        return Response(TenantSerializer(row).data)


class MoveSerializer(serializers.Serializer[Any]):
    parent = serializers.CharField(
        max_length=63, allow_null=True, help_text="null: the tenant belongs to no organisation."
    )  # type: ignore[assignment]


class TenantMoveView(QuotaView):
    @extend_schema(request=MoveSerializer, responses=TenantSerializer)
    def post(self, request: Request, tenant: str) -> Response:
        """Make a tenant a team of an organisation, or take it out of its organisation. Only for SREs."""
        row = tenant_move(principal=self.principal, tenant=self.tenant(), **self.body(MoveSerializer))
        return Response(TenantSerializer(row).data)


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


class MembersView(ListView):
    """List the members of a tenant."""

    serializer_class = MemberSerializer

    def get_queryset(self) -> QuerySet[Membership]:
        return member_lists.members_of(self.principal, self.tenant())


class MemberView(QuotaView):
    @extend_schema(request=RoleSerializer, responses=MemberSerializer)
    def put(self, request: Request, tenant: str, username: str) -> Response:
        """Change the role of a member. SREs can also add a member; owners send invitations."""
        row = self.tenant(Action.TENANT_ADMIN)
        role = self.body(RoleSerializer)["role"]
        user = member_named(self.principal, row, username, joining=True)
        member = membership_set(principal=self.principal, tenant=row, user=user, role=role)
        return Response(MemberSerializer(member).data)

    @extend_schema(responses={204: None})
    def delete(self, request: Request, tenant: str, username: str) -> Response:
        """Remove a member. Members may remove themselves."""
        principal, row = self.principal, self.tenant()
        if principal.user_id is not None and username == request.user.get_username():
            member_leave(principal=principal, tenant=row, user=request.user)  # type: ignore[arg-type]
            return Response(status=204)
        require(principal, Action.TENANT_ADMIN, tenant=row.name)
        user = member_named(principal, row, username)
        membership_set(principal=principal, tenant=row, user=user, role=None)
        return Response(status=204)
