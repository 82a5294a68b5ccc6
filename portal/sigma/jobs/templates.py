"""The pages of templates: the list, and one template with the form of its parameters."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import yaml
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from portal.parts.empty import Empty
from portal.parts.filters import Filters, choice, search
from portal.parts.tables import Column, Table
from portal.sigma.frame.page import (
    cell_names,
    given_in,
    narrowed,
    page,
    page_of,
    paging_of,
    problem_kept,
    rendered,
    tenants_of,
)
from portal.sigma.reads.jobs import templates_visible
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.job_templates import selectors
from scheduling.job_templates.templates import revision_of, template_delete, template_dispatch
from scheduling.models import JobTemplate

PAGE_SIZE = 50
# The names of the form's fields begin so, because a parameter may have any name.
_FIELD = "param."


@page
def template_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    chosen = given_in(request.GET, "cell", "tenant", "q")
    rows = templates_visible(principal).order_by("cell__name", "name", "id")
    rows = narrowed(rows, chosen, cell="cell__name", tenant="tenant__name", q="name__contains")
    found = page_of(request, rows, PAGE_SIZE)
    empty = Empty(_("No template matches the filters."))
    if not any(chosen.values()):
        what, why = _("Your tenants have no templates yet."), _("To create a template, run this command:")
        empty = Empty(what, why, command="borgctl template create examples/template.yaml")
    columns = (Column(_("Template")), Column(_("Description")), Column(_("Version")), Column(_("Changed")))
    table = Table(
        _("Templates"), columns, list(found), empty, paging=paging_of(found), row_template="sigma/rows/template.html"
    )
    filters = Filters(
        (
            search("q", _("Search"), chosen["q"], placeholder=_("part of a name")),
            choice("cell", _("Cell"), chosen["cell"], cell_names(principal), everything=_("all cells")),
            choice("tenant", _("Tenant"), chosen["tenant"], tenants_of(principal), everything=_("all tenants")),
        ),
        _("Filter"),
    )
    return render(request, "sigma/templates.html", {"page_obj": found, "table": table, "filters": filters})


@page
def template(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    """Show a template and the form of its parameters (GET), or submit a job from it (POST)."""
    row = _named(principal, cell, tenant, name)
    shown = selectors.content_shown(principal, row)
    context: dict[str, Any] = {
        "template": row,
        "fields": form_fields(shown["parameters"], request.POST if request.method == "POST" else None),
        "suffix": request.POST.get("suffix", ""),
        # A form that is sent twice submits one job, and a form of an older version submits none.
        "key": request.POST.get("key", "") or uuid.uuid4().hex,
        "revision": revision_of(row),
        "job_text": yaml.safe_dump(shown["job"], sort_keys=False, allow_unicode=True, width=120),
        "versions": list(row.versions.defer("content")),
        "writes": may(principal, Action.JOB_WRITE, tenant=tenant, cell=cell),
    }
    if request.method == "POST":
        with problem_kept(context):
            given = _given(row.content["parameters"], request.POST)
            done = template_dispatch(
                principal=principal,
                template=row,
                given=given,
                suffix=context["suffix"],
                key=context["key"][:64],
                if_revision=request.POST.get("revision", ""),
            )
            if done.outcome == "submitted":
                messages.success(request, _("Job %s was submitted.") % done.name)
            else:
                messages.info(request, _("Job %s is already live with these arguments.") % done.name)
            return redirect("sigma:job", cell=cell, tenant=tenant, name=done.name)
    return rendered(request, "sigma/template.html", context)


@page
@require_POST
def delete(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    reason = request.POST.get("reason", "").strip()[:300]
    template_delete(principal=principal, template=_named(principal, cell, tenant, name), reason=reason)
    messages.success(request, _("Template %s was deleted.") % name)
    return redirect("sigma:templates")


def form_fields(schema: Mapping[str, Any], given: Mapping[str, str] | None) -> list[dict[str, Any]]:
    """Return the fields of the form, in the order of the schema. `given`: the values that the user sent; None: each
    field has its default.
    """
    fields = []
    for name, one in schema["properties"].items():
        default = one.get("default")
        value = _shown(default) if given is None else given.get(_FIELD + name, "")
        fields.append(
            {
                "name": _FIELD + name,
                "label": one.get("title") or name,
                "help": one.get("description", ""),
                "type": one["type"],
                "value": value,
                "options": [_shown(option) for option in one.get("enum", [])],
                "required": name in schema.get("required", []),
                "minimum": one.get("minimum"),
                "maximum": one.get("maximum"),
                "max_length": one.get("maxLength"),
            }
        )
    return fields


def _given(schema: Mapping[str, Any], post: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments that the form contains. A checkbox that is not set is `false`. An empty field is left out,
    so that it has its default, except a text without one.
    """
    given = {}
    for name, one in schema["properties"].items():
        value = post.get(_FIELD + name, "")
        if one["type"] == "boolean" and not one.get("enum"):
            value = "true" if value else "false"
        if value or (one["type"] == "string" and "default" not in one):
            given[name] = value
    return given


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _named(principal: Principal, cell: str, tenant: str, name: str) -> JobTemplate:
    row = templates_visible(principal).filter(cell__name=cell, tenant__name=tenant, name=name).first()
    if row is None:
        raise NotFound("template", name)
    return row
