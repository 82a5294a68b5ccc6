"""The admin page of machine pools."""

from __future__ import annotations

from typing import Any, ClassVar

from django import forms
from django.contrib.admin.views.main import ChangeList
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.decorators import display
from unfold.widgets import UnfoldAdminIntegerFieldWidget

from quota.admin import ServiceAdmin, ServiceForm, principal_of
from scheduling.admin.actions import row_action
from scheduling.models import Pool
from scheduling.pools import selectors
from scheduling.pools.pools import pool_change, pool_delete, pool_write

_VALUES = ("description", "selector", "tenants", "dedicated", "use", "others")


class _PoolList(ChangeList):
    """A list of pools that reads what is in all pools on the page at once."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        rows = list(self.result_list)
        found: dict[int, selectors.PoolState] = {}
        for cell in {row.cell for row in rows}:
            own = [row for row in rows if row.cell_id == cell.pk]
            found |= {one.pool.pk: one for one in selectors.states_of(principal_of(request), cell, own)}
        for row in rows:
            row.contents = found[row.pk]
        self.result_list = rows


class PoolForm(ServiceForm):
    class Meta:
        help_texts: ClassVar = {
            "selector": gettext_lazy(
                "Machines that match belong to the pool, for example: rack in (r1,r2),tier=gold. The selector reads"
                " attributes that SREs have set. You can also assign machines on the page Machines."
            ),
            "tenants": gettext_lazy("Names of tenants, separated by commas."),
            "dedicated": gettext_lazy("No tasks of other tenants start on these machines."),
        }

    confirm = forms.IntegerField(
        label=gettext_lazy("Confirms a very large change: the number of tasks that have to leave"),
        required=False,
        min_value=0,
        widget=UnfoldAdminIntegerFieldWidget(),
    )


class PoolAdmin(ServiceAdmin):
    """The machine pools of all cells. The page of a pool shows the running tasks of other tenants there."""

    list_display = ["name", "cell", "machines_shown", "tenants_shown", "dedicated", "use", "tasks_shown", "description"]
    list_select_related = ["cell"]
    list_filter = ["cell", "dedicated", "use"]
    search_fields = ["name", "description"]
    ordering = ["cell", "name"]
    fields = ["cell", "name", *_VALUES]
    form = PoolForm
    fields_fixed = ("cell", "name")
    readonly_fields = ("contents_shown", "preview_shown", "changed_by", "changed_at")
    actions = ["delete_pools"]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return [*self.fields, "confirm", *(self.readonly_fields if obj is not None else ())]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return _PoolList

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        row = super().get_object(request, object_id, from_field)
        if row is not None:
            principal = principal_of(request)
            (row.contents,) = selectors.states_of(principal, row.cell, [row])
            row.preview = selectors.preview_of(principal, row)
        return row

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Pool:
        values = {name: given[name] for name in (*_VALUES, "confirm") if name in given}
        write = pool_write if row is None else pool_change
        return write(principal=principal_of(request), cell=given["cell"], name=given["name"], **values)

    @display(description=gettext_lazy("machines"))
    def machines_shown(self, row: Any) -> str:
        return str(row.contents.machines)

    @display(description=gettext_lazy("tenants"))
    def tenants_shown(self, row: Pool) -> str:
        return ", ".join(row.tenants[:3]) + (" …" if len(row.tenants) > 3 else "")

    @display(description=gettext_lazy("tasks"))
    def tasks_shown(self, row: Any) -> str:
        if not row.contents.foreign:
            return str(row.contents.tasks)
        given = {"tasks": row.contents.tasks, "foreign": row.contents.foreign}
        return _("%(tasks)d, of which %(foreign)d are of other tenants") % given

    @display(description=gettext_lazy("machines and tasks"))
    def contents_shown(self, row: Any) -> str:
        given = {"machines": row.contents.machines, "up": row.contents.up, "tasks": row.contents.tasks}
        return _("%(machines)d machines, of which %(up)d are up, with %(tasks)d tasks") % given

    @display(description=gettext_lazy("running tasks of other tenants"))
    def preview_shown(self, row: Any) -> SafeString | str:
        jobs = (
            (
                _("%(job)s: %(tasks)d tasks, %(may)d may be down at once")
                % {"job": one.job, "tasks": one.tasks, "may": one.may},
            )
            for one in row.preview.foreign
        )
        text = format_html_join("", "<div>{}</div>", jobs) or "–"
        if not row.preview.outside:
            return text
        outside = _("%d tasks of its tenants run on other machines until they end") % row.preview.outside
        return format_html("{}<div>{}</div>", text, outside)

    delete_pools = row_action(
        "delete_pools",
        label=gettext_lazy("Delete"),
        title=gettext_lazy("Delete machine pools"),
        warning=gettext_lazy("The machines of these pools stay, and all tenants may use them."),
        service=lambda row, principal, **given: pool_delete(principal=principal, cell=row.cell, name=row.name),
        row_as="row",
    )
