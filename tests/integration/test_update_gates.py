"""Tests of canary tasks, their promotion, and automatic rollback, on real PostgreSQL (§2.3)."""

from __future__ import annotations

import datetime as dt
import time

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from quota.models import Quota
from quota.vocabulary.errors import Conflict
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.task_events import Ending, Eviction
from scheduling.jobs import updates
from scheduling.jobs.actions.pause import update_pause, update_resume
from scheduling.jobs.actions.scale import job_scale
from scheduling.jobs.update_gates import update_gates_check
from scheduling.journal import journal
from scheduling.models import Job, JobSpec, Task, Update
from scheduling.tasks import transitions
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)
CANARY = {"canary": 1, "healthy_s": 60, "max_down": 3}


@pytest.fixture
def job(cell, ann, machine):
    """Return a job with three tasks that are up."""
    job = world.submit(ann, cell, world.a_file())
    world.bring_up(job, machine)
    return job


def update(who, job: Job, rules, *, command: str = "new", labels: dict[str, str] | None = None, **changes) -> Update:
    job = Job.objects.select_related("cell", "tenant").get(pk=job.pk)
    file = world.with_task(command=[command], **changes) | {"update": rules, "labels": labels or {}}
    made = updates.job_update(principal=who, job=job, job_spec=world.read(job.cell, file)).update
    assert made is not None
    return made


def check(job: Job) -> bool:
    """Do what the master does once per second."""
    changed = update_gates_check(job.cell_id)
    updates.updates_advance(job.cell_id)
    return changed


def later(row: Update | Task, **times: float) -> None:
    """Move times of a row into the past, by this many seconds."""
    row.refresh_from_db()
    for name, seconds in times.items():
        setattr(row, name, getattr(row, name) - dt.timedelta(seconds=seconds))
    row.save(update_fields=list(times))


def state(update: Update) -> tuple[str, int]:
    update.refresh_from_db()
    return update.state, update.canary


def test_other_tasks_wait_until_the_canary_task_has_been_up_long_enough(cell, machine, ann, job) -> None:
    made = update(ann, job, CANARY)
    assert world.versions(job) == [2, 1, 1]
    assert not check(job), "the canary task is not up yet"
    world.bring_up(job, machine)
    canary = Task.objects.get(job=job, index=0)
    later(canary, since=59)
    assert not check(job)
    world.report(job, 0, up=False)
    world.report(job, 0)
    later(canary, since=2)
    assert not check(job), "it was down, so the time began again"
    later(canary, since=59)
    assert check(job)
    assert world.versions(job) == [2, 2, 2]
    world.bring_up(job, machine)
    check(job)
    assert state(made) == (Update.DONE, 0)
    assert "update.promoted" in [record.event.__struct_config__.tag for record in journal.tail(cell.id, after=0)]


def test_a_job_of_one_task_has_a_canary_phase_too(cell, machine, ann) -> None:
    job = world.submit(ann, cell, world.a_file(tasks=1))
    world.bring_up(job, machine)
    made = update(ann, job, CANARY, tasks=1)
    world.bring_up(job, machine)
    check(job)
    assert state(made) == (Update.OPEN, 1)
    later(Task.objects.get(job=job), since=61)
    check(job)
    assert state(made) == (Update.DONE, 0)


def test_a_person_promotes_by_resuming(cell, machine, ann, job) -> None:
    made = update(ann, job, CANARY | {"promote": "manual", "healthy_s": 0, "deadline_s": 600})
    update_pause(principal=ann, job=job)
    update_resume(principal=ann, job=job)
    assert world.versions(job) == [2, 1, 1], "the canary task is not up yet"
    world.bring_up(job, machine)
    assert check(job)
    later(made, paused_at=3600)
    before = made.deadline_at
    update_resume(principal=ann, job=job)
    assert state(made) == (Update.OPEN, 0)
    assert made.deadline_at - before >= dt.timedelta(seconds=3600), "the pause does not count"
    assert world.versions(job) == [2, 2, 2]


def test_a_change_during_the_canary_phase_is_tried_too(machine, ann, job) -> None:
    update(ann, job, CANARY)
    world.bring_up(job, machine)
    made = update(ann, job, CANARY, labels={"tier": "1"})
    assert world.versions(job) == [3, 1, 1]
    assert made.canary == 1
    with pytest.raises(Conflict, match="tries canary tasks"):
        job_scale(principal=ann, job=Job.objects.get(pk=job.pk), tasks=5)


def test_tasks_that_shall_end_do_so_before_the_promotion(machine, ann, job) -> None:
    update(ann, job, CANARY, tasks=2)
    assert Task.objects.filter(job=job, state="dead").count() == 1, "they have no quota any more"


def test_old_tasks_that_are_down_do_not_hold_the_canary_task_back(machine, ann, job) -> None:
    world.report(job, 1, 2, up=False)
    update(ann, job, CANARY | {"max_down": 1})
    assert world.versions(job) == [2, 1, 1]


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
    check(job)
    assert Update.objects.get(job=job, to_version=3).state == Update.DONE


