"""Admin pages of sites and clusters. `portal.console.sites` shows their machines, tasks and resources."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.db.models import Model
from django.http import HttpRequest
from django.shortcuts import redirect

from quota.admin import ServiceAdmin, principal_of
from quota.vocabulary.errors import Rejected
from scheduling.cells import sites


class _PlaceAdmin(ServiceAdmin):
    """An admin page whose rows a service deletes. If the service rejects a deletion, the page shows the reason."""

    readonly_fields = ("created_at",)
    fields_fixed = ("name",)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_module_permission(request)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Return only the rows themselves. The service rejects the deletion if others refer to them."""
        return [str(row) for row in objs], {}, set(), []

    def delete_view(self, request: HttpRequest, object_id: str, extra_context: Any = None) -> Any:
        try:
            return super().delete_view(request, object_id, extra_context)
        except Rejected as problem:
            messages.error(request, problem.detail)
            return redirect(f"{self.admin_site.name}:scheduling_{self.opts.model_name}_changelist")

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Return the actions of the list, but not Django's action that deletes several rows at once."""
        return {name: act for name, act in super().get_actions(request).items() if name != "delete_selected"}


class SiteAdmin(_PlaceAdmin):
    list_display = ["name", "description", "location", "created_at"]
    search_fields = ["name", "description", "location"]
    fields = ["name", "description", "location", "created_at"]

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        principal, name = principal_of(request), given.pop("name")
        if row is None:
            return sites.site_create(principal=principal, name=name, **given)
        return sites.site_change(principal=principal, site=row, changes=given)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        sites.site_delete(principal=principal_of(request), site=obj)


class ClusterAdmin(_PlaceAdmin):
    list_display = ["name", "site", "description", "created_at"]
    list_select_related = ["site"]
    list_filter = ["site"]
    search_fields = ["name", "description"]
    fields = ["name", "site", "description", "created_at"]

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        principal, name = principal_of(request), given.pop("name")
        given["site"] = str(given["site"] or "")
        if row is None:
            return sites.cluster_create(principal=principal, name=name, **given)
        return sites.cluster_change(principal=principal, cluster=row, changes=given)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        sites.cluster_delete(principal=principal_of(request), cluster=obj)
