"""The pages of workflows: the list, and one workflow with the picture of its graph, its nodes and its buttons."""

from __future__ import annotations

import yaml
from django.contrib import messages
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from portal.parts.empty import Empty
from portal.parts.filters import Filters, choice, search
from portal.parts.tables import Column, Table
from portal.sigma.frame.page import cell_names, given_in, narrowed, page, page_of, paging_of, tenants_of, whole_number
from portal.sigma.reads.jobs import workflows_visible
from portal.sigma.reads.workflow_picture import GraphNode, Picture, picture
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.models import Workflow, WorkflowNode
from scheduling.workflows import retrying, selectors, workflows

PAGE_SIZE = 50
# A workflow with a larger file has no text of it on its page, because the page would be slow.
_MOST_BYTES_OF_TEXT = 64 * 2**10


@page
def workflow_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    chosen = given_in(request.GET, "cell", "tenant", "state", "q")
    rows = selectors.in_state(workflows_visible(principal), chosen["state"]).order_by("-id")
    rows = narrowed(rows, chosen, cell="cell__name", tenant="tenant__name", q="name__contains")
    found = page_of(request, rows, PAGE_SIZE)
    empty = Empty(_("No workflow matches the filters."))
    if not any(chosen.values()):
        what, why = _("Your tenants have no workflows yet."), _("To submit a workflow, run this command:")
        empty = Empty(what, why, command="borgctl submit examples/map-reduce.jsonnet")
    columns = (
        Column(_("Workflow")),
        Column(_("State")),
        Column(_("Nodes")),
        Column(_("Submitted")),
        Column(_("Owner")),
    )
    table = Table(
        _("Workflows"), columns, list(found), empty, paging=paging_of(found), row_template="sigma/rows/workflow.html"
    )
    states = [("live", _("live")), *((state, _(state)) for state in Workflow.STATES)]
    filters = Filters(
        (
            search("q", _("Search"), chosen["q"], placeholder=_("part of a name")),
            choice("state", _("State"), chosen["state"], states, everything=_("all states")),
            choice("cell", _("Cell"), chosen["cell"], cell_names(principal), everything=_("all cells")),
            choice("tenant", _("Tenant"), chosen["tenant"], tenants_of(principal), everything=_("all tenants")),
        ),
        _("Filter"),
    )
    return render(request, "sigma/workflows.html", {"page_obj": found, "table": table, "filters": filters})


@page
def workflow(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    row = _named(principal, cell, tenant, name)
    rows = selectors.nodes_of(row)
    chosen = given_in(request.GET, "node")
    if chosen["node"]:
        rows = rows.filter(name=chosen["node"])
    found = page_of(request, rows.order_by("layer", "name", "branch"), PAGE_SIZE)
    columns = (Column(_("Node")), Column(_("State")), Column(_("Attempt")), Column(_("Job")), Column(_("Detail")))
    table = Table(
        _("Nodes"),
        columns,
        list(found),
        Empty(_("No node has this name.")),
        paging=paging_of(found),
        row_template="sigma/rows/workflow_node.html",
    )
    context = {
        "workflow": row,
        "picture": _picture(row),
        "counts": [(state, number) for state, number in selectors.state_counts([row])[row.pk].items() if number],
        "parameters": selectors.parameters_shown(principal, row),
        "file_text": _file_text(principal, row),
        "page_obj": found,
        "table": table,
        "node": chosen["node"],
        "running": workflows.tasks_running(row) if row.state in Workflow.LIVE else 0,
        "live": row.state in Workflow.LIVE,
        "writes": may(principal, Action.JOB_WRITE, tenant=tenant, cell=cell),
    }
    return render(request, "sigma/workflow.html", context)


@page
@require_POST
def pause(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    row = workflows.workflow_pause(principal=principal, workflow=_named(principal, cell, tenant, name))
    messages.success(request, _("Paused. No further job is submitted until you resume the workflow."))
    return _back(row)


@page
@require_POST
def resume(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    row = workflows.workflow_resume(principal=principal, workflow=_named(principal, cell, tenant, name))
    messages.success(request, _("Resumed."))
    return _back(row)


@page
@require_POST
def cancel(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    confirm = whole_number(request.POST.get("confirm", ""))  # the number of tasks that the page showed
    row = workflows.workflow_cancel(
        principal=principal, workflow=_named(principal, cell, tenant, name), confirm=confirm
    )
    messages.success(request, _("Cancelled. Its live jobs are being killed."))
    return _back(row)


@page
@require_POST
def retry(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    row = retrying.workflow_retry(principal=principal, workflow=_named(principal, cell, tenant, name))
    messages.success(request, _("The nodes that did not succeed run again."))
    return _back(row)


def _picture(row: Workflow) -> Picture:
    branches: dict[str, dict[str, int]] = {}
    counted = WorkflowNode.objects.filter(workflow=row, branch__gte=0).order_by()
    for name, state, number in counted.values_list("name", "state").annotate(number=Count("id")):
        branches.setdefault(name, {})[state] = number
    nodes = WorkflowNode.objects.filter(workflow=row, branch=-1).order_by("layer", "id")
    return picture(
        [
            GraphNode(name, layer, state, list(after), branches.get(name, {}), job)
            for name, layer, state, after, job in nodes.values_list("name", "layer", "state", "after", "job_name")
        ]
    )


def _file_text(principal: Principal, row: Workflow) -> str:
    if selectors.file_bytes(row) > _MOST_BYTES_OF_TEXT:
        return ""
    text: str = yaml.safe_dump(selectors.file_shown(principal, row), sort_keys=False, allow_unicode=True, width=120)
    return text


def _named(principal: Principal, cell: str, tenant: str, name: str) -> Workflow:
    return selectors.newest_named(workflows_visible(principal).filter(cell__name=cell, tenant__name=tenant), name)


def _back(row: Workflow) -> HttpResponse:
    return redirect("sigma:workflow", cell=row.cell.name, tenant=row.tenant.name, name=row.name)
