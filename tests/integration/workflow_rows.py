"""Helpers of the tests of workflows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quota.vocabulary.permissions import Principal, system
from scheduling.core.vocabulary.task_events import Ending
from scheduling.journal import journal
from scheduling.models import Cell, Job, Task, Workflow, WorkflowNode
from scheduling.tasks import transitions
from scheduling.workflows import turns, workflows
from scheduling.workflows.workflows import WorkflowChange

JOB: dict[str, Any] = {"priority": 0, "task": {"command": ["work"], "limit": {"cpu": "100m", "ram": "64Mi"}}}


def node(**fields: Any) -> dict[str, Any]:
    return {"job": JOB, **fields}


def after(*names: str, condition: str = "succeeded", **fields: Any) -> dict[str, Any]:
    return node(after=dict.fromkeys(names, condition), **fields)


def a_workflow_file(nodes: Mapping[str, Any] | None = None, name: str = "w", **fields: Any) -> dict[str, Any]:
    """Return a job file of a workflow. By default, it has the nodes a and b, and b runs after a."""
    nodes = {"a": node(), "b": after("a")} if nodes is None else nodes
    return {"kind": "Workflow", "name": name, "tenant": "ubar", "nodes": nodes, **fields}


def apply(who: Principal, cell: Cell, nodes: Mapping[str, Any] | None = None, **fields: Any) -> WorkflowChange:
    spec = workflows.workflow_spec_for(principal=who, cell=cell, file=a_workflow_file(nodes, **fields))
    return workflows.workflow_submit(principal=who, cell=cell, spec=spec)


def submit(who: Principal, cell: Cell, nodes: Mapping[str, Any] | None = None, **fields: Any) -> Workflow:
    return apply(who, cell, nodes, **fields).workflow


def advance(cell: Cell, *, most: int = 1_000) -> int:
    """Take turns until nothing changes. Return the number of turns with changes."""
    for number in range(most):
        if not turns.workflows_advance(cell.pk).handled:
            return number
    raise AssertionError(f"the workflows still change after {most} turns")


def end(row: Workflow, name: str, how: str = "finished", branch: int = -1) -> None:
    """End the live job of a node."""
    job_id = WorkflowNode.objects.get(workflow=row, name=name, branch=branch, state="running").job_id
    assert job_id is not None
    end_job(Job.objects.get(pk=job_id), how)


def end_job(job: Job, how: str = "finished") -> None:
    with journal.write(job.cell_id, system("test")) as entry:
        tasks = Task.objects.filter(job=job).exclude(state="dead").order_by("id").values_list("id", flat=True)
        transitions.tasks_end(entry, [Ending(task, how) for task in tasks])


def states(row: Workflow) -> dict[str, str]:
    """Return the states of the nodes and branches by name, and check the counters of the workflow."""
    row.refresh_from_db()
    nodes = list(WorkflowNode.objects.filter(workflow=row).order_by("id"))
    own = [one for one in nodes if one.branch < 0]
    ended = {"succeeded", "failed", "skipped", "cancelled"}
    assert row.nodes_left == sum(one.state not in ended for one in own)
    assert row.nodes_failed == sum(one.state == "failed" for one in own)
    assert row.ready == sum(one.state == "ready" for one in nodes)
    assert row.live == sum(one.state == "running" and one.job_id is not None for one in nodes)
    return {one.name if one.branch < 0 else f"{one.name}/{one.branch}": one.state for one in nodes}


def jobs_of(row: Workflow) -> list[Job]:
    return list(Job.objects.filter(labels__workflow=row.name, tenant=row.tenant).order_by("id"))
