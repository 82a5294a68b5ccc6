"""Tests of workflows: their nodes, retries, branches, results, and changes by people."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from django.contrib.auth import get_user_model
from django.utils import timezone

from quota.models import Membership
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected
from quota.vocabulary.permissions import Principal, Role, Scope
from scheduling.jobs.submit_and_kill import job_kill
from scheduling.models import Cell, Event, Job, JobSpec, Workflow, WorkflowNode
from scheduling.workflows import node_submission, results, retrying, turns, workflows
from tests.integration import rows, workflow_rows, world
from tests.integration.workflow_rows import advance, after, end, jobs_of, node, states, submit

pytestmark = pytest.mark.django_db(transaction=True)


def env_of(job: Job) -> dict[str, str]:
    spec = JobSpec.objects.get(job=job, version=job.spec_version).spec
    env: dict[str, str] = spec["task"]["env"]
    return env


def set_result(cell: Cell, job: str, value: Any, *, tenant: str = "ubar") -> None:
    task = Principal(
        name=f"task:{cell.name}/{tenant}/{job}/0",
        roles={tenant: Role.VIEWER},
        tenant=tenant,
        cell=cell.name,
        scopes=frozenset({Scope.READ}),
    )
    results.result_set(principal=task, cell=cell, tenant=tenant, job=job, value=value)


def test_nodes_run_in_the_order_of_the_graph(cell, ann) -> None:
    row = submit(ann, cell, {"a": node(), "b": after("a"), "c": after("a"), "d": after("b", "c")})
    advance(cell)
    assert states(row) == {"a": "running", "b": "waiting", "c": "waiting", "d": "waiting"}
    (job,) = jobs_of(row)
    assert (job.name, job.labels, job.submitted_by) == ("w-a", {"workflow": "w", "node": "a"}, "ann")
    end(row, "a")
    advance(cell)
    assert states(row) == {"a": "succeeded", "b": "running", "c": "running", "d": "waiting"}
    end(row, "b")
    advance(cell)
    assert states(row)["d"] == "waiting"
    end(row, "c")
    advance(cell)
    end(row, "d")
    advance(cell)
    assert set(states(row).values()) == {"succeeded"}
    assert (row.state, len(jobs_of(row))) == ("succeeded", 4)
    kinds = Event.objects.filter(kind__startswith="workflow.").order_by("revision").values_list("kind", "actor")
    assert list(kinds) == [("workflow.set", "ann"), ("workflow.ended", "system:workflow")]


def test_a_failed_node_skips_what_depends_on_its_success(cell, ann) -> None:
    row = submit(
        ann,
        cell,
        {
            "a": node(),
            "b": after("a"),
            "c": after("b"),
            "clean": after("a", condition="failed"),
            "always": after("c", condition="ended"),
        },
    )
    advance(cell)
    end(row, "a", "failed")
    advance(cell)
    assert states(row) == {"a": "failed", "b": "skipped", "c": "skipped", "clean": "running", "always": "running"}
    end(row, "clean")
    end(row, "always")
    advance(cell)
    states(row)
    assert (row.state, row.detail) == ("failed", "node a: job w-a failed in attempt 1")


def test_a_failed_job_is_retried_as_often_as_its_node_allows(cell, ann) -> None:
    row = submit(ann, cell, {"a": node(retries=1)})
    advance(cell)
    end(row, "a", "failed")
    advance(cell)
    assert states(row) == {"a": "ready"}
    assert WorkflowNode.objects.get().not_before > timezone.now()
    WorkflowNode.objects.update(not_before=timezone.now())
    advance(cell)
    assert (states(row), WorkflowNode.objects.get().attempt) == ({"a": "running"}, 2)
    end(row, "a", "failed")
    advance(cell)
    assert (states(row), row.state, len(jobs_of(row))) == ({"a": "failed"}, "failed", 2)


def test_a_job_that_a_person_kills_is_not_retried(cell, ann) -> None:
    row = submit(ann, cell, {"a": node(retries=3)})
    advance(cell)
    job_kill(principal=ann, job=jobs_of(row)[0])
    advance(cell)
    assert states(row) == {"a": "failed"}
    assert WorkflowNode.objects.get().code == "job-killed"


def test_parameters_and_results_reach_later_nodes(cell, ann) -> None:
    own = {**workflow_rows.JOB, "task": {**workflow_rows.JOB["task"], "env": {"MODE": "own", "LIST": "$(job)"}}}
    nodes = {
        "split-text": node(),
        "map": node(for_each={"result_of": "split-text", "at_most": 5}),
        "reduce": after("map", job=own),
    }
    row = submit(ann, cell, nodes, parameters={"FILE": "words", "MODE": "shared"})
    advance(cell)
    set_result(cell, "w-split-text", ["x", {"from": 3}])
    end(row, "split-text")
    advance(cell)
    assert states(row)["map/1"] == "running"
    first, second = (env_of(job) for job in jobs_of(row)[1:])
    assert (first["ITEM"], first["ITEM_INDEX"], second["ITEM"]) == ("x", "0", '{"from":3}')
    assert first["WORKFLOW_RESULT_URL"].endswith("/api/v1/cells/cc/jobs/ubar/w-map-0/result/")
    assert (first["MODE"], first["FILE"]) == ("shared", "words")
    set_result(cell, "w-map-1", {"n": 7})
    for branch in (0, 1):
        end(row, "map", branch=branch)
        advance(cell)
    assert states(row)["reduce"] == "running"
    env = env_of(jobs_of(row)[-1])
    assert (env["RESULT_MAP"], env["MODE"], env["LIST"]) == ('[null,{"n":7}]', "own", "$(job)")
    assert "RESULT_SPLIT_TEXT" not in env  # it is not directly before


def test_only_a_task_of_the_job_sets_its_result(cell, ann) -> None:
    row = submit(ann, cell, {"a": node()})
    advance(cell)
    with pytest.raises(Forbidden, match="is not a task of job w-a"):
        results.result_set(principal=ann, cell=cell, tenant="ubar", job="w-a", value=1)
    other = Principal(
        name="task:cc/ubar/w-a2/0", roles={"ubar": Role.OPERATOR}, tenant="ubar", cell="cc", scopes=frozenset(Scope)
    )
    with pytest.raises(Forbidden):
        results.result_set(principal=other, cell=cell, tenant="ubar", job="w-a", value=1)
    with pytest.raises(NotFound):
        set_result(cell, "nothing", 1)
    world.submit(ann, cell, world.a_file("plain", priority=0))
    with pytest.raises(Conflict, match="not a node of a live workflow"):
        set_result(cell, "plain", 1)
    set_result(cell, "w-a", 1)
    set_result(cell, "w-a", {"b": None})
    assert WorkflowNode.objects.get(workflow=row).result == {"b": None}


@pytest.mark.parametrize("body", [b"", b"{", b"[1", b'"' + b"x" * 5_000 + b'"', b'"\\u0000"'])
def test_a_wrong_result_is_rejected(body) -> None:
    with pytest.raises(Rejected) as rejected:
        results.result_read(body)
    assert "result" in rejected.value.fields


@pytest.mark.parametrize(
    ("result", "code"), [(None, "no-result"), ("text", "not-a-list"), ([1, 2, 3], "too-many-items")]
)
def test_a_result_without_items_fails_the_node(cell, ann, result, code) -> None:
    row = submit(ann, cell, {"a": node(), "b": node(for_each={"result_of": "a", "at_most": 2}), "c": after("b")})
    advance(cell)
    if result is not None:
        set_result(cell, "w-a", result)
    end(row, "a")
    advance(cell)
    assert states(row) == {"a": "succeeded", "b": "failed", "c": "skipped"}
    assert WorkflowNode.objects.get(name="b").code == code


def test_an_empty_list_of_items_succeeds(cell, ann) -> None:
    row = submit(ann, cell, {"a": node(), "b": node(for_each={"result_of": "a", "at_most": 2}), "c": after("b")})
    advance(cell)
    set_result(cell, "w-a", [])
    end(row, "a")
    advance(cell)
    assert states(row) == {"a": "succeeded", "b": "succeeded", "c": "running"}


def test_when_decides_whether_a_node_runs(cell, ann) -> None:
    row = submit(
        ann,
        cell,
        {
            "a": node(),
            "full": after("a", when={"parameter": "MODE", "equals": "full"}),
            "quick": after("a", when={"result_of": "a", "key": "n", "equals": 3}),
            "end": after("full", "quick", condition="ended"),
        },
        parameters={"MODE": "fast"},
    )
    advance(cell)
    set_result(cell, "w-a", {"n": 3})
    end(row, "a")
    advance(cell)
    assert states(row) == {"a": "succeeded", "full": "skipped", "quick": "running", "end": "waiting"}
    end(row, "quick")
    advance(cell)
    assert states(row)["end"] == "running"


def test_a_failed_branch_fails_its_node_after_the_others(cell, ann) -> None:
    row = submit(ann, cell, {"a": node(for_each=[1, 2, 3]), "b": after("a")})
    advance(cell)
    end(row, "a", "failed", branch=1)
    advance(cell)
    assert states(row)["a"] == "running"
    end(row, "a", branch=0)
    end(row, "a", branch=2)
    advance(cell)
    assert states(row) == {"a": "failed", "a/0": "succeeded", "a/1": "failed", "a/2": "succeeded", "b": "skipped"}
    assert row.detail == "node a: 1 of its jobs did not succeed"
    retrying.workflow_retry(principal=ann, workflow=row)
    assert states(row) == {"a": "running", "a/0": "succeeded", "a/1": "ready", "a/2": "succeeded", "b": "waiting"}
    advance(cell)
    end(row, "a", branch=1)
    advance(cell)
    end(row, "b")
    advance(cell)
    states(row)
    assert (row.state, len(jobs_of(row))) == ("succeeded", 5)


def test_a_retry_goes_on_from_the_failed_nodes(cell, ann, tenant) -> None:
    row = submit(ann, cell, {"a": node(), "b": after("a"), "c": after("b"), "d": after("a")})
    advance(cell)
    end(row, "a")
    advance(cell)
    end(row, "b", "failed")
    end(row, "d")
    advance(cell)
    assert states(row) == {"a": "succeeded", "b": "failed", "c": "skipped", "d": "succeeded"}
    bob = world.principal("bob", tenant=tenant, role=Role.OPERATOR)
    retrying.workflow_retry(principal=bob, workflow=row)
    advance(cell)
    assert states(row) == {"a": "succeeded", "b": "running", "c": "waiting", "d": "succeeded"}
    end(row, "b")
    advance(cell)
    end(row, "c")
    advance(cell)
    states(row)
    assert (row.state, row.owner_name) == ("succeeded", "bob")
    assert [job.name for job in jobs_of(row)] == ["w-a", "w-b", "w-d", "w-b", "w-c"]
    with pytest.raises(Conflict, match="its state is succeeded"):
        retrying.workflow_retry(principal=ann, workflow=row)


def test_a_paused_workflow_submits_nothing(cell, ann) -> None:
    row = submit(ann, cell)
    advance(cell)
    workflows.workflow_pause(principal=ann, workflow=row)
    workflows.workflow_pause(principal=ann, workflow=row)
    end(row, "a")
    advance(cell)
    assert (states(row), row.state) == ({"a": "succeeded", "b": "ready"}, "paused")
    workflows.workflow_resume(principal=ann, workflow=row)
    advance(cell)
    assert (states(row), row.state) == ({"a": "succeeded", "b": "running"}, "running")
    assert Event.objects.filter(kind="workflow.set").count() == 3


def test_a_cancelled_workflow_ends_its_jobs(cell, ann, monkeypatch) -> None:
    monkeypatch.setattr(turns.journal, "CHUNK", 2)
    row = submit(ann, cell, {"a": node(for_each=[1, 2, 3]), "b": node(), "c": after("a", "b")})
    advance(cell)
    workflows.workflow_cancel(principal=ann, workflow=row)
    assert (states(row)["c"], row.state) == ("cancelled", "cancelling")
    advance(cell)
    assert set(states(row).values()) == {"cancelled"}
    assert (row.state, Job.objects.exclude(state="dead").count()) == ("cancelled", 0)
    retrying.workflow_retry(principal=ann, workflow=row)
    advance(cell)
    assert states(row)["a/2"] == "running"
    assert states(row)["c"] == "waiting"


def test_branches_that_succeeded_while_a_workflow_was_cancelled_are_not_run_again(cell, ann) -> None:
    row = submit(ann, cell, {"a": node(for_each=[1]), "b": after("a")})
    advance(cell)
    workflows.workflow_cancel(principal=ann, workflow=row)
    end(row, "a", branch=0)
    advance(cell)
    assert (states(row), row.state) == ({"a": "cancelled", "a/0": "succeeded", "b": "cancelled"}, "cancelled")
    retrying.workflow_retry(principal=ann, workflow=row)
    advance(cell)
    assert states(row) == {"a": "succeeded", "a/0": "succeeded", "b": "running"}


def test_a_repeated_submission_with_the_same_key_runs_nothing_again(cell, ann) -> None:
    spec = workflows.workflow_spec_for(principal=ann, cell=cell, file=workflow_rows.a_workflow_file({"a": node()}))
    first = workflows.workflow_submit(principal=ann, cell=cell, spec=spec, key="k").workflow
    advance(cell)
    end(first, "a")
    advance(cell)
    again = workflows.workflow_submit(principal=ann, cell=cell, spec=spec, key="k")
    assert (again.outcome, again.workflow.pk, Workflow.objects.count()) == ("submitted", first.pk, 1)
    other = workflows.workflow_spec_for(principal=ann, cell=cell, file=workflow_rows.a_workflow_file())
    with pytest.raises(Conflict, match="used this key for another workflow"):
        workflows.workflow_submit(principal=ann, cell=cell, spec=other, key="k")


def test_a_package_that_does_not_exist_is_found_at_the_submission(cell, ann) -> None:
    job = {**workflow_rows.JOB, "task": {**workflow_rows.JOB["task"], "packages": ["missing@v1"]}}
    with pytest.raises(Rejected) as rejected:
        submit(ann, cell, {"a": node(), "b": after("a", job=job)})
    assert any(path.startswith("nodes.b.job.task.packages") for path in rejected.value.fields)


def test_long_names_are_found_at_the_submission(cell, ann, settings) -> None:
    settings.BORG_ZONE = ".".join(["x" * 60] * 3) + ".internal."
    with pytest.raises(Rejected) as rejected:
        submit(ann, cell, {"n" * 50: node()})
    assert f"nodes.{'n' * 50}.job.name" in rejected.value.fields


def test_a_node_that_runs_again_forgets_its_result(cell, ann) -> None:
    row = submit(ann, cell, {"a": node(), "b": after("a", condition="ended")})
    advance(cell)
    set_result(cell, "w-a", "old")
    end(row, "a", "failed")
    advance(cell)
    end(row, "b", "failed")
    advance(cell)
    retrying.workflow_retry(principal=ann, workflow=row)
    assert WorkflowNode.objects.get(name="a").result is None


def test_a_job_that_is_rejected_fails_its_node(cell, ann) -> None:
    world.submit(ann, cell, world.a_file("w-a", priority=0))
    row = submit(ann, cell, {"a": node(), "b": node()})
    advance(cell)
    assert states(row) == {"a": "failed", "b": "running"}
    assert WorkflowNode.objects.get(name="a").code == "job-exists"


def test_an_owner_without_rights_submits_nothing(cell, ann) -> None:
    row = submit(ann, cell)
    Membership.objects.all().delete()
    advance(cell)
    assert (states(row), row.state, Job.objects.count()) == ({"a": "failed", "b": "skipped"}, "failed", 0)


def test_a_disabled_owner_submits_nothing_until_another_member_retries(cell, ann, tenant) -> None:
    row = submit(ann, cell, {"a": node()})
    get_user_model().objects.filter(username="ann").update(is_active=False)
    advance(cell)
    assert (states(row), WorkflowNode.objects.get().code) == ({"a": "failed"}, "no-owner")
    workflows_of_bob = world.principal("bob", tenant=tenant, role=Role.OPERATOR)
    retrying.workflow_retry(principal=workflows_of_bob, workflow=row)
    advance(cell)
    assert states(row) == {"a": "running"}


def test_a_job_that_cannot_be_submitted_at_all_fails_alone(cell, ann, monkeypatch, caplog) -> None:
    submit_for = node_submission.jobs_submit_for

    def broken(*, cell: Cell, asked: Any) -> Any:
        if any(job.name == "w-n3" for _, job in asked):
            raise KeyError("x")
        return submit_for(cell=cell, asked=asked)

    monkeypatch.setattr(node_submission, "jobs_submit_for", broken)
    row = submit(ann, cell, {f"n{i}": node() for i in range(6)})
    advance(cell)
    found = states(row)
    assert found.pop("n3") == "failed"
    assert set(found.values()) == {"running"}
    assert WorkflowNode.objects.get(name="n3").code == "internal"
    assert "a job of a workflow cannot be submitted" in caplog.text


def test_an_equal_workflow_is_submitted_once(cell, ann) -> None:
    first = workflow_rows.apply(ann, cell)
    assert workflow_rows.apply(ann, cell).outcome == "unchanged"
    with pytest.raises(Conflict, match="is live already"):
        workflow_rows.apply(ann, cell, {"z": node()})
    workflows.workflow_cancel(principal=ann, workflow=first.workflow)
    advance(cell)
    assert workflow_rows.apply(ann, cell, {"z": node()}).outcome == "submitted"
    with pytest.raises(Conflict, match="is live already"):
        retrying.workflow_retry(principal=ann, workflow=first.workflow)


def test_limits_of_live_workflows(cell, ann, settings) -> None:
    settings.BORG_MAX_WORKFLOWS_PER_TENANT = 1
    submit(ann, cell)
    with pytest.raises(Rejected, match="has 1 live workflows of tenant ubar, and at most 1"):
        submit(ann, cell, name="second")


def test_other_tenants_see_and_change_nothing(cell, ann) -> None:
    row = submit(ann, cell)
    eve = world.principal("eve", tenant=rows.a_tenant("second"), role=Role.OWNER)
    for change in (workflows.workflow_pause, workflows.workflow_cancel, retrying.workflow_retry):
        with pytest.raises(NotFound):
            change(principal=eve, workflow=row)
    viewer = world.principal("vic", tenant=row.tenant, role=Role.VIEWER)
    with pytest.raises(Forbidden):
        workflows.workflow_pause(principal=viewer, workflow=row)


def test_the_file_of_a_workflow_can_be_submitted_again(cell, ann) -> None:
    from scheduling.workflows import selectors

    nodes = {"a": node(retries=2), "b": node(for_each={"result_of": "a", "at_most": 3}), "c": after("b")}
    row = submit(ann, cell, nodes, parameters={"X": "1", "API_KEY": "abc"}, labels={"app": "shop"})
    shown = selectors.file_shown(ann, row)
    spec = workflows.workflow_spec_for(principal=ann, cell=cell, file=msgspec.json.encode(shown))
    assert spec.digest() == row.digest
    vic = world.principal("vic", tenant=row.tenant, role=Role.VIEWER)
    assert selectors.file_shown(vic, row)["parameters"]["API_KEY"].startswith("(hidden")
