"""The SRE console's pages of tenants, members, capabilities, bands, quota, tokens and records.

Changes go through services, which validate and record them; the rest is read only. Nothing registers itself:
`portal.admin_site` puts `PAGES` of every app on its site, so that no app has to know the portal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from unfold.admin import ModelAdmin
from unfold.decorators import display
from unfold.paginator import InfinitePaginator
from unfold.widgets import UnfoldAdminTextInputWidget

from quota.bands import Band
from quota.errors import Refused
from quota.models import (
    Capability,
    CellCapacity,
    Membership,
    PriorityBand,
    Quota,
    QuotaUse,
    Record,
    Tenant,
    Token,
)
from quota.permissions import Principal
from quota.resources import NAMES, describe
from quota.services.access import principal_of_user, token_revoke
from quota.services.bands import band_set
from quota.services.grants import quota_end, quota_grant
from quota.services.tenants import (
    capability_grant,
    capability_revoke,
    membership_set,
    tenant_create,
    tenant_set,
)

SHOWN = 3  # resources of a vector that lists show: CPU, RAM, disk


def principal_of(request: HttpRequest) -> Principal:
    """The SRE behind a request of the console."""
    return principal_of_user(request.user, request_id=getattr(request, "borg_request_id", ""))


def vector_text(vector: Sequence[int], *, extra: Sequence[str] = ()) -> SafeString:
    """`500 cores, 2 TiB ram, …` of what is not zero, in one line. `extra`: the cell's further resources."""
    parts = []
    for index, (name, value) in enumerate(zip((*NAMES, *extra), vector, strict=False)):
        if value:
            text = describe(index, value, extra=extra)
            named = name == "cpu" or name.rstrip("s") in text
            parts.append(text if named else f"{text} {name}")
    return format_html('<span class="whitespace-nowrap">{}</span>', ", ".join(parts) or "0")


