"""The pages of the console about capabilities, requests for capabilities, and tokens."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display

from quota.admin.base import CreateOnlyAdmin, FactsAdmin, ServiceAdmin, principal_of
from quota.models import Capability, CapabilityRequest, Token
from quota.tenancy.capabilities import capability_answer, capability_grant, capability_revoke
from quota.tenancy.tokens import token_revoke
from quota.vocabulary.errors import invalid


class CapabilityAdmin(CreateOnlyAdmin):
    list_display = ["user", "kind", "cell", "reason", "granted_by", "expires_at"]
    list_filter = ["kind"]
    list_select_related = ["user"]
    search_fields = ["user__username", "cell"]
    autocomplete_fields = ["user"]
    fields = fields_shown = ("user", "kind", "cell", "reason", "expires_at")

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_module_permission(request)

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        return capability_grant(principal=principal_of(request), **given)

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        capability_revoke(principal=principal_of(request), capability=obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for capability in queryset.select_related("user"):
            self.delete_model(request, capability)


class CapabilityRequestAdmin(ServiceAdmin):
    """The pages about requests for capabilities.

    On the page of a request, an SRE grants or rejects it. The SRE may change the time until which the capability is
    valid.
    """

    list_display = ["user", "kind", "cell", "tenant", "reason", "until", "state", "asked_by", "asked_at", "answered_by"]
    list_filter = ["state", "kind"]
    list_select_related = ["user", "tenant"]
    search_fields = ["user__username", "tenant__name", "cell"]
    readonly_fields = ("user", "kind", "cell", "tenant", "reason", "asked_by", "asked_at", "answered_by", "answered_at")
    fields = [*readonly_fields[:7], "state", "until", "answer", *readonly_fields[7:]]

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return whether the user may answer the capability request `obj`: the user is staff, and no SRE has answered
        it yet. On pages without a single request, `obj` is None.
        """
        return self.has_module_permission(request) and (obj is None or obj.answered_at is None)

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        if given["state"] == "open":
            raise invalid("state", str(_("open is not a decision; choose granted or rejected")))
        return capability_answer(
            principal=principal_of(request),
            request=row,
            granted=given["state"] == "granted",
            answer=given["answer"],
            until=given["until"],
        )


_TOKEN = ("name", "key", "user", "tenant", "parent", "scopes_shown", "last_used_at", "expires_at", "revoked_at")


class TokenAdmin(FactsAdmin):
    list_display = _TOKEN
    list_filter = ["tenant"]
    list_select_related = ["user", "tenant", "parent"]
    search_fields = ["name", "key", "user__username"]
    fields = (*_TOKEN, "created_at")
    actions = ["revoke"]

    @display(description=_("scopes"))
    def scopes_shown(self, token: Token) -> str:
        return ", ".join(token.scopes)

    @admin.action(description=_("Revoke these tokens"))
    def revoke(self, request: HttpRequest, rows: QuerySet[Token]) -> None:
        keys = list(rows.values_list("key", flat=True))
        for key in keys:
            token_revoke(principal=principal_of(request), key=key)
        messages.success(request, _("%d tokens were revoked.") % len(keys))


PAGES = {Capability: CapabilityAdmin, CapabilityRequest: CapabilityRequestAdmin, Token: TokenAdmin}
