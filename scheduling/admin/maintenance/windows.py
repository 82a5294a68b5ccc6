"""The admin page of the maintenance calendar: windows in which machines have to be empty."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib.admin.views.main import ChangeList
from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.decorators import display
from unfold.widgets import UnfoldAdminIntegerFieldWidget

from quota.admin import ServiceAdmin, ServiceForm, principal_of
from scheduling.admin.actions import row_action
from scheduling.maintenance import windows
from scheduling.maintenance.preview import preview_of
from scheduling.maintenance.selectors import progress_of
from scheduling.models import MaintenanceWindow

_JOBS_SHOWN = 200
_SCOPE = ("machines", "rack", "power_domain")
_VALUES = ("starts_at", "ends_at", "lead_s", "break_budgets", "reason", *_SCOPE)


class _WindowList(ChangeList):
    """A list of windows that reads the progress of all windows on the page at once."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows = list(self.result_list)
        for row, one in zip(rows, progress_of(rows, now=timezone.now()), strict=True):
            row.progress = one
        self.result_list = rows


class WindowForm(ServiceForm):
    class Meta:
        help_texts: ClassVar = {
            "machines": gettext_lazy(
                "Host names, separated by commas. Or leave this empty, and give a rack or a power domain."
            ),
            "lead_s": gettext_lazy("Empty: estimated from the disruption budgets of the jobs on the machines."),
        }

    confirm = forms.IntegerField(
        label=gettext_lazy("Number of tasks that stop; needed only if it is very large"),
        required=False,
        min_value=0,
        widget=UnfoldAdminIntegerFieldWidget(),
    )


class MaintenanceWindowAdmin(ServiceAdmin):
    """Past, running and coming windows. The page of a window shows what has to move, and which budgets bind."""

    list_display = [
        "id",
        "cell",
        "state_shown",
        "scope_shown",
        "starts_at",
        "ends_at",
        "busy_shown",
        "reason",
        "asked_by",
    ]
    list_select_related = ["cell"]
    list_filter = ["cell", "state"]
    search_fields = ["reason", "=rack", "=power_domain"]
    ordering = ["-starts_at", "-id"]
    fields = ["cell", "machines", "rack", "power_domain", "starts_at", "ends_at", "lead_s", "break_budgets", "reason"]
    form = WindowForm
    fields_fixed = ("cell",)
    readonly_fields = ("state", "detail", "preview_shown", "asked_by", "changed_by", "drains_at", "ended_at")
    actions = ["cancel"]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        confirms = obj is None or obj.state == MaintenanceWindow.PLANNED
        return [*self.fields, *(["confirm"] if confirms else []), *(self.readonly_fields if obj is not None else ())]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        fixed = super().get_readonly_fields(request, obj)
        if obj is None or obj.state == MaintenanceWindow.PLANNED:
            return fixed
        open_ones = ("ends_at", "reason") if obj.state == MaintenanceWindow.DRAINING else ()
        return (*fixed, *(name for name in _VALUES if name not in open_ones))

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return _WindowList

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> MaintenanceWindow:
        principal, cell = principal_of(request), given["cell"]
        values = {name: given[name] for name in (*_VALUES, "confirm") if name in given}
        if row is None:
            return windows.window_write(principal=principal, cell=cell, **values)
        return windows.window_change(principal=principal, cell=cell, number=row.pk, **values)

    @display(
        description=gettext_lazy("state"),
        ordering="state",
        label={"planned": "info", "draining": "warning", "late": "danger", "ended": "success", "cancelled": "success"},
    )
    def state_shown(self, row: Any) -> tuple[str, str]:
        return ("late", _("not empty")) if row.progress.overdue else (row.state, row.state)

    @display(description=gettext_lazy("machines"))
    def scope_shown(self, row: MaintenanceWindow) -> str:
        if row.rack:
            return _("rack %s") % row.rack
        if row.power_domain:
            return _("power domain %s") % row.power_domain
        return ", ".join(row.machines[:3]) + (" …" if len(row.machines) > 3 else "")

    @display(description=gettext_lazy("machines with tasks"))
    def busy_shown(self, row: Any) -> str:
        return f"{row.progress.busy} / {row.progress.covered}" if row.progress.covered else "–"

    @display(description=gettext_lazy("tasks that have to move"))
    def preview_shown(self, row: Any) -> SafeString | str:
        if row.state not in MaintenanceWindow.OPEN:
            return "–"
        preview = row.preview
        total = _("%(leaving)d of %(tasks)d tasks have to move, from %(when)s UTC on") % {
            "leaving": preview.leaving,
            "tasks": preview.tasks,
            "when": f"{preview.drains_at:%F %H:%M}",
        }
        jobs = (
            (
                _("%(job)s: %(tasks)d tasks, %(may)d may be down at once, about %(seconds)d s")
                % {"job": one.job, "tasks": one.tasks, "may": one.may, "seconds": one.needs_s},
            )
            for one in preview.jobs[:_JOBS_SHOWN]
        )
        return format_html("<div>{}</div>{}", total, format_html_join("", "<div>{}</div>", jobs))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        row = super().get_object(request, object_id, from_field)
        if row is not None and row.state in MaintenanceWindow.OPEN:
            row.preview = preview_of(principal_of(request), row)
        return row

    cancel = row_action(
        "cancel",
        label=gettext_lazy("Cancel"),
        title=gettext_lazy("Cancel maintenance windows"),
        warning=gettext_lazy("The machines of these windows receive tasks again, except those that a person drains."),
        service=lambda row, **given: windows.window_cancel(cell=row.cell, number=row.pk, **given),
        row_as="row",
    )
