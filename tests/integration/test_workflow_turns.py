"""Tests of the turns that advance workflows: bounds, pauses, shares of tenants, counters, and removal of old ones."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from quota.models import Quota, Tenant
from quota.vocabulary.errors import Conflict
from quota.vocabulary.permissions import Role
from scheduling.journal import journal
from scheduling.models import Cell, Job, Workflow, WorkflowNode, WorkflowReader
from scheduling.workflows import node_submission, ready_nodes, retention, retrying, turns, workflows
from tests.integration import rows, workflow_rows, world
from tests.integration.workflow_rows import advance, after, end, node, states, submit

pytestmark = pytest.mark.django_db(transaction=True)


def test_at_most_so_many_jobs_are_live_at_once(cell, ann) -> None:
    row = submit(ann, cell, {f"n{i}": node() for i in range(5)}, parallel=2)
    advance(cell)
    assert list(states(row).values()).count("running") == 2
    end(row, "n0")
    advance(cell)
    assert list(states(row).values()).count("running") == 2


def test_a_workflow_that_can_start_nothing_takes_no_turns(cell, ann) -> None:
    """Its bound is full, or its node waits for the next attempt. Each process looks ten times per second."""

    def queries() -> int:
        newest = Cell.objects.get(pk=cell.pk).revision
        WorkflowReader.objects.update(turned_at=timezone.now(), revision=newest)
        with CaptureQueriesContext(connection) as captured:
            turns.workflows_advance(cell.pk)
        return len(captured)

    row = submit(ann, cell, {f"n{i}": node() for i in range(3)}, parallel=1)
    advance(cell)
    assert queries() == 1
    end(row, "n0")
    advance(cell)
    assert list(states(row).values()).count("running") == 1
    WorkflowNode.objects.filter(state="ready").update(not_before=timezone.now() + dt.timedelta(hours=1))
    Workflow.objects.update(parallel=9)
    assert queries() == 1


def _due(row: Workflow) -> None:
    """Let the pause of a workflow be over."""
    Workflow.objects.filter(pk=row.pk, held_until__isnull=False).update(held_until=timezone.now())


def test_a_workflow_without_quota_asks_for_few_jobs_and_pauses_longer_each_time(cell, ann, monkeypatch) -> None:
    numbers: list[int] = []
    submit_for = node_submission.jobs_submit_for

    def counted(*, cell: Cell, asked: Any) -> Any:
        numbers.append(len(asked))
        return submit_for(cell=cell, asked=asked)

    monkeypatch.setattr(node_submission, "jobs_submit_for", counted)
    big = {"priority": "production", "task": {"command": ["x"], "limit": {"cpu": "100", "ram": "64Mi"}}, "tasks": 100}
    row = submit(ann, cell, {f"n{i}": node(job=big) for i in range(5)})
    advance(cell)
    assert (set(states(row).values()), row.held_until is not None, numbers) == ({"ready"}, True, [5])
    assert "quota" in row.detail
    pauses = [row.held_s]
    for _ in range(5):
        advance(cell)
        _due(row)
        advance(cell)
        row.refresh_from_db()
        pauses.append(row.held_s)
    assert numbers == [5, 1, 1, 1, 1, 1]
    assert pauses == [5, 10, 20, 40, 60, 60]
    assert Job.objects.count() == 0
    monkeypatch.setattr(node_submission, "LATER", frozenset())  # from now on, the jobs fail
    for _ in range(4):
        _due(row)
        advance(cell)
    assert set(states(row).values()) == {"failed"}


def test_a_job_that_ends_lets_a_paused_workflow_ask_again(cell, ann) -> None:
    Quota.objects.all().delete()
    rows.grant(Tenant.objects.get(name="ubar"), cell, "production", amounts=rows.SMALL)
    limit = {"cpu": "60m", "ram": "32Mi", "disk": "32Mi"}
    half = {"priority": "production", "task": {"command": ["x"], "limit": limit}}
    row = submit(ann, cell, {"a": node(job=half), "b": node(job=half)})
    advance(cell)
    assert sorted(states(row).values()) == ["ready", "running"]
    first = next(name for name, state in states(row).items() if state == "running")
    end(row, first)
    advance(cell)
    assert sorted(states(row).values()) == ["running", "succeeded"]
    assert (row.held_until, row.detail) == (None, "")


def test_too_many_jobs_pause_all_workflows_of_the_tenant(cell, ann) -> None:
    Tenant.objects.filter(name="ubar").update(max_jobs=1)
    first = submit(ann, cell, {"a": node(), "b": node()})
    second = submit(ann, cell, {"a": node()}, name="second")
    advance(cell)
    states(first), states(second)
    assert Job.objects.count() == 1
    assert (first.held_until is not None, second.held_until is not None) == (True, True)


def test_the_workflows_of_a_tenant_share_a_turn(cell, ann) -> None:
    large = submit(ann, cell, {f"n{i}": node() for i in range(20)}, name="large")
    small = submit(ann, cell, {"a": node()}, name="small")
    turns.workflows_advance(cell.pk, at_once=4)
    assert states(small) == {"a": "running"}
    assert list(states(large).values()).count("running") == 3


def test_tenants_share_a_turn(cell, ann) -> None:
    other = rows.a_tenant("second")
    eve = world.principal("eve", tenant=other, role=Role.OPERATOR)
    for number in range(3):
        submit(ann, cell, {f"n{i}": node() for i in range(5)}, name=f"of-ann-{number}")
    row = submit(eve, cell, {f"n{i}": node() for i in range(5)}, tenant="second")
    turns.workflows_advance(cell.pk, at_once=4)
    assert list(states(row).values()).count("running") == 2


def test_branches_do_not_read_the_items_of_their_node(cell, ann, monkeypatch) -> None:
    row = submit(ann, cell, {"a": node(for_each=["x" * 1_000 for _ in range(300)])})
    turns.workflows_advance(cell.pk)
    read = 0
    run = ready_nodes.query

    def counted(statement: str, values: Any = ()) -> Any:
        nonlocal read
        found = run(statement, values)
        read += sum(len(str(one)) for one in found)
        return found

    monkeypatch.setattr(ready_nodes, "query", counted)
    turns.workflows_advance(cell.pk)
    assert list(states(row).values()).count("running") == 301
    assert 300_000 < read < 600_000  # the items once, and not the list for each branch


def test_a_wrong_counter_does_not_stop_the_turns(cell, ann) -> None:
    broken = submit(ann, cell, {"a": node()}, name="broken")
    row = submit(ann, cell)
    advance(cell)
    Workflow.objects.filter(pk=broken.pk).update(live=0, nodes_left=0)
    end(broken, "a")
    end(row, "a")
    advance(cell)
    assert states(row) == {"a": "succeeded", "b": "running"}
    turns.workflows_advance(cell.pk, sweep=True)
    advance(cell)
    assert (states(broken), broken.state) == ({"a": "succeeded"}, "succeeded")


def test_a_wrong_counter_ends_no_workflow_early(cell, ann) -> None:
    row = submit(ann, cell)
    advance(cell)
    Workflow.objects.update(live=0, nodes_left=0)
    advance(cell)
    row.refresh_from_db()
    assert row.state == "running"
    turns.workflows_advance(cell.pk, sweep=True)
    assert states(row) == {"a": "running", "b": "waiting"}


def test_a_job_that_is_lost_is_found_by_a_sweep(cell, ann) -> None:
    row = submit(ann, cell, {"a": node()})
    advance(cell)
    end(row, "a")
    WorkflowReader.objects.update(revision=journal.newest(cell.pk))  # as if the event was never written
    advance(cell)
    assert states(row) == {"a": "running"}
    turns.workflows_advance(cell.pk, sweep=True)
    advance(cell)
    assert states(row) == {"a": "succeeded"}


def test_ended_workflows_are_deleted_in_parts_after_their_time(cell, ann, monkeypatch) -> None:
    monkeypatch.setattr(retention.journal, "CHUNK", 2)
    three = {name: node() for name in "abc"}
    old = submit(ann, cell, three, keep_s=0)
    kept = submit(ann, cell, {"a": node()}, name="kept", keep_s=1_000)
    live = submit(ann, cell, {"a": node()}, name="live", keep_s=0)
    advance(cell)
    for name in "abc":
        end(old, name, "failed")
    end(kept, "a")
    advance(cell)
    assert retention.old_remove(cell.pk)
    assert WorkflowNode.objects.filter(workflow=old).count() == 1
    with pytest.raises(Conflict, match="which are over"):
        retrying.workflow_retry(principal=ann, workflow=old)
    assert retention.old_remove(cell.pk)
    assert not retention.old_remove(cell.pk)
    assert set(Workflow.objects.values_list("name", flat=True)) == {"kept", "live"}
    assert WorkflowNode.objects.count() == 2
    assert live.state == "running"


def test_an_ended_workflow_stays_while_its_request_may_be_repeated(cell, ann) -> None:
    file = workflow_rows.a_workflow_file({"a": node()}, keep_s=0)
    spec = workflows.workflow_spec_for(principal=ann, cell=cell, file=file)
    row = workflows.workflow_submit(principal=ann, cell=cell, spec=spec, key="k").workflow
    advance(cell)
    end(row, "a")
    advance(cell)
    assert not retention.old_remove(cell.pk)
    Workflow.objects.update(ended_at=timezone.now() - dt.timedelta(minutes=11))
    assert retention.old_remove(cell.pk)
    assert not Workflow.objects.exists()


def test_the_newest_ended_workflows_of_a_tenant_are_kept(cell, ann, monkeypatch) -> None:
    monkeypatch.setattr(retention, "MAX_ENDED", 2)
    for number in range(4):
        end_one = submit(ann, cell, {"a": node()}, name=f"w{number}")
        advance(cell)
        end(end_one, "a")
        advance(cell)
    while retention.old_remove(cell.pk):
        pass
    assert set(Workflow.objects.values_list("name", flat=True)) == {"w2", "w3"}


def test_a_turn_reads_only_what_changes(cell, ann) -> None:
    """The number of queries does not depend on the number of nodes."""

    def queries(number: int, name: str) -> int:
        row = submit(ann, cell, {"a": node(), **{f"n{i}": after("a") for i in range(number)}}, name=name)
        advance(cell)
        end(row, "a")
        with CaptureQueriesContext(connection) as captured:
            turns.workflows_advance(cell.pk)
        assert list(states(row).values()).count("running") == 0
        with CaptureQueriesContext(connection) as submitted:
            turns.workflows_advance(cell.pk)
        assert list(states(row).values()).count("running") == number
        return len(captured) + len(submitted)

    assert queries(3, "small") == queries(40, "large")


def test_a_chain_of_skipped_nodes_takes_several_turns(cell, ann) -> None:
    row = submit(ann, cell, {"n0": node(), **{f"n{i}": after(f"n{i - 1}") for i in range(1, 301)}})
    advance(cell)
    end(row, "n0", "failed")
    assert advance(cell) >= 2
    assert list(states(row).values()).count("skipped") == 300
    assert row.state == "failed"
