"""Tests of workflows through REST, borgctl, pages, notices, metrics, the deletion of a cell, and erasure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from prometheus_client import CollectorRegistry, generate_latest

from borglet.messages import TaskKey
from quota.models import Notice, Quota
from quota.vocabulary.errors import Conflict
from scheduling.cells.deletion import cell_delete, cell_deletion
from scheduling.jobs.notices.event_notices import events_notify
from scheduling.master.metrics import CellCollector
from scheduling.models import Cell, Job, Task, Workflow, WorkflowNode, WorkflowReader
from scheduling.workflows import turns, workflows
from tests.integration import cli_world, workflow_rows, world
from tests.integration.test_identities import identity
from tests.integration.workflow_rows import advance, after, end, node, submit

pytestmark = pytest.mark.django_db(transaction=True)
PATH = "/api/v1/cells/cc/workflows/ubar/w/"


@pytest.fixture
def rest(tenant, ann) -> Client:
    return world.bearer(world.a_user("ann"))


@pytest.fixture
def ann_cli(tmp_path, shared_portal, cell, tenant) -> cli_world.Cli:
    return cli_world.of(tmp_path, shared_portal, "ann", tenant=tenant)


def put(rest: Client, path: str = PATH, **changes: Any) -> Any:
    return rest.put(path, json.dumps(workflow_rows.a_workflow_file(**changes)), content_type="application/json")


def test_rest_submits_pauses_cancels_and_retries(cell, rest) -> None:
    file = json.dumps(workflow_rows.a_workflow_file())
    plan = rest.post(PATH + "plan/", file, content_type="application/json").json()
    assert (plan["outcome"], plan["sentence"]) == ("submitted", "Workflow w is new: 2 nodes with at most 2 jobs.")
    assert put(rest, PATH + "?dry_run=1").json()["dry_run"] is True
    assert (Workflow.objects.count(), WorkflowNode.objects.count()) == (0, 0)
    assert put(rest).json()["outcome"] == "submitted"
    assert put(rest).json()["outcome"] == "unchanged"
    changed = put(rest, nodes={"z": node()})
    assert (changed.status_code, changed.json()["code"]) == (409, "workflow-exists")
    found = rest.get(PATH).json()
    assert (found["state"], found["owner"], found["node_states"]["waiting"]) == ("running", "ann", 1)
    assert rest.post(PATH + "pause/?dry_run=1").json()["state"] == "paused"
    assert rest.get(PATH).json()["state"] == "running"
    assert rest.post(PATH + "pause/").json()["state"] == "paused"
    assert rest.post(PATH + "resume/").json()["state"] == "running"
    advance(cell)
    assert rest.post(PATH + "cancel/", {}, content_type="application/json").json()["state"] == "cancelling"
    advance(cell)
    assert rest.post(PATH + "retry/").json()["state"] == "running"
    (row,) = rest.get("/api/v1/cells/cc/workflows/?state=live").json()["results"]
    assert (row["name"], row["nodes_left"]) == ("w", 2)
    assert rest.get("/api/v1/cells/cc/workflows/?state=nonsense").status_code == 422
    nodes = rest.get(PATH + "nodes/").json()["results"]
    assert [(one["name"], one["branch"], one["state"]) for one in nodes] == [
        ("a", None, "ready"),
        ("b", None, "waiting"),
    ]


def test_a_task_sets_its_result_through_rest(cell, tenant, machine, settings, tmp_path: Path) -> None:
    settings.BORG_AUTHORITY = str(tmp_path / "authority")
    job = {**workflow_rows.JOB, "api": "read", "task": {**workflow_rows.JOB["task"], "ports": ["http"]}}
    submit(world.principal("ann", tenant=tenant), cell, {"a": node(job=job), "other": node(job=job)})
    advance(cell)
    world.place(Job.objects.get(name="w-a"), machine, 0)
    client = _as_task("w-a")

    def send(body: str, of: str = "w-a") -> int:
        path = f"/api/v1/cells/cc/jobs/ubar/{of}/result/"
        return int(client.put(path, body, content_type="application/json").status_code)

    assert [send('{"n": 1}'), send(""), send("{"), send('"' + "x" * 5_000 + '"')] == [204, 422, 422, 422]
    assert send("2", of="w-other") == 403
    assert WorkflowNode.objects.get(name="a").result == {"n": 1}
    workflow_rows.end_job(Job.objects.get(name="w-a"))
    assert send("3") == 401


def _as_task(name: str) -> Client:
    """Return a client with the identity of task 0 of a job."""
    task = Task.objects.get(job__name=name, index=0)
    key = TaskKey(str(task.job.uid), 0, task.incarnation)
    return Client(headers={"authorization": f"Bearer {identity(key, f'cc/ubar/{name}/0')}"})


def test_rest_rejects_a_cycle_with_its_field(cell, rest) -> None:
    answer = put(rest, nodes={"a": after("b"), "b": after("a")})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-spec")
    assert "the nodes wait for each other" in next(iter(answer.json()["fields"].values()))
    assert Workflow.objects.count() == 0


def test_borgctl_submits_lists_and_acts(cell, ann_cli) -> None:
    ann_cli.file(workflow_rows.a_workflow_file(), "w.json")
    assert ann_cli.out("submit", "w.json") == "Workflow w is new: 2 nodes with at most 2 jobs.\n"
    assert "cc/ubar/w" in ann_cli.out("workflow", "list")
    assert ann_cli.out("workflow", "pause", "w") == "Workflow cc/ubar/w is paused.\n"
    assert ann_cli.out("workflow", "resume", "w", "--dry-run") == "Workflow cc/ubar/w would be resumed.\n"
    ann_cli.out("workflow", "resume", "w")
    assert "1 ready, 1 waiting" in ann_cli.out("workflow", "show", "w").replace(
        "1 waiting, 1 ready", "1 ready, 1 waiting"
    )
    assert ann_cli.out("workflow", "cancel", "w") == "Workflow cc/ubar/w is cancelled.\n"
    advance(cell)
    assert ann_cli.out("workflow", "retry", "w") == "Workflow cc/ubar/w is retried.\n"
    text, _ = ann_cli.failing("update", "w.json")
    assert "a workflow does not change" in text
    (ann_cli.folder / "team").mkdir()
    ann_cli.file(workflow_rows.a_workflow_file(), "team/w.json")
    _, problem = ann_cli.failing("apply", "team", "--yes")
    assert "a live workflow cannot be changed" in str(problem)


def test_a_failed_workflow_is_notified_once(cell, ann) -> None:
    row = submit(ann, cell)
    advance(cell)
    events_notify(cell)
    end(row, "a", "failed")
    advance(cell)
    events_notify(cell)
    events_notify(cell)
    notice = Notice.objects.get(kind="workflow.failed")
    assert notice.subject == "Workflow w in cell cc has failed"
    assert "node a: job w-a failed in attempt 1" in notice.text
    assert notice.url.endswith("/workflows/cc/ubar/w/")
    assert not Notice.objects.filter(kind="job.failed").exists()  # the workflow may retry its jobs


def test_a_job_that_only_looks_like_a_node_is_notified(cell, ann) -> None:
    submit(ann, cell)
    advance(cell)
    events_notify(cell)
    own = world.submit(ann, cell, world.a_file("own", priority=0, labels={"workflow": "w", "node": "a"}))
    workflow_rows.end_job(own, "failed")
    events_notify(cell)
    assert Notice.objects.filter(kind="job.failed").count() == 1


def test_the_metric_shows_for_how_long_nobody_has_advanced_workflows(cell, ann) -> None:
    def lag() -> float:
        registry = CollectorRegistry()
        registry.register(CellCollector())
        (line,) = [
            line
            for line in generate_latest(registry).decode().splitlines()
            if line.startswith('borg_workflow_lag_seconds{cell="cc"}')
        ]
        return float(line.split()[-1])

    assert lag() == 0
    row = submit(ann, cell)
    assert lag() < 5
    Workflow.objects.update(changed_at=row.created_at.replace(year=2020))
    WorkflowReader.objects.update(turned_at=row.created_at.replace(year=2020))
    assert lag() > 10**6
    advance(cell)
    assert lag() < 5


def test_pages_show_the_graph_and_act(cell, ann, tenant) -> None:
    row = submit(ann, cell, {"a": node(), "b": after("a"), "many": after("a", for_each=[1, 2])}, labels={"x": "y"})
    advance(cell)
    client = Client()
    client.force_login(world.a_user("ann"))
    assert ">w</a>" in client.get("/workflows/").content.decode()
    page = client.get("/workflows/cc/ubar/w/").content.decode()
    assert "graph-box" in page
    assert "/jobs/cc/ubar/w-a/" in page
    assert page.count("graph-line") == 2
    client.post("/workflows/cc/ubar/w/pause/")
    assert Workflow.objects.get().state == "paused"
    client.post("/workflows/cc/ubar/w/resume/")
    client.post("/workflows/cc/ubar/w/cancel/", {"confirm": "0"})
    assert Workflow.objects.get().state == "cancelling"
    advance(cell)
    assert "Retry the failed nodes" in client.get("/workflows/cc/ubar/w/?node=many").content.decode()
    client.post("/workflows/cc/ubar/w/retry/")
    row.refresh_from_db()
    assert row.state == "running"
    assert client.get("/workflows/cc/ubar/nothing/").status_code == 404


def test_the_page_of_a_large_workflow_makes_few_queries(cell, ann, django_assert_max_num_queries) -> None:
    submit(ann, cell, {"a": node(), **{f"n{i}": after("a") for i in range(250)}})
    client = Client()
    client.force_login(world.a_user("ann"))
    with django_assert_max_num_queries(30):
        page = client.get("/workflows/cc/ubar/w/").content.decode()
    assert page.count("graph-cell ") == 251
    assert "Layer 1" in page


def test_live_workflows_are_in_the_way_of_the_deletion_of_their_cell(cell, ann) -> None:
    sre = world.principal("root", sre=True)
    Quota.objects.all().delete()
    row = submit(ann, cell)
    found = cell_deletion(principal=sre, cell=cell)
    assert ("workflows" in found.problems, found.workflows, found.tenants) == (True, 1, ["ubar"])
    with pytest.raises(Conflict, match="1 live workflow that would submit further jobs"):
        cell_delete(principal=sre, cell=cell, confirm="cc")
    workflows.workflow_cancel(principal=ann, workflow=row)
    advance(cell)
    cell_delete(principal=sre, cell=cell, confirm="cc")
    assert (Workflow.objects.count(), WorkflowNode.objects.count()) == (0, 0)


def test_a_turn_of_another_cell_changes_nothing(cell, ann) -> None:
    row = submit(ann, cell)
    other = Cell.objects.create(name="second")
    assert turns.workflows_advance(other.pk).live is False
    assert (workflow_rows.states(row)["a"], Job.objects.count()) == ("ready", 0)
