"""Grants of quota, what is in use, and what cells have."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from unfold.admin import ModelAdmin
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextInputWidget

from quota.admin.base import FactsAdmin, ServiceAdmin, ServiceForm, principal_of, vector_text
from quota.market.grants import quota_end, quota_grant
from quota.models import CellCapacity, Quota, QuotaUse
from quota.vocabulary.resources import NAMES


def _amount(label: Any, example: Any) -> forms.CharField:
    return forms.CharField(label=label, required=False, help_text=example, widget=UnfoldAdminTextInputWidget())


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
        fields = ["tenant", "cell", "band", "starts_at", "ends_at", "reason", "beyond_capacity"]

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
        (None, {"fields": ["tenant", "cell", "band", "reason", "beyond_capacity"]}),
        (_("Amounts"), {"fields": list(NAMES)}),
        (_("Period"), {"fields": ["starts_at", "ends_at"]}),
    ]
    actions = ["end_now"]

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj is None:
            return self.fieldsets
        shown = [
            "tenant",
            "cell",
            "band",
            "amounts_shown",
            "starts_at",
            "ends_at",
            "grace_until",
            "beyond_capacity",
            "order",
            "reason",
            "created_at",
        ]
        return [(None, {"fields": shown})]

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"starts_at": timezone.now(), **super().get_changeform_initial_data(request)}

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        if obj is not None:
            return ModelAdmin.get_form(self, request, obj, change=change, **{**kwargs, "form": forms.ModelForm})
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
                beyond_capacity=given["beyond_capacity"],
            )

        return type("QuotaGrantForm", (form,), {"perform": perform})

    @display(description=_("amounts"))
    def amounts_shown(self, quota: Quota) -> SafeString:
        return vector_text(quota.amounts)

    @admin.action(description=_("End these grants now"))
    def end_now(self, request: HttpRequest, rows: QuerySet[Quota]) -> None:
        for quota in rows:
            quota_end(principal=principal_of(request), quota=quota)
        messages.success(request, _("The grants have ended. Running jobs continue. Less quota is left for new jobs."))


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


PAGES = {Quota: QuotaAdmin, QuotaUse: UseAdmin, CellCapacity: CapacityAdmin}
