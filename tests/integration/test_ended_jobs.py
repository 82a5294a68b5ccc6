"""Tests after many jobs have ended: no page, and no check of the newest rows, reads all jobs or all tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from scheduling.history.checkpoints.rows import read_here
from scheduling.master.invariants import row_problems
from scheduling.models import Job, Task
from tests.integration import portal_world
from tests.integration.portal_world import signed_in

pytestmark = pytest.mark.django_db
ENDED = 1_500
PATHS = [
    "/",
    "/jobs/",
    "/jobs/{job}/",
    "/jobs/{job}/events/",
    "/jobs/{job}/specs/",
    "/jobs/{job}/0/",
    "/jobs/{ended}/",
    "/admin/scheduling/task/",
]


@pytest.fixture
def world(tmp_path, settings):
    settings.BORG_AUTHORITY = str(tmp_path / "authority")
    world = portal_world.make()
    job: Job = world.job
    ended = Job.objects.bulk_create(
        Job(
            cell=job.cell,
            tenant=job.tenant,
            name=f"ended{number}",
            priority=job.priority,
            band=job.band,
            requested=job.requested,
            state="dead",
            outcome="finished",
            ended_at=timezone.now(),
            submitted_by="ann",
        )
        for number in range(ENDED)
    )
    limit = Task.objects.filter(job=job)[0].limit
    Task.objects.bulk_create(
        Task(
            id=one.id << 32,
            cell=job.cell,
            job=one,
            index=0,
            state="dead",
            outcome="finished",
            limit=limit,
            reservation=limit,
            spec_version=1,
            since=timezone.now(),
        )
        for one in ended
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE scheduling_job, scheduling_task, scheduling_departure, scheduling_crashedpair")
    return world


def whole_tables(client: Client, path: str) -> set[str]:
    """Return which of the tables of jobs and tasks are read from beginning to end for a GET of the path."""
    with CaptureQueriesContext(connection) as captured:
        assert client.get(path).status_code == 200
    return scanned(captured)


def scanned(captured: CaptureQueriesContext) -> set[str]:
    """Return which of the tables of jobs and tasks the captured statements read from beginning to end."""
    found = set()
    with connection.cursor() as cursor:
        # These plans are not worth it for the few rows of a page. Rows that earlier tests left in the tables could make
        # them look cheaper.
        cursor.execute("SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL enable_sort = off")
        for statement in [one["sql"] for one in captured if one["sql"].lstrip().startswith(("SELECT", "WITH"))]:
            cursor.execute(f"EXPLAIN (FORMAT JSON) {statement}")
            (plans,) = cursor.fetchone()
            found |= {node["Relation Name"] for node in nodes(plans[0]["Plan"]) if node["Node Type"] == "Seq Scan"}
        cursor.execute("RESET enable_hashjoin; RESET enable_mergejoin; RESET enable_sort")
    return found & {"scheduling_job", "scheduling_task"}


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def test_no_page_reads_all_ended_jobs(world) -> None:
    of = f"{world.job.cell.name}/{world.job.tenant.name}"
    names = {"job": f"{of}/{world.job.name}", "ended": f"{of}/ended{ENDED - 1}"}
    client = signed_in("sre")
    assert {path: found for path in PATHS if (found := whole_tables(client, path.format(**names)))} == {}


def test_validate_from_a_checkpoint_does_not_read_all_ended_jobs(world) -> None:
    cell = world.job.cell
    cell.refresh_from_db()
    with CaptureQueriesContext(connection) as captured:
        assert not any("job ubar/ended" in problem for problem in row_problems(cell.id, after=cell.revision))
        read_here(cell.id)
    assert len(captured) > 15
    assert scanned(captured) == set()
    with CaptureQueriesContext(connection) as captured:
        assert any("job ubar/ended" in problem for problem in row_problems(cell.id, after=0)), (
            "their counters are wrong"
        )
    assert "scheduling_job" in scanned(captured)


def test_the_console_filters_jobs_by_outcome_and_band(world) -> None:
    client = signed_in("sre")
    for query, shown in (("outcome=finished", True), ("outcome=killed", False), ("band=monitoring", False)):
        assert (f"ended{ENDED - 1}" in client.get(f"/admin/scheduling/job/?{query}").text) is shown
