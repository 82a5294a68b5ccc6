"""Actions of the admin page of machines: set their attributes, and put them into a pool."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from unfold.admin import ModelAdmin
from unfold.widgets import UnfoldAdminIntegerFieldWidget, UnfoldAdminTextareaWidget, UnfoldAdminTextInputWidget

from quota.admin import principal_of
from quota.admin.reason_forms import act_together
from quota.vocabulary.errors import invalid
from scheduling.models import Machine
from scheduling.pools.attributes import attributes_set, machines_assign


class _ConfirmForm(forms.Form):
    confirm = forms.IntegerField(
        label=gettext_lazy("Confirms a very large change: the number of tasks that have to leave"),
        required=False,
        min_value=0,
        widget=UnfoldAdminIntegerFieldWidget(),
    )


class AttributesForm(_ConfirmForm):
    values = forms.CharField(
        label=gettext_lazy("Attributes to set, one NAME=VALUE per line"),
        required=False,
        widget=UnfoldAdminTextareaWidget(),
    )
    removed = forms.CharField(
        label=gettext_lazy("Names of attributes to remove, separated by commas"),
        required=False,
        widget=UnfoldAdminTextInputWidget(),
    )


class PoolForm(_ConfirmForm):
    pool = forms.CharField(
        label=gettext_lazy("Name of the pool (empty: the selectors of pools decide)"),
        required=False,
        widget=UnfoldAdminTextInputWidget(),
    )


@admin.action(description=gettext_lazy("Set attributes"))
def set_attributes(page: ModelAdmin, request: HttpRequest, rows: QuerySet[Machine]) -> HttpResponse | None:
    principal = principal_of(request)

    def act(chosen: list[Machine], reason: str, given: dict[str, Any]) -> int:
        values = _values(given["values"])
        removed = [name.strip() for name in given["removed"].split(",") if name.strip()]
        facts = {"values": values, "removed": removed, "confirm": given["confirm"], "reason": reason}
        return _in_one_cell(
            chosen, lambda cell, machines: attributes_set(principal=principal, cell=cell, machines=machines, **facts)
        )

    return act_together(
        page,
        request,
        rows,
        action="set_attributes",
        title=_("Set attributes of machines"),
        warning=_("Constraints of jobs and selectors of pools use these attributes."),
        act=act,
        more=AttributesForm,
    )


@admin.action(description=gettext_lazy("Put into a pool"))
def assign_pool(page: ModelAdmin, request: HttpRequest, rows: QuerySet[Machine]) -> HttpResponse | None:
    principal = principal_of(request)

    def act(chosen: list[Machine], reason: str, given: dict[str, Any]) -> int:
        facts = {"pool": given["pool"].strip(), "confirm": given["confirm"], "reason": reason}
        return _in_one_cell(
            chosen, lambda cell, machines: machines_assign(principal=principal, cell=cell, machines=machines, **facts)
        )

    return act_together(
        page,
        request,
        rows,
        action="assign_pool",
        title=_("Put machines into a pool"),
        warning=_("If the pool is dedicated, no tasks of other tenants start on these machines any more."),
        act=act,
        more=PoolForm,
    )


def _values(text: str) -> dict[str, str]:
    values = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = line.partition("=")
        if not equals:
            raise invalid("values", f"the line {line[:80]!r} has no '='; write it as NAME=VALUE")
        values[name.strip()] = value.strip()
    return values


def _in_one_cell(chosen: list[Machine], change: Callable[[Any, list[Machine]], list[Machine]]) -> int:
    """Change the machines of one cell. Return how many changed. Raises `Rejected` for machines of several cells."""
    cells = {machine.cell for machine in chosen}
    if len(cells) > 1:
        raise invalid("cell", f"the machines belong to {len(cells)} cells; select machines of one cell")
    return sum(len(change(cell, chosen)) for cell in cells)
