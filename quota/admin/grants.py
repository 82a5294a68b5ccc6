"""The console's pages about grants of quota, quota in use, and the capacity of cells."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.widgets import UnfoldAdminTextInputWidget

from quota.admin.base import CreateOnlyAdmin, FactsAdmin, ServiceForm, principal_of, vector_text
from quota.market.grants import quota_end, quota_grant
from quota.models import CellCapacity, Quota, QuotaUse
from quota.vocabulary.resources import NAMES


def _amount(label: Any, example: Any) -> forms.CharField:
    return forms.CharField(label=label, required=False, help_text=example, widget=UnfoldAdminTextInputWidget())


class QuotaForm(ServiceForm):
    """A form for a grant of quota. It has one field per resource. Quantities are written as in job files."""

    cpu = _amount(_("CPU"), _("In cores or milli-cores, such as 200 or 500m."))
    ram = _amount(_("RAM"), _("In bytes with a suffix, such as 64Gi."))
    disk = _amount(_("disk"), _("In bytes with a suffix, such as 2Ti."))
    disk_bandwidth = _amount(_("disk bandwidth"), _("In bytes per second, such as 200M."))
    accelerators = _amount(
        _("accelerators"), _("A number of devices, such as 2, or thousandths of one device, such as 500m.")
    )
    ports = _amount(_("ports"), _("A number of ports."))

    class Meta:
        model = Quota
        fields = ["tenant", "cell", "band", "starts_at", "ends_at", "reason", "beyond_capacity"]


class QuotaAdmin(CreateOnlyAdmin):
    form = QuotaForm
    list_display = ["tenant", "cell", "band", "amounts_shown", "starts_at", "ends_at", "reason"]
    list_filter = ["band", "cell"]
    list_select_related = ["tenant", "band"]
    search_fields = ["tenant__name", "cell"]
    autocomplete_fields = ["tenant"]
    fieldsets = [
        (None, {"fields": ["tenant", "cell", "band", "reason", "beyond_capacity"]}),
        (_("Resource amounts"), {"fields": list(NAMES)}),
        (_("Period"), {"fields": ["starts_at", "ends_at"]}),
    ]
    fields_shown = [
        *("tenant", "cell", "band", "amounts_shown", "starts_at", "ends_at", "grace_until", "beyond_capacity"),
        *("order", "reason", "created_at"),
    ]
    actions = ["end_now"]

    def get_changeform_initial_data(self, request: HttpRequest) -> dict[str, Any]:
        return {"starts_at": timezone.now(), **super().get_changeform_initial_data(request)}

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        amounts = {name: text for name in NAMES if (text := given.pop(name).strip())}
        band = given.pop("band").name
        return quota_grant(principal=principal_of(request), band=band, amounts=amounts, **given)

    @display(description=_("resource amounts"))
    def amounts_shown(self, quota: Quota) -> SafeString:
        return vector_text(quota.amounts)

    @admin.action(description=_("End these grants now"))
    def end_now(self, request: HttpRequest, rows: QuerySet[Quota]) -> None:
        for quota in rows:
            quota_end(principal=principal_of(request), quota=quota)
        messages.success(
            request, _("The grants have ended. Running jobs continue, and less quota is left for new jobs.")
        )


class UseAdmin(FactsAdmin):
    list_display = ["tenant", "cell", "band", "used_shown"]
    list_filter = ["band", "cell"]
    list_select_related = ["tenant", "band"]
    search_fields = ["tenant__name"]
    fields = ["tenant", "cell", "band", "used_shown"]

    @display(description=_("quota in use"))
    def used_shown(self, use: QuotaUse) -> SafeString:
        return vector_text(use.used)


class CapacityAdmin(FactsAdmin):
    list_display = ["cell", "capacity_shown", "revision"]
    fields = ["cell", "capacity_shown", "revision"]

    @display(description=_("capacity of the cell"))
    def capacity_shown(self, row: CellCapacity) -> SafeString:
        return vector_text(row.capacity)


PAGES = {Quota: QuotaAdmin, QuotaUse: UseAdmin, CellCapacity: CapacityAdmin}