def test_the_master_may_advance_an_update_before_it_looks_at_its_gates(machine, ann, job) -> None:
    """The rule that stops hopeless updates must not come first, and failed tasks do not count as done."""
    made = update(ann, job, {"rollback": True, "max_down": 1, "healthy_s": 0})
    world.place(job, machine, 0)
    with journal.write(job.cell_id, rows.ME) as entry:
        transitions.tasks_end(entry, [Ending(task_id(job.id, 0), "failed", detail="exit status 1")])
    updates.updates_advance(job.cell_id)
    assert state(made)[0] == Update.OPEN
    assert check(job)
    assert state(made)[0] == Update.ROLLED_BACK


@pytest.mark.parametrize(
    ("exit_", "rolls_back"),
    [
        ({"cause": "exited", "status": 1}, True),
        ({"cause": "unhealthy", "signal": 9}, True),
        ({"cause": "machine-restarted"}, False),
        ({"cause": "machine-short", "signal": 9}, False),
        ({"cause": "exited", "status": 0}, False),
        ({"cause": "unhealthy", "status": 0}, True),
    ],
)
def test_a_task_that_is_not_to_blame_does_not_roll_back(machine, ann, job, exit_, rolls_back: bool) -> None:
    made = update(ann, job, CANARY | {"rollback": True})
    world.place(job, machine, 0)
    world.report(job, 0, up=False, restarts=1)
    Task.objects.filter(job=job, index=0).update(exit=exit_ | {"at": time.time()})
    assert check(job) is rolls_back
    assert (state(made)[0] == Update.ROLLED_BACK) is rolls_back


def test_a_crash_of_the_old_version_does_not_roll_back(machine, ann, job) -> None:
    """The new version never ran, so it cannot be the reason."""
    made = update(ann, job, {"rollback": True, "max_down": 1})
    with journal.write(job.cell_id, rows.ME) as entry:
        crash = {"cause": "exited", "status": 1, "at": time.time() + 5}
        transitions.tasks_evict(entry, [Eviction(task_id(job.id, 2), 1, "failure", exit=crash)])
    updates.updates_advance(job.cell_id)
    assert Task.objects.get(job=job, index=2).spec_version == 2
    assert not check(job)
    assert state(made)[0] == Update.OPEN


def test_an_update_is_done_only_when_all_tasks_have_been_up_long_enough(machine, ann, job) -> None:
    made = update(ann, job, {"rollback": True, "max_down": 3, "healthy_s": 60})
    world.bring_up(job, machine)
    assert not check(job)
    assert state(made)[0] == Update.OPEN
    for task in Task.objects.filter(job=job):
        later(task, since=61)
    assert check(job)
    assert state(made)[0] == Update.DONE


def test_an_undo_after_a_rollback_tries_the_version_again_on_a_canary_task(machine, ann, job) -> None:
    update(ann, job, CANARY | {"rollback": True})
    world.place(job, machine, 0)
    world.report(job, 0, up=False, restarts=1)
    check(job)
    world.bring_up(job, machine)
    check(job)
    again = updates.job_undo(principal=ann, job=Job.objects.get(pk=job.pk)).update
    assert (again.canary, again.rollback) == (1, True)


def test_a_demoted_job_is_rolled_back_at_the_free_priority(machine, ann, job) -> None:
    update(ann, job, CANARY | {"rollback": True})
    demoted = Job.objects.get(pk=job.pk)
    free = msgspec.structs.replace(updates.spec_of(demoted), priority=0)
    updates.job_update(principal=rows.ME, job=demoted, job_spec=free, continues=True)
    world.place(job, machine, 0)
    world.report(job, 0, up=False, restarts=1)
    check(job)
    assert Job.objects.get(pk=job.pk).priority == 0
    assert Update.objects.filter(job=job, state=Update.ROLLED_BACK).exists()


def test_a_rollback_to_the_same_spec_stops(machine, ann, job) -> None:
    update(ann, job, {"max_down": 1}, command="unfinished")
    current = Job.objects.select_related("cell", "tenant").get(pk=job.pk)
    first = updates.spec_of(current, 1)
    made = updates.job_update(principal=ann, job=current, job_spec=first).update
    Update.objects.filter(pk=made.pk).update(rollback=True, state=Update.OPEN)
    world.report(job, 1, up=False, restarts=1)
    Task.objects.filter(job=job).update(spec_version=3)
    check(job)
    assert state(made)[0] == Update.STOPPED
    assert not check(job)


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
    assert state(made)[0] == Update.ROLLED_BACK
    assert world.versions(job) == [2, 3, 3], "task 0 is up, and only one task may be down"
    world.bring_up(job, machine)
    check(job)
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
        world.bring_up(other, rows.a_machine(cell, f"m-{number}"))
        file = world.with_task(f"web-{number}", command=["new"]) | {"update": CANARY}
        updates.job_update(principal=ann, job=other, job_spec=world.read(cell, file))
    assert queries() == one == 1
