"""Reads workflows and their nodes. The functions return only rows that the caller may see."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Count, F, QuerySet

from quota.vocabulary.errors import NotFound, invalid
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.access.label_filters import with_labels
from scheduling.access.selectors import of_tenants
from scheduling.journal.sql import query
from scheduling.models import Cell, Workflow, WorkflowNode
from scheduling.spec.masking import MASK, looks_secret, masked
from scheduling.workflows.graph_rules import NodeState

_LIVE = "live"


def workflows_visible(
    principal: Principal, cell: Cell, *, tenant: str = "", state: str = "", selector: str = ""
) -> QuerySet[Workflow]:
    """Return the workflows of a cell. `state`: a state, or `live` for all that have not ended. `selector`: a label
    selector.
    """
    rows = of_tenants(Workflow.objects.select_related("cell", "tenant"), principal, cell)
    if tenant:
        rows = rows.filter(tenant__name=tenant)
    return with_labels(in_state(rows, state), (), selector).order_by("id")


def in_state(rows: QuerySet[Workflow], state: str) -> QuerySet[Workflow]:
    """Return the workflows in a state. Raises `Rejected` for an unknown state."""
    if state and state not in (*Workflow.STATES, _LIVE):
        raise invalid("state", f"{state!r} is unknown; give one of {', '.join((*Workflow.STATES, _LIVE))}")
    if state == _LIVE:
        return rows.filter(ended_at=None)
    return rows.filter(state=state) if state else rows


def workflow_named(principal: Principal, cell: Cell, tenant: str, name: str) -> Workflow:
    """Return the live workflow of this name, or else the newest one. Raises `NotFound` if it does not exist or the
    caller may not see it.
    """
    return newest_named(workflows_visible(principal, cell, tenant=tenant), name)


def newest_named(rows: QuerySet[Workflow], name: str) -> Workflow:
    """Return the live workflow of this name among `rows`, or else the one that ended last."""
    row = rows.filter(name=name).order_by(F("ended_at").desc(nulls_first=True), "-id").first()
    if row is None:
        raise NotFound("workflow", name)
    return row


def nodes_of(workflow: Workflow) -> QuerySet[WorkflowNode]:
    """Return the nodes and branches of a workflow, without their jobs, in the order of ids."""
    return WorkflowNode.objects.filter(workflow=workflow).defer("template", "rules", "next").order_by("id")


def state_counts(workflows: Iterable[Workflow]) -> dict[int, dict[str, int]]:
    """Return by workflow id how many nodes and branches are in each state. Makes one query."""
    ids = [workflow.pk for workflow in workflows]
    found: dict[int, dict[str, int]] = {pk: dict.fromkeys([state.value for state in NodeState], 0) for pk in ids}
    rows = WorkflowNode.objects.filter(workflow_id__in=ids).order_by()
    for pk, state, number in rows.values_list("workflow_id", "state").annotate(number=Count("id")):
        found[pk][state] += number
    return found


def file_bytes(workflow: Workflow) -> int:
    """Return about how many bytes the nodes of the workflow have in its job file."""
    rows = query(
        "SELECT coalesce(sum(octet_length(template::text) + octet_length(rules::text) + octet_length(after::text)), 0)"
        " FROM scheduling_workflownode WHERE workflow_id = %s AND branch = -1",
        [workflow.pk],
    )
    return int(rows[0][0])


def file_shown(principal: Principal, workflow: Workflow) -> dict[str, Any]:
    """Return the workflow as a job file. Values that look secret are masked if the caller may not change it."""
    nodes = {}
    for row in WorkflowNode.objects.filter(workflow=workflow, branch=-1).order_by("id"):
        rules = {name: value for name, value in row.rules.items() if value is not None}
        after = {"after": row.after} if row.after else {}
        retries = {"retries": row.retries} if row.retries else {}
        nodes[row.name] = {"job": row.template, **after, **rules, **retries}
    file: dict[str, Any] = {
        "apiVersion": "borg/v1",
        "kind": "Workflow",
        "name": workflow.name,
        "tenant": workflow.tenant.name,
        "cell": workflow.cell.name,
        "labels": workflow.labels,
        "parameters": workflow.parameters,
        "parallel": workflow.parallel,
        "keep_s": workflow.keep_s,
        "nodes": nodes,
    }
    if _writes(principal, workflow):
        return file
    file["parameters"] = parameters_shown(principal, workflow)
    file["nodes"] = {name: {**node, "job": masked(node["job"])} for name, node in nodes.items()}
    return file


def parameters_shown(principal: Principal, workflow: Workflow) -> dict[str, str]:
    """Return the parameters. Values that look secret are masked if the caller may not change the workflow."""
    given: dict[str, str] = workflow.parameters
    if _writes(principal, workflow):
        return given
    return {name: MASK if looks_secret(name, value) else value for name, value in given.items()}


def _writes(principal: Principal, workflow: Workflow) -> bool:
    return may(principal, Action.JOB_WRITE, tenant=workflow.tenant.name, cell=workflow.cell.name)
