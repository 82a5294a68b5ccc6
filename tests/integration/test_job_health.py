"""Tests of the health of jobs on real PostgreSQL: in lists, in REST and in answers to "why".

The number of queries does not depend on the number of jobs.
"""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from quota.vocabulary.permissions import Role
from scheduling.core.vocabulary.job_health import Troubles
from scheduling.core.vocabulary.states import Observation
from scheduling.core.vocabulary.task_events import Ending, Eviction
from scheduling.jobs import updates
from scheduling.jobs.health import crashing_tasks, with_health
from scheduling.journal import journal
from scheduling.models import Job, Task
from scheduling.tasks import reported_states, transitions
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)
JOBS = "/api/v1/cells/cc/jobs/"
EXIT = {"cause": "exited", "status": 1, "signal": None, "at": 1.0, "detail": ""}


@pytest.fixture
def job(cell, ann, machine) -> Job:
    return world.submit(ann, cell, world.a_file())


@pytest.fixture
def client(job) -> Client:
    return world.bearer(world.a_user("ann", tenant=job.tenant, role=Role.OPERATOR))


def health(job: Job) -> str:
    (row,) = with_health([Job.objects.get(pk=job.pk)])
    return row.health.state.value


def observe(job: Job, index: int, *, phase: str, up: bool = False, restarts: int = 0, health: str = "unknown") -> None:
    task = Task.objects.get(job=job, index=index)
    seen = Observation(task.id, task.incarnation, phase, health, up, restarts, None if up else EXIT)
    with journal.write(job.cell_id, rows.ME) as entry:
        reported_states.tasks_observe(entry, [seen])


def test_a_job_goes_from_pending_over_starting_to_healthy(job, machine) -> None:
    assert health(job) == "pending"
    world.place(job, machine, 0, 1, 2)
    assert health(job) == "starting"
    world.report(job, 0)
    assert health(job) == "degraded"
    world.report(job, 1, 2)
    assert health(job) == "healthy"


def test_a_job_whose_tasks_all_crash_is_failing_though_its_state_is_running(job, machine, client) -> None:
    world.place(job, machine, 0, 1, 2)
    for index in range(3):
        observe(job, index, phase="backoff", restarts=index)
    (listed,) = client.get(JOBS).json()["results"]
    assert (listed["state"], listed["health"], listed["tasks_crashing"]) == ("running", "failing", 3)
    read = client.get(f"{JOBS}ubar/web/").json()
    assert (read["health"], read["why"][0]) == ("failing", "3 of 3 tasks keep crashing.")


def test_crashes_are_the_first_answer_to_why(job, machine, client) -> None:
    world.place(job, machine, 0, 1)
    world.report(job, 0)
    observe(job, 1, phase="backoff", restarts=4)
    told = client.get(f"{JOBS}ubar/web/why/").json()
    assert told["health"] == "degraded"
    assert told["sentences"][:2] == ["1 of 3 tasks keeps crashing.", "Task 1 on m1: exit status 1, 4 restarts."]
    (crash,) = told["crashes"]
    assert (crash["index"], crash["machine"], crash["restarts"], crash["exit"]["status"]) == (1, "m1", 4, 1)
    one = client.get(f"{JOBS}ubar/web/why/?index=1").json()
    assert one["sentences"][0] == "Task 1 on m1: exit status 1, 4 restarts."
    assert client.get(f"{JOBS}ubar/web/why/?index=0").json()["crashes"] == []


def test_a_task_that_was_moved_because_it_crashed_still_counts(job, machine) -> None:
    world.bring_up(job, machine)
    task = Task.objects.get(job=job, index=0)
    with journal.write(job.cell_id, rows.ME) as entry:
        crashed = Eviction(task.id, 1, "failure", detail="crash loop", gone=True, avoid=True, exit=EXIT)
        transitions.tasks_evict(entry, [crashed])
    (row,) = with_health([Job.objects.get(pk=job.pk)])
    assert row.health.troubles == Troubles(crashing=1)
    assert [(one.index, one.machine) for one in crashing_tasks(row)] == [(0, None)]
    world.place(job, machine, 0)
    assert health(job) == "degraded"
    world.report(job, 0)
    assert health(job) == "healthy"


def test_a_machine_that_is_short_is_not_a_crash(job, machine) -> None:
    world.bring_up(job, machine)
    task = Task.objects.get(job=job, index=0)
    short = {**EXIT, "cause": "machine-short"}
    with journal.write(job.cell_id, rows.ME) as entry:
        evicted = Eviction(task.id, 1, "out-of-resources", gone=True, avoid=True, exit=short)
        transitions.tasks_evict(entry, [evicted])
    (row,) = with_health([Job.objects.get(pk=job.pk)])
    assert row.health.troubles == Troubles()


def test_a_task_that_is_up_for_a_moment_between_crashes_is_not_healthy(job, machine) -> None:
    world.bring_up(job, machine)
    Task.objects.filter(job=job).update(restarts=3)
    assert health(job) == "failing"
    Task.objects.filter(job=job).update(since=dt.datetime.now(dt.UTC) - dt.timedelta(minutes=2))
    assert health(job) == "healthy"


def test_failing_checks_and_failures_for_good_count(job, machine) -> None:
    world.bring_up(job, machine)
    observe(job, 0, phase="up", health="unhealthy")
    assert health(job) == "degraded"
    task = Task.objects.get(job=job, index=1)
    with journal.write(job.cell_id, rows.ME) as entry:
        transitions.tasks_end(entry, [Ending(task.id, "failed", 1, gone=True, exit=EXIT)])
    (row,) = with_health([Job.objects.get(pk=job.pk)])
    assert row.health.troubles == Troubles(unhealthy=1, failed=1)


def test_an_update_in_progress_is_reported(job, machine, ann) -> None:
    world.bring_up(job, machine)
    row = Job.objects.select_related("cell", "tenant").get(pk=job.pk)
    updates.job_update(principal=ann, job=row, job_spec=world.read(job.cell, world.with_task(command=["serve", "-2"])))
    assert health(job) == "updating"


def test_the_health_of_many_jobs_takes_as_many_queries_as_of_one(cell, ann, machine, client, job) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert client.get(JOBS).status_code == 200
        return len(captured)

    queries()
    one = queries()
    for number in range(4):
        other = world.submit(ann, cell, world.a_file(f"web{number}", tasks=5))
        world.place(other, machine, number)  # each task has ports of its own
        observe(other, number, phase="backoff")
    assert queries() == one
