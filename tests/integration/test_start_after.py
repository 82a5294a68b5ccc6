"""Tests of jobs that start after a time: checks at the submission, the wait, its explanation, and changes."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone

from quota.models import QuotaUse
from quota.vocabulary.errors import Rejected
from scheduling.access.selectors import job_named
from scheduling.jobs import submit_and_kill, updates
from scheduling.jobs.actions.retry import job_retry
from scheduling.jobs.why import explain_job, explain_task
from scheduling.master import queue_health
from scheduling.master.invariants import validate
from scheduling.master.loop import Master
from scheduling.models import Job, JobSpec, Task
from tests.integration import world

pytestmark = pytest.mark.django_db(transaction=True)


def at(seconds: float) -> str:
    return (timezone.now() + dt.timedelta(seconds=seconds)).isoformat()


def running(job: Job) -> int:
    return Task.objects.filter(job=job, state="running").count()


def update(who, job: Job, **changes) -> Job:
    job = Job.objects.select_related("cell", "tenant").get(pk=job.pk)
    file = world.a_file(job.name, **changes)
    return updates.job_update(principal=who, job=job, job_spec=world.read(job.cell, file)).job


def test_tasks_wait_for_their_time_and_then_start(cell, ann, machine) -> None:
    job = world.submit(ann, cell, world.a_file(start_after=at(3600)))
    other = world.submit(ann, cell, world.a_file("other"))
    assert QuotaUse.objects.get().used[0] == 600  # both have their quota
    master = Master(cell.id)
    master.tick()
    assert (running(job), running(other)) == (0, 3)
    assert validate(cell.id) == []
    assert queue_health.queues(cell.id) == []  # a task that waits for its time does not starve

    update(ann, job, start_after=at(3))
    until = timezone.now() + dt.timedelta(seconds=30)
    while running(job) < 3 and timezone.now() < until:
        master.run(0.3)
    job.refresh_from_db()
    placed = min(Task.objects.filter(job=job).values_list("since", flat=True))
    assert (running(job), placed >= job.start_after) == (3, True)


def test_the_explanation_names_the_time(cell, ann, machine) -> None:
    job = world.submit(ann, cell, world.a_file(start_after=at(7200)))
    Master(cell.id).tick()
    seen = job_named(ann, cell, "ubar", "web")
    until = f"{job.start_after:%Y-%m-%d %H:%M:%S} UTC"
    told = f"The tasks wait until {until}, because the job has this time as its start_after."
    assert told in explain_job(seen, ann).sentences
    assert told in explain_task(seen, Task.objects.get(job=job, index=0), ann).sentences


@pytest.mark.parametrize(
    ("times", "field", "message"),
    [
        ({"start_after": -5.0}, "start_after", "has passed; give a later time, or remove this field to start at once"),
        ({"start_after": 400 * 86400.0}, "start_after", "is too late; give a time within 366 days"),
        ({"start_after": 900.0, "deadline_s": 600}, "deadline_s", "would have to end before it starts"),
    ],
)
def test_times_that_cannot_be_are_rejected(cell, ann, times, field, message) -> None:
    file = world.a_file(**{**times, "start_after": at(times["start_after"])})
    with pytest.raises(Rejected) as refused:
        world.submit(ann, cell, file)
    assert message in refused.value.fields[field]
    assert Job.objects.count() == 0
    (bulk,) = submit_and_kill.jobs_submit_bulk(principal=ann, cell=cell, files=[file], tenant="ubar")
    assert bulk.problem is not None
    assert field in bulk.problem.fields


def test_an_update_removes_the_start_and_cannot_set_one_that_has_passed(cell, ann, machine) -> None:
    job = world.submit(ann, cell, world.a_file(start_after=at(60)))
    with pytest.raises(Rejected) as refused:
        update(ann, job, start_after=at(-60))
    assert set(refused.value.fields) == {"start_after"}
    assert update(ann, job).start_after is None


def test_an_undo_returns_to_a_start_that_has_passed(cell, ann, machine) -> None:
    """Undo an update of a job. Its first version says that it starts at a time that has passed since."""
    job = world.submit(ann, cell, world.a_file())
    update(ann, job, labels={"a": "b"})
    first = JobSpec.objects.get(job=job, version=1)
    JobSpec.objects.filter(pk=first.pk).update(spec={**first.spec, "start_after": "2020-01-01T00:00:00Z"})
    job = Job.objects.select_related("cell", "tenant").get(pk=job.pk)
    undone = updates.job_undo(principal=ann, job=job).job
    assert undone.start_after == dt.datetime(2020, 1, 1, tzinfo=dt.UTC)


def test_a_retry_of_an_ended_job_whose_start_has_passed_starts_at_once(cell, ann, machine) -> None:
    job = world.submit(ann, cell, world.a_file(start_after=at(3600)))
    submit_and_kill.job_kill(principal=ann, job=job)
    Job.objects.filter(pk=job.pk).update(start_after=timezone.now() - dt.timedelta(seconds=1))
    again = job_retry(principal=ann, job=Job.objects.select_related("cell", "tenant").get(pk=job.pk), ranges=((0, 2),))
    Master(cell.id).tick()
    assert (again.job.start_after, running(again.job)) == (None, 3)
