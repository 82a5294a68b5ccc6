"""The console's pages about tenants, members, invitations and service accounts."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import admin, messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.shortcuts import redirect
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from quota.admin.base import FactsAdmin, ServiceAdmin, principal_of
from quota.models import Invitation, Membership, ServiceAccount, Tenant
from quota.tenancy.invitations import invitation_withdraw
from quota.tenancy.members import membership_set
from quota.tenancy.service_accounts import service_account_set
from quota.tenancy.tenants import tenant_create, tenant_move, tenant_set
from quota.vocabulary.errors import Rejected


class TenantAdmin(ServiceAdmin):
    list_display = ["name", "title", "parent", "time_zone", "contact", "max_jobs", "max_teams", "task_api"]
    list_select_related = ["parent"]
    search_fields = ["name", "title"]
    autocomplete_fields = ["parent"]
    fields = ["name", "title", "parent", "contact", "time_zone", "max_jobs", "max_teams", "task_api", "created_at"]
    readonly_fields = ("created_at",)
    fields_fixed = ("name",)

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        principal = principal_of(request)
        name, parent = given.pop("name"), given.pop("parent")
        parent_name = parent.name if parent else None
        if row is None:
            first = {field: given[field] for field in ("title", "contact", "time_zone")}
            tenant_create(principal=principal, name=name, parent=parent_name, **first)
        else:
            tenant_move(principal=principal, tenant=Tenant.objects.get(name=name), parent=parent_name)
        # The services need a new instance, because the form has already changed `row`.
        return tenant_set(principal=principal, tenant=Tenant.objects.get(name=name), **given)


class MembershipAdmin(ServiceAdmin):
    list_display = ["user", "tenant", "role"]
    list_filter = ["role"]
    list_select_related = ["user", "tenant"]
    search_fields = ["user__username", "tenant__name"]
    autocomplete_fields = ["user", "tenant"]
    fields = ["tenant", "user", "role"]
    fields_fixed = ("tenant", "user")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_module_permission(request)

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        return cast("Membership", membership_set(principal=principal_of(request), **given))

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        membership_set(principal=principal_of(request), tenant=obj.tenant, user=obj.user, role=None)

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> Any:
        """Remove a member. The service rejects the removal of the last owner, and the page then shows the reason."""
        try:
            return super().delete_view(request, object_id, extra_context)
        except Rejected as problem:
            messages.error(request, problem.detail)
            return redirect("admin:quota_membership_changelist")

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Return the actions of the list, but not Django's action that deletes several members at once."""
        return {name: act for name, act in super().get_actions(request).items() if name != "delete_selected"}


class InvitationAdmin(FactsAdmin):
    list_display = ["email", "tenant", "role", "invited_by", "created_at", "expires_at", "withdrawn_at", "accepted_at"]
    list_select_related = ["tenant"]
    search_fields = ["email", "tenant__name"]
    fields = [
        "tenant",
        "email",
        "role",
        "invited_by",
        "created_at",
        "expires_at",
        "withdrawn_at",
        "accepted_at",
        "accepted_by",
    ]
    actions = ["withdraw"]

    @admin.action(description=_("Withdraw these invitations"))
    def withdraw(self, request: HttpRequest, rows: QuerySet[Invitation]) -> None:
        for row in rows.select_related("tenant").order_by("id"):
            try:
                invitation_withdraw(principal=principal_of(request), tenant=row.tenant, key=row.key)
            except Rejected as problem:
                messages.error(request, problem.detail)
            else:
                messages.success(request, _("The invitation of %s was withdrawn.") % row.email)


class ServiceAccountAdmin(FactsAdmin):
    list_display = ["user", "tenant", "description", "enabled", "created_by", "created_at"]
    list_select_related = ["user", "tenant"]
    search_fields = ["user__username", "tenant__name"]
    fields = ["user", "tenant", "description", "enabled", "created_by", "created_at"]
    actions = ["disable", "enable"]

    @display(description=_("enabled"), boolean=True)
    def enabled(self, account: ServiceAccount) -> bool:
        return bool(account.user.is_active)

    @admin.action(description=_("Disable these service accounts"))
    def disable(self, request: HttpRequest, rows: QuerySet[ServiceAccount]) -> None:
        self._set(request, rows, enabled=False)
        messages.success(request, _("The accounts were disabled. Their tokens are no longer accepted."))

    @admin.action(description=_("Enable these service accounts"))
    def enable(self, request: HttpRequest, rows: QuerySet[ServiceAccount]) -> None:
        self._set(request, rows, enabled=True)
        messages.success(request, _("The accounts were enabled."))

    def _set(self, request: HttpRequest, rows: QuerySet[ServiceAccount], *, enabled: bool) -> None:
        for account in rows.select_related("tenant").order_by("id"):
            service_account_set(principal=principal_of(request), account=account, enabled=enabled)


PAGES = {
    Tenant: TenantAdmin,
    Membership: MembershipAdmin,
    Invitation: InvitationAdmin,
    ServiceAccount: ServiceAccountAdmin,
}
