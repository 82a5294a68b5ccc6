"""Admin pages of cells, of the leases of their schedulers, and of the tokens with which machines join a cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec
import redis
from django import forms
from django.contrib import messages
from django.db import transaction
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.defaultfilters import filesizeformat
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminTextInputWidget

from quota.admin import FactsAdmin, ServiceAdmin, principal_of
from quota.vocabulary.errors import Rejected
from quota.vocabulary.resources import CPU, DISK, NAMES, RAM, describe
from scheduling.admin import passes
from scheduling.cells.cells import cell_create, cell_resource_add, cell_set
from scheduling.cells.deletion import CellDeletion, cell_delete, cell_deletion
from scheduling.cells.sites import cell_move
from scheduling.machines.joining import join_token_issue
from scheduling.models import Cell
from scheduling.policy import cell_settings
from scheduling.usage.utilisation import figures_of

# The resources that reclamation estimates.
KINDS = (CPU, RAM, DISK)


class JoinTokenForm(forms.Form):
    uses = forms.IntegerField(
        label=gettext_lazy("Number of machines that can join with the token"),
        initial=1,
        min_value=1,
        widget=UnfoldAdminIntegerFieldWidget(),
    )
    hours = forms.IntegerField(
        label=gettext_lazy("Hours until the token expires"),
        initial=1,
        min_value=1,
        widget=UnfoldAdminIntegerFieldWidget(),
    )


class ResourceForm(forms.Form):
    name = forms.CharField(
        label=gettext_lazy("Name of the resource in job files and on machines"),
        max_length=63,
        widget=UnfoldAdminTextInputWidget(),
    )


class DeletionForm(forms.Form):
    confirm = forms.CharField(
        label=gettext_lazy("Name of the cell, to confirm"),
        max_length=63,
        widget=UnfoldAdminTextInputWidget(attrs={"autocomplete": "off"}),
    )


class CellAdmin(ServiceAdmin):
    list_display = ["name", "cluster", "site_shown", "revision", "created_at", "deleted_at"]
    list_select_related = ["cluster__site"]
    search_fields = ["name", "cluster__name", "cluster__site__name"]
    readonly_fields = (
        "revision",
        "history_id",
        "history_ordinal",
        "extra_resources",
        "study_of",
        "created_at",
        "deleted_at",
        "in_force",
        "leases_shown",
        "utilisation_shown",
    )
    fields_fixed = ("name",)
    actions_detail = ["join_token", "add_resource", "delete_cell"]
    change_form_outer_after_template = "console/cell_passes.html"

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        cell = self.get_object(request, object_id)
        shown = None
        if cell is not None and cell.deleted_at is None and self.has_view_permission(request, cell):
            shown = passes.of_cell(cell)
        return super().change_view(request, object_id, form_url, {**(extra_context or {}), "cell_passes": shown})

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        first = [(None, {"fields": ["name", "cluster", "settings"]})]
        if obj is None:
            return first
        used = (_("Utilisation"), {"fields": ["utilisation_shown"]})
        state = [
            "revision",
            "history_id",
            "history_ordinal",
            "extra_resources",
            "study_of",
            "created_at",
            "deleted_at",
            "leases_shown",
        ]
        return [
            *first,
            (_("Settings in force"), {"fields": ["in_force"]}),
            used,
            (_("State of the cell"), {"fields": state}),
        ]

    def perform(self, request: HttpRequest, given: dict[str, Any], row: Any) -> Model:
        principal, settings, cluster = principal_of(request), given["settings"] or {}, str(given["cluster"] or "")
        if row is None:
            return cell_create(principal=principal, name=given["name"], cluster=cluster, settings=settings)
        with transaction.atomic():
            cell = cell_move(principal=principal, cell=Cell.objects.get(pk=row.pk), cluster=cluster)
            return cell_set(principal=principal, cell=cell, settings=settings)

    @display(description=gettext_lazy("site"))
    def site_shown(self, cell: Cell) -> str:
        return cell.site_name or "–"

    @display(description=gettext_lazy("all settings, with defaults"))
    def in_force(self, cell: Cell) -> SafeString:
        stored = Cell.objects.values_list("settings", flat=True).get(pk=cell.pk)
        return _lines(msgspec.to_builtins(cell_settings.load(stored)).items())

    @display(description=gettext_lazy("usage, reservations and limits"))
    def utilisation_shown(self, cell: Cell) -> SafeString | str:
        try:
            figures = figures_of([cell.pk]).get(cell.pk)
        except redis.RedisError:
            return _("unknown, because Redis is not reachable")
        if figures is None:
            return _("no measurement in the last minute")
        rows = [(_("running tasks, measured tasks"), f"{figures.running}, {figures.measured}")]
        for kind in KINDS:
            name = NAMES[kind]
            used, reserved, limit, has = (
                describe(kind, getattr(figures, what)[name]) for what in ("usage", "reservation", "limit", "capacity")
            )
            share = f"{figures.reclaimed(name):.0%}"
            rows.append(
                (
                    name,
                    _(
                        "%(used)s used, %(reserved)s reserved, limits %(limit)s, capacity %(has)s; %(share)s of the "
                        "limits reclaimed"
                    )
                    % {"used": used, "reserved": reserved, "limit": limit, "has": has, "share": share},
                )
            )
        if figures.short:
            rows.append((_("machines with too little RAM or disk"), str(figures.short)))
        return _lines(rows)

    @display(description=gettext_lazy("leases of the schedulers"))
    def leases_shown(self, cell: Cell) -> SafeString | str:
        rows = [
            (lease.scheduler, f"{lease.holder or '–'}, epoch {lease.epoch}, until {lease.expires_at:%F %T} UTC")
            for lease in cell.leases.all()
        ]
        return _lines(rows) if rows else _("no scheduler has had a lease yet")

    @action(description=gettext_lazy("Issue a join token"), url_path="join-token", icon="key")
    def join_token(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show a form that creates a join token. After the user has sent the form, show the new token, once."""

        def issue(cell: Cell, given: dict[str, Any]) -> str:
            ttl_s = given["hours"] * 3600
            return join_token_issue(principal=principal_of(request), cell=cell, uses=given["uses"], ttl_s=ttl_s)

        title = _("Issue a join token for cell %s")
        return self._form_page(request, object_id, JoinTokenForm, title, "console/join_token.html", issue)

    @action(description=gettext_lazy("Add a named resource"), url_path="add-resource", icon="add")
    def add_resource(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show a form that adds a named resource to the cell. A resource can never be removed."""

        def add(cell: Cell, given: dict[str, Any]) -> HttpResponse:
            cell_resource_add(principal=principal_of(request), cell=cell, name=given["name"])
            detail = _(
                "Cell %(cell)s now has the resource %(name)s. A machine has none of it until its Borglet reports some."
            )
            messages.success(request, detail % {"cell": cell, "name": given["name"]})
            return redirect(reverse(f"{self.admin_site.name}:scheduling_cell_change", args=[object_id]))

        title = _("Add a named resource to cell %s")
        return self._form_page(request, object_id, ResourceForm, title, "console/add_resource.html", add)

    @action(description=gettext_lazy("Delete this cell"), url_path="delete-cell", icon="delete")
    def delete_cell(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show what the deletion of the cell would end, and a form in which the user types the cell's name. Then delete
        the cell.
        """

        def delete(cell: Cell, given: dict[str, Any]) -> HttpResponse:
            name = cell.name
            cell_delete(principal=principal_of(request), cell=cell, confirm=given["confirm"])
            detail = _("Cell %(cell)s was deleted. Its history is readable as %(name)s.")
            messages.success(request, detail % {"cell": name, "name": cell.name})
            return redirect(reverse(f"{self.admin_site.name}:scheduling_cell_changelist"))

        cell, found = self.get_object(request, object_id), None
        if cell is not None and self.has_change_permission(request):
            try:
                found = cell_deletion(principal=principal_of(request), cell=cell)
            except Rejected as refusal:
                messages.error(request, refusal.detail)
                return redirect(reverse(f"{self.admin_site.name}:scheduling_cell_change", args=[object_id]))
        shown = {"losses": _losses(found), "in_the_way": list(found.problems.values())} if found else {}
        title = _("Delete cell %s")
        return self._form_page(request, object_id, DeletionForm, title, "console/delete_cell.html", delete, shown)

    def _form_page(
        self,
        request: HttpRequest,
        object_id: str,
        form_class: type[forms.Form],
        title: str,
        template: str,
        act: Callable[[Cell, dict[str, Any]], HttpResponse | str],
        shown: Mapping[str, Any] = MappingProxyType({}),
    ) -> HttpResponse:
        """Show a form about a cell. When the user sends valid input, call `act(cell, given)`. `act` returns a response,
        or the text of a token, which the page then shows. If `act` raises `Rejected`, the page shows the problem.
        `shown`: further values for the template.
        """
        cell = self.get_object(request, object_id)
        if cell is None or not self.has_change_permission(request):
            messages.error(request, _("This cell does not exist, or you cannot change it."))
            return redirect(reverse(f"{self.admin_site.name}:scheduling_cell_changelist"))
        form = form_class(request.POST or None)
        result: HttpResponse | str = ""
        problem = ""
        if form.is_valid():
            try:
                result = act(cell, form.cleaned_data)
            except Rejected as refusal:
                problem = refusal.detail
        if isinstance(result, HttpResponse):
            return result
        context = {
            **self.admin_site.each_context(request),
            "title": title % cell,
            "form": form,
            "token": result,
            "problem": problem,
            "opts": self.opts,
            **shown,
        }
        return TemplateResponse(request, template, context, headers={"Cache-Control": "no-store"})


class LeaseAdmin(FactsAdmin):
    list_display = ["cell", "scheduler", "holder", "epoch", "expires_at"]
    list_select_related = ["cell"]
    list_filter = ["cell"]


class JoinTokenAdmin(FactsAdmin):
    """Admin page of join tokens. The page does not show the secrets and digests of tokens: a token is shown only when
    it is created.
    """

    list_display = ["key", "cell", "uses_left", "created_by", "created_at", "expires_at"]
    list_select_related = ["cell"]
    list_filter = ["cell"]
    fields = ["key", "cell", "uses_left", "created_by", "created_at", "expires_at"]


def _lines(pairs: Any) -> SafeString:
    return format_html("<dl>{}</dl>", format_html_join("", "<div><dt>{}: <b>{}</b></dt></div>", pairs))


def _losses(found: CellDeletion) -> list[tuple[str, str]]:
    """Return what the deletion of a cell would end, as pairs of a label and a text."""
    held = found.quota
    return [
        (_("Live jobs"), str(found.jobs)),
        (_("Live alloc sets"), str(found.alloc_sets)),
        (_("Live tasks"), str(found.tasks)),
        (_("Machines"), ", ".join(f"{number} {state}" for state, number in found.machines.items())),
        (
            _("Sold quota from now on"),
            _("grants: %(grants)d, waiting orders: %(orders)d") % {"grants": held.grants, "orders": held.orders},
        ),
        (_("Tenants with quota, packages or jobs"), ", ".join(found.tenants) or _("none")),
        (_("Packages, which are deleted"), str(found.packages)),
        (_("Capabilities for this cell, which end with it"), str(found.capabilities)),
        (_("Names in DNS"), _("%(number)d in the zone %(zone)s") % {"number": found.dns_names, "zone": found.dns_zone}),
        (
            _("History, which SREs can still read"),
            _("ended jobs: %(jobs)d, files of the archive: %(files)d (%(size)s)")
            % {"jobs": found.jobs_ended, "files": found.archive_files, "size": filesizeformat(found.archive_bytes)},
        ),
    ]
