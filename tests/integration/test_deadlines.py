"""Tests of deadlines: the master ends jobs that have not ended in time, each task once."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from quota.models import QuotaUse
from quota.vocabulary.errors import Rejected
from scheduling.core.vocabulary import events
from scheduling.jobs import updates
from scheduling.jobs.deadlines import jobs_end_overdue
from scheduling.journal import journal
from scheduling.master.invariants import validate
from scheduling.master.loop import Master
from scheduling.models import Cell, Departure, Job, Task, Update
from tests.integration import world

pytestmark = pytest.mark.django_db(transaction=True)


def overdue(job: Job) -> None:
    """Change the rows as if the job had been submitted long before its deadline, which has now passed."""
    now = timezone.now()
    since, until = now - dt.timedelta(seconds=61), now - dt.timedelta(seconds=1)
    Job.objects.filter(pk=job.pk).update(created_at=since, deadline_at=until)


def submitted(cell, ann, name: str = "web", **changes) -> Job:
    return world.submit(ann, cell, world.a_file(name, deadline_s=60, **changes))


def update(who, job: Job, **changes) -> updates.JobChange:
    job = Job.objects.select_related("cell", "tenant").get(pk=job.pk)
    return updates.job_update(principal=who, job=job, job_spec=world.read(job.cell, world.a_file(**changes)))


def test_the_master_ends_the_tasks_of_an_overdue_job(cell, ann, machine) -> None:
    late, other = submitted(cell, ann), submitted(cell, ann, "other")
    world.place(late, machine, 0)
    assert late.deadline_at == late.created_at + dt.timedelta(seconds=60)
    overdue(late)
    Master(cell.id).tick()
    late.refresh_from_db()
    assert (late.state, late.outcome, late.ended_at is not None) == ("dead", "failed", True)
    assert set(Task.objects.filter(job=late).values_list("state", "outcome", "detail")) == {
        ("dead", "failed", "deadline: the job did not end within 60 s after its submission, its deadline_s")
    }
    assert set(Departure.objects.values_list("cause", flat=True)) == {"deadline"}
    assert Task.objects.filter(job=other, state="dead").count() == 0
    assert QuotaUse.objects.get().used[0] == 300  # only that of the other job
    assert validate(cell.id) == []


def test_each_task_ends_once(cell, ann, machine) -> None:
    job = submitted(cell, ann, tasks=5)
    world.place(job, machine, 0, 1)
    overdue(job)
    assert [jobs_end_overdue(cell.id, most=2) for _ in range(4)] == [2, 2, 1, 0]
    revision = Cell.objects.get(pk=cell.id).revision
    assert jobs_end_overdue(cell.id) == 0
    assert Cell.objects.get(pk=cell.id).revision == revision
    said = [record.event for record in journal.tail(cell.id, after=0)]
    assert sorted(event.index for event in said if isinstance(event, events.TaskEnded)) == [0, 1, 2, 3, 4]
    assert [event.how for event in said if isinstance(event, events.JobEnded)] == ["failed"]


def test_a_job_to_which_an_update_adds_tasks_ends_too(cell, ann) -> None:
    jobs = [submitted(cell, ann, name) for name in ("a", "b")]
    for job in jobs:
        Update.objects.create(job=job, from_version=1, to_version=1, actor="ann")
        overdue(job)
    assert jobs_end_overdue(cell.id) == 6
    assert set(Update.objects.values_list("state", "detail")) == {("superseded", "the deadline of the job has passed")}
    assert Job.objects.filter(state="dead").count() == 2


def test_without_an_overdue_job_one_query_is_made(cell, ann) -> None:
    submitted(cell, ann)
    with CaptureQueriesContext(connection) as made:
        assert jobs_end_overdue(cell.id) == 0
    assert len(made) == 1


def test_an_update_moves_the_deadline_of_a_running_job(cell, ann, machine) -> None:
    job = submitted(cell, ann)
    world.bring_up(job, machine)
    update(ann, job, deadline_s=600)
    job.refresh_from_db()
    assert job.deadline_at == job.created_at + dt.timedelta(seconds=600)
    assert Task.objects.filter(job=job, up=True, incarnation=1).count() == 3
    update(ann, job)
    job.refresh_from_db()
    assert job.deadline_at is None


def test_an_update_to_a_deadline_that_has_passed_is_rejected(cell, ann) -> None:
    job = submitted(cell, ann)
    Job.objects.filter(pk=job.pk).update(created_at=timezone.now() - dt.timedelta(seconds=40))
    with pytest.raises(Rejected) as refused:
        update(ann, job, deadline_s=30)
    assert refused.value.fields == {
        "deadline_s": "the deadline counts from the submission of the job, 40 s ago, so it has already passed; give a"
        " larger number, or kill the job"
    }
    job.refresh_from_db()
    assert job.spec_version == 1
