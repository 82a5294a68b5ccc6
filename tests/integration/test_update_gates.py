"""Tests of canary tasks, their promotion, and automatic rollback, on real PostgreSQL (§2.3)."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from quota.models import Quota
from scheduling.jobs import updates
from scheduling.jobs.actions.pause import update_pause, update_resume
from scheduling.jobs.update_gates import update_gates_check
from scheduling.master.invariants import validate
from scheduling.models import Job, JobSpec, Task, Update
from tests.integration import world

pytestmark = pytest.mark.django_db(transaction=True)
CANARY = {"canary": 1, "healthy_s": 60, "max_down": 3}


@pytest.fixture
def job(cell, ann, machine):
    """Return a job with three tasks that are up."""
    job = world.submit(ann, cell, world.a_file())
    world.bring_up(job, machine)
    return job


def update(who, job: Job, rules, *, command: str = "new", **changes) -> Update:
    job = Job.objects.select_related("cell", "tenant").get(pk=job.pk)
    file = world.with_task(command=[command], **changes) | {"update": rules}
    made = updates.job_update(principal=who, job=job, job_spec=world.read(job.cell, file)).update
    assert made is not None
    return made


def check(job: Job) -> bool:
    """Do what the master does once per second."""
    changed = update_gates_check(job.cell_id)
    updates.updates_advance(job.cell_id)
    return changed


def later(update: Update, **times: float) -> None:
    """Move times of the update into the past, by so many seconds."""
    update.refresh_from_db()
    for name, seconds in times.items():
        setattr(update, name, getattr(update, name) - dt.timedelta(seconds=seconds))
    update.save(update_fields=list(times))


def test_other_tasks_wait_until_the_canary_task_has_been_up_long_enough(cell, machine, ann, job) -> None:
    made = update(ann, job, CANARY)
    assert world.versions(job) == [2, 1, 1]
    assert not check(job), "the canary task is not up yet"
    world.bring_up(job, machine)
    assert check(job)
    assert not check(job)
    world.report(job, 0, up=False)
    assert check(job), "it went down, so the time begins again"
    made.refresh_from_db()
    assert made.canary_up_since is None
    world.report(job, 0)
    assert check(job)
    later(made, canary_up_since=59)
    assert not check(job)
    later(made, canary_up_since=2)
    assert check(job)
    assert world.versions(job) == [2, 2, 2]
    world.bring_up(job, machine)
    check(job)
    made.refresh_from_db()
    assert (made.state, made.canary) == (Update.DONE, 0)
    assert validate(cell.id) == []


def test_a_person_promotes_by_resuming(cell, machine, ann, job) -> None:
    made = update(ann, job, CANARY | {"promote": "manual", "deadline_s": 600})
    update_pause(principal=ann, job=job)
    update_resume(principal=ann, job=job)
    assert world.versions(job) == [2, 1, 1], "the canary task is not up yet"
    world.bring_up(job, machine)
    assert check(job)
    made.refresh_from_db()
    assert made.paused_at is not None
    later(made, paused_at=3600)
    before = made.deadline_at
    update_resume(principal=ann, job=job)
    made.refresh_from_db()
    assert (made.canary, made.paused_at) == (0, None)
    assert made.deadline_at - before >= dt.timedelta(seconds=3600), "the pause does not count"
    assert world.versions(job) == [2, 2, 2]


def test_a_failing_canary_task_returns_the_job_to_its_last_good_version(cell, machine, ann, job) -> None:
    made = update(ann, job, CANARY | {"rollback": True})
    world.bring_up(job, machine)
    check(job)
    world.report(job, 0, up=False, restarts=1)
    assert check(job)
    made.refresh_from_db()
    assert (made.state, made.detail) == (Update.ROLLED_BACK, "task 0 of version 2 crashes or fails its health checks")
    assert world.versions(job) == [3, 3, 3]
    assert list(Task.objects.filter(job=job).order_by("index").values_list("up", flat=True)) == [False, True, True]
    assert JobSpec.objects.get(job=job, version=3).digest == JobSpec.objects.get(job=job, version=1).digest
    world.bring_up(job, machine)
    assert not check(job)
    assert Update.objects.get(job=job, to_version=3).state == Update.DONE
    assert validate(cell.id) == []


def test_a_version_that_never_finished_is_not_a_good_one(machine, ann, job) -> None:
    update(ann, job, {"max_down": 1}, command="unfinished")
    update(ann, job, CANARY | {"rollback": True}, command="worse")
    world.place(job, machine, 0)
    world.report(job, 0, up=False, restarts=1)
    check(job)
    assert Update.objects.get(job=job, to_version=3).state == Update.ROLLED_BACK
    assert JobSpec.objects.get(job=job, version=4).digest == JobSpec.objects.get(job=job, version=1).digest


def test_tasks_after_the_canary_phase_roll_back_too(machine, ann, job) -> None:
    made = update(ann, job, {"rollback": True, "max_down": 1})
    world.bring_up(job, machine)
    updates.updates_advance(job.cell_id)
    world.bring_up(job, machine)
    world.report(job, 1, up=False, restarts=1)
    check(job)
    made.refresh_from_db()
    assert made.state == Update.ROLLED_BACK
    assert world.versions(job) == [3, 3, 3]


@pytest.mark.parametrize(("rollback", "state"), [(True, Update.ROLLED_BACK), (False, Update.STOPPED)])
def test_a_late_update_is_rolled_back_or_stops(ann, job, rollback: bool, state: str) -> None:
    made = update(ann, job, {"rollback": rollback, "deadline_s": 60})
    assert not check(job)
    later(made, deadline_at=61)
    assert check(job)
    made.refresh_from_db()
    assert (made.state, made.detail) == (state, "the update to version 2 was not done within its deadline_s")
    assert world.versions(job)[2] == (3 if rollback else 1)


def test_an_update_that_cannot_be_rolled_back_stops(machine, ann, tenant, job) -> None:
    made = update(ann, job, CANARY | {"rollback": True}, limit={"cpu": "10m", "ram": "64Mi", "disk": "64Mi"})
    Quota.objects.filter(tenant=tenant).delete()
    world.bring_up(job, machine)
    world.report(job, 0, up=False, restarts=1)
    assert check(job)
    made.refresh_from_db()
    assert made.state == Update.STOPPED
    assert "it was not rolled back" in made.detail
    assert not check(job)


def test_a_paused_update_is_left_alone(machine, ann, job) -> None:
    made = update(ann, job, {"rollback": True, "deadline_s": 60})
    world.bring_up(job, machine)
    world.report(job, 0, up=False, restarts=1)
    update_pause(principal=ann, job=job)
    later(made, deadline_at=61)
    assert not check(job)
    made.refresh_from_db()
    assert made.state == Update.OPEN


def test_an_update_that_restarts_no_task_has_no_gates(ann, job) -> None:
    file = world.a_file(labels={"tier": "1"}, update=CANARY | {"rollback": True, "deadline_s": 60})
    made = updates.job_update(principal=ann, job=job, job_spec=world.read(job.cell, file)).update
    assert (made.state, made.canary, made.rollback, made.deadline_at) == (Update.DONE, 0, False, None)


def test_one_query_serves_all_updates(cell, machine, ann, job) -> None:
    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert not update_gates_check(cell.id)
        return len(captured)

    update(ann, job, CANARY | {"rollback": True})
    one = queries()
    for number in range(4):
        other = world.submit(ann, cell, world.a_file(f"web-{number}"))
        world.bring_up(other, machine)
        file = world.with_task(f"web-{number}", command=["new"]) | {"update": CANARY}
        updates.job_update(principal=ann, job=other, job_spec=world.read(cell, file))
    assert queries() == one == 1
