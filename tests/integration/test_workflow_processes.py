"""Tests of workflows with real processes: processes of a master that are killed, and `borgctl`."""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from django.db import connection
from django.utils import timezone

from scheduling.models import Event, Job, Workflow, WorkflowNode
from scheduling.workflows import turns
from tests.integration import master_processes, workflow_rows
from tests.integration.link_world import until
from tests.integration.workflow_rows import after

pytestmark = pytest.mark.django_db(transaction=True)
STEPS = ("decided", "ended", "submitted", "before-commit", "after-commit")


class _Killed(BaseException):
    """Stands for a kill: it ends a turn at once, and PostgreSQL rolls its transaction back."""


def _graph(width: int, depth: int) -> dict[str, object]:
    """Return layers of nodes, each after three nodes of the layer before. Some nodes have branches or retries."""
    nodes: dict[str, object] = {}
    for layer in range(depth):
        for place in range(width):
            before = [f"n{layer - 1}-{(place + shift) % width}" for shift in range(3)] if layer else []
            fields = {"for_each": [1, 2, 3]} if place == 0 else {"retries": 1}
            nodes[f"n{layer}-{place}"] = after(*before, **fields)
    return nodes


def _check_exactly_once(row: Workflow) -> None:
    """Check that each attempt of each node had one job, that no job is unknown, and that no attempt is missing."""
    workflow_rows.states(row)
    jobs = Counter(job.name for job in workflow_rows.jobs_of(row))
    nodes = WorkflowNode.objects.filter(workflow=row)
    attempts = {one.job_name: one.attempt for one in nodes if one.job_name}
    assert jobs == attempts
    submitted = Event.objects.filter(kind="job.submitted", job_id__in=[job.pk for job in workflow_rows.jobs_of(row)])
    assert submitted.count() == sum(attempts.values())


def test_a_turn_that_is_killed_at_any_step_runs_no_node_twice(cell, ann) -> None:
    row = workflow_rows.submit(ann, cell, _graph(4, 4))
    rng = random.Random(20261128)
    for _ in range(300):
        if rng.random() < 0.5:
            killed_at = rng.choice(STEPS)

            def reached(step: str, killed_at: str = killed_at) -> None:
                if step == killed_at:
                    raise _Killed

            with contextlib.suppress(_Killed):
                turns.workflows_advance(cell.pk, at_once=rng.choice((1, 3, 1_000)), reached=reached)
        else:
            turns.workflows_advance(cell.pk, at_once=rng.choice((1, 3, 1_000)))
        WorkflowNode.objects.filter(not_before__isnull=False).update(not_before=timezone.now())
        live = [job for job in workflow_rows.jobs_of(row) if job.state != "dead"]
        if live and rng.random() < 0.7:
            job = rng.choice(live)
            first = WorkflowNode.objects.get(job_id=job.pk).attempt == 1
            has_retries = WorkflowNode.objects.get(job_id=job.pk).retries > 0
            workflow_rows.end_job(job, "failed" if first and has_retries and rng.random() < 0.3 else "finished")
        workflow_rows.states(row)
        if row.ended_at is not None:
            break
    assert row.state == "succeeded"
    _check_exactly_once(row)


@pytest.mark.parametrize("seed", [1, 2])
def test_processes_that_are_killed_at_random_moments_run_no_node_twice(tmp_path, cell, ann, seed) -> None:
    rng = random.Random(seed)
    names = ("cc.batch", "cc")
    with contextlib.ExitStack() as cleanup:
        running = {name: cleanup.enter_context(_one(tmp_path, name)) for name in names}
        row = workflow_rows.submit(ann, cell, _graph(4, 5))
        with _jobs_end_by_themselves(row):
            for _ in range(4):
                before = WorkflowNode.objects.filter(workflow=row, state="succeeded").count()
                progressed = lambda before=before: (  # noqa: E731
                    WorkflowNode.objects.filter(workflow=row, state="succeeded").count() > before
                    or Workflow.objects.filter(pk=row.pk, ended_at__isnull=False).exists()
                )
                until(progressed, seconds=60, what="the workflow goes on")
                name = rng.choice(names)
                threading.Event().wait(rng.uniform(0.0, 0.4))
                running[name].kill()
                running[name].wait()
                running[name] = cleanup.enter_context(_one(tmp_path, name))
            ended = Workflow.objects.filter(pk=row.pk, ended_at__isnull=False)
            until(ended.exists, seconds=120, what="the workflow ends")
    workflow_rows.states(row)
    assert row.state == "succeeded"
    _check_exactly_once(row)


@contextlib.contextmanager
def _one(folder, name: str) -> Iterator[subprocess.Popen[bytes]]:
    with master_processes.running(folder, name) as (process,):
        yield process


@contextlib.contextmanager
def _jobs_end_by_themselves(row: Workflow) -> Iterator[None]:
    """End live jobs of a workflow, a few at a time, as machines would."""
    stopping = threading.Event()

    def run() -> None:
        try:
            while not stopping.wait(0.02):
                for job in Job.objects.filter(labels__workflow=row.name).exclude(state="dead").order_by("id")[:3]:
                    workflow_rows.end_job(job)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