class FactsAdmin(ModelAdmin):
    """Read only: what changes here changes by what the system does."""

    show_full_result_count = False
    list_per_page = 50
    list_filter_submit = False
    list_fullwidth = True

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_module_permission(request)

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Staff are SREs (`Principal.sre`); what they may not do, the services refuse."""
        return bool(request.user.is_active and request.user.is_staff)


class ServiceForm(forms.ModelForm):
    """Its last step of validation is the service itself: what that refuses stands beside the field it names."""

    perform: ClassVar[Callable[[forms.ModelForm], Model] | None] = None

    def _post_clean(self) -> None:
        super()._post_clean()
        if self.errors or self.perform is None:
            return
        try:
            self.instance = self.perform()
        except Refused as problem:
            self._refuse(problem)

    def _refuse(self, problem: Refused) -> None:
        named = {name: what for name, what in problem.fields.items() if name in self.fields}
        for name, what in named.items():
            self.add_error(name, what)
        if len(named) != len(problem.fields) or not named:
            self.add_error(None, problem.detail)


class ServiceAdmin(FactsAdmin):
    """Rows that SREs make and change, by services alone: `perform` calls one, `save_model` does nothing."""

    form = ServiceForm
    fields_fixed: tuple[str, ...] = ()  # what can't change once the row exists

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_module_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_module_permission(request)

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        """Call the service; `row` is None for a new one. Raises `Refused`."""
        raise NotImplementedError

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return (*self.readonly_fields, *(self.fields_fixed if obj is not None else ()))

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change=change, **kwargs)

        def perform(bound: forms.ModelForm) -> Model:
            return self.perform(request, bound.cleaned_data, obj)

        return type("Performing" + form.__name__, (form,), {"perform": perform})

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """The service has done it."""


class TenantAdmin(ServiceAdmin):
    list_display = ["name", "title", "contact", "max_jobs", "task_api", "created_at"]
    search_fields = ["name", "title"]
    fields = ["name", "title", "contact", "max_jobs", "task_api", "created_at"]
    readonly_fields = ("created_at",)
    fields_fixed = ("name",)

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        principal = principal_of(request)
        if row is None:
            row = tenant_create(
                principal=principal, name=given["name"], title=given["title"], contact=given["contact"]
            )
        # Afresh: the form has written on the instance it was given.
        return tenant_set(
            principal=principal,
            tenant=Tenant.objects.get(pk=row.pk),
            title=given["title"],
            contact=given["contact"],
            max_jobs=given["max_jobs"],
            task_api=given["task_api"],
        )


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
        tenant, user = (row.tenant, row.user) if row else (given["tenant"], given["user"])
        done = membership_set(principal=principal_of(request), tenant=tenant, user=user, role=given["role"])
        assert done is not None
        return done

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        membership_set(principal=principal_of(request), tenant=obj.tenant, user=obj.user, role=None)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for membership in queryset.select_related("tenant", "user"):
            self.delete_model(request, membership)


class CapabilityAdmin(ServiceAdmin):
    list_display = ["user", "kind", "cell", "reason", "granted_by", "expires_at"]
    list_filter = ["kind"]
    list_select_related = ["user"]
    search_fields = ["user__username", "cell"]
    autocomplete_fields = ["user"]
    fields = ["user", "kind", "cell", "reason", "expires_at"]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.has_module_permission(request)

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        return capability_grant(
            principal=principal_of(request),
            user=given["user"],
            kind=given["kind"],
            cell=given["cell"],
            reason=given["reason"],
            expires_at=given["expires_at"],
        )

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        capability_revoke(principal=principal_of(request), capability=obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        for capability in queryset.select_related("user"):
            self.delete_model(request, capability)


class BandAdmin(ServiceAdmin):
    list_display = ["name", "low", "high", "prod", "preempts_within"]
    fields = ["name", "low", "high", "prod", "preempts_within"]
    fields_fixed = ("name",)

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        band = Band(
            row.name if row else given["name"],
            given["low"],
            given["high"],
            prod=given["prod"],
            preempts_within=given["preempts_within"],
        )
        return band_set(principal=principal_of(request), band=band)


def _amount(label: Any, example: str) -> forms.CharField:
    return forms.CharField(
        label=label, required=False, help_text=example, widget=UnfoldAdminTextInputWidget()
    )


class QuotaForm(ServiceForm):
    """A grant in the words of job files instead of a vector."""

    cpu = _amount(_("CPU"), _("in cores or milli-cores: 200 or 500m"))
    ram = _amount(_("RAM"), _("with a suffix: 64Gi"))
    disk = _amount(_("disk"), _("with a suffix: 2Ti"))
    disk_bandwidth = _amount(_("disk bandwidth"), _("bytes a second: 200M"))
    accelerators = _amount(_("accelerators"), _("whole ones or thousandths: 2 or 500m"))
    ports = _amount(_("ports"), _("a count"))

    class Meta:
        model = Quota
        fields = ["tenant", "cell", "band", "starts_at", "ends_at", "reason"]

    def amounts(self) -> dict[str, str]:
        return {name: text for name in NAMES if (text := self.cleaned_data[name].strip())}


class QuotaAdmin(ServiceAdmin):
    form = QuotaForm
    list_display = ["tenant", "cell", "band", "amounts_shown", "starts_at", "ends_at", "reason"]
    list_filter = ["band", "cell"]
    list_select_related = ["tenant", "band"]
    search_fields = ["tenant__name", "cell"]
    autocomplete_fields = ["tenant"]
    fieldsets = [
        (None, {"fields": ["tenant", "cell", "band", "reason"]}),
        (_("Amounts"), {"fields": list(NAMES)}),
        (_("Period"), {"fields": ["starts_at", "ends_at"]}),
    ]
    actions = ["end_now"]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return self.fieldsets
        shown = ["tenant", "cell", "band", "amounts_shown", "starts_at", "ends_at", "reason", "created_at"]
        return [(None, {"fields": shown})]

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"starts_at": timezone.now(), **super().get_changeform_initial_data(request)}

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        if obj is not None:
            return ModelAdmin.get_form(
                self, request, obj, change=change, **{**kwargs, "form": forms.ModelForm}
            )
        form = super().get_form(request, obj, change=change, **kwargs)

        def perform(bound: QuotaForm) -> Model:
            given = bound.cleaned_data
            return quota_grant(
                principal=principal_of(request),
                tenant=given["tenant"],
                cell=given["cell"],
                band=given["band"].name,
                amounts=bound.amounts(),
                starts_at=given["starts_at"],
                ends_at=given["ends_at"],
                reason=given["reason"],
            )

        return type("QuotaGrantForm", (form,), {"perform": perform})

    @display(description=_("amounts"))
    def amounts_shown(self, quota: Quota) -> SafeString:
        return vector_text(quota.amounts)

    def end_now(self, request: HttpRequest, rows: QuerySet[Quota]) -> None:
        for quota in rows:
            quota_end(principal=principal_of(request), quota=quota)
        messages.success(request, _("Ended. Jobs that run go on; new ones find less."))

    end_now.short_description = _("End these grants now")


class UseAdmin(FactsAdmin):
    list_display = ["tenant", "cell", "band", "used_shown"]
    list_filter = ["band", "cell"]
    list_select_related = ["tenant", "band"]
    search_fields = ["tenant__name"]
    fields = ["tenant", "cell", "band", "used_shown"]

    @display(description=_("in use"))
    def used_shown(self, use: QuotaUse) -> SafeString:
        return vector_text(use.used)


class CapacityAdmin(FactsAdmin):
    list_display = ["cell", "capacity_shown", "revision"]
    fields = ["cell", "capacity_shown", "revision"]

    @display(description=_("capacity"))
    def capacity_shown(self, row: CellCapacity) -> SafeString:
        return vector_text(row.capacity)


class TokenAdmin(FactsAdmin):
    list_display = [
        "name",
        "key",
        "user",
        "tenant",
        "scopes_shown",
        "last_used_at",
        "expires_at",
        "revoked_at",
    ]
    list_filter = ["tenant"]
    list_select_related = ["user", "tenant"]
    search_fields = ["name", "key", "user__username"]
    fields = [
        "name", "key", "user", "tenant", "scopes_shown", "created_at", "last_used_at", "expires_at", "revoked_at",
    ]  # fmt: skip
    actions = ["revoke"]

    @display(description=_("scopes"))
    def scopes_shown(self, token: Token) -> str:
        return ", ".join(token.scopes)

    def revoke(self, request: HttpRequest, rows: QuerySet[Token]) -> None:
        keys = list(rows.values_list("key", flat=True))
        for key in keys:
            token_revoke(principal=principal_of(request), key=key)
        messages.success(request, _("%d tokens revoked.") % len(keys))

    revoke.short_description = _("Revoke these tokens")


class RecordAdmin(FactsAdmin):
    """The stream of what belongs to no cell. Append-only; paged without counting."""

    list_display = ["revision", "time", "kind", "tenant", "actor", "data", "request_id"]
    search_fields = ["=tenant", "=actor", "=request_id"]
    ordering = ["-revision"]
    paginator = InfinitePaginator
    list_display_links = None


PAGES: dict[type[Model], type[ModelAdmin]] = {
    Tenant: TenantAdmin,
    Membership: MembershipAdmin,
    Capability: CapabilityAdmin,
    PriorityBand: BandAdmin,
    Quota: QuotaAdmin,
    QuotaUse: UseAdmin,
    CellCapacity: CapacityAdmin,
    Token: TokenAdmin,
    Record: RecordAdmin,
}
