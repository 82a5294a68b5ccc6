"""Tests of notices about jobs on real PostgreSQL: each is sent once, with the reason and a link."""

from __future__ import annotations

import datetime as dt
from importlib import import_module

import msgspec
import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from quota.models import Notice, Tenant
from quota.records import RecordEntry
from scheduling.celery_tasks import job_notices
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.reasons import Basis, ExpectedStart, ReasonCode, RuledOut, Why
from scheduling.core.vocabulary.states import Observation
from scheduling.core.vocabulary.task_events import Ending
from scheduling.jobs import updates
from scheduling.jobs.deadlines import jobs_end_overdue
from scheduling.jobs.notices.condition_notices import conditions_notify
from scheduling.jobs.notices.event_notices import events_notify
from scheduling.jobs.notices.reasons import limited_reasons
from scheduling.jobs.submit_and_kill import job_kill
from scheduling.jobs.update_gates import update_gates_check
from scheduling.journal import journal
from scheduling.journal.sql import execute
from scheduling.models import Cell, Job, JobAutoscaling, JobCondition, JobNoticeReader, PendingVerdict, Task
from scheduling.tasks import reported_states, transitions
from tests.integration import rows, world

pytestmark = pytest.mark.django_db
EXIT = {"cause": "exited", "status": 1, "signal": None, "at": 1.0, "detail": ""}


@pytest.fixture
def cell(db) -> Cell:
    """Return a new cell. It is not validated afterwards, because tasks and jobs get times that no event has."""
    return rows.a_cell()


@pytest.fixture
def job(cell, ann, machine) -> Job:
    return world.submit(ann, cell, world.a_file())


def submitted(cell: Cell, ann, number: int, **changes) -> list[Job]:
    """Submit jobs of one task without ports, whose names begin with their priority."""
    prefix = f"p{changes.get('priority', '')}"
    file = world.a_file(tasks=1, **changes)
    file["task"] = {**file["task"], "ports": []}
    return [world.submit(ann, cell, file | {"name": f"{prefix}-{n}"}) for n in range(number)]


def place(machine, *jobs: Job) -> None:
    with journal.write(machine.cell_id, rows.ME) as entry:
        transitions.tasks_place(entry, [Assignment(job.id, 0, machine.id) for job in jobs])


def crash(*jobs: Job, index: int = 0) -> None:
    with journal.write(jobs[0].cell_id, rows.ME) as entry:
        tasks = Task.objects.filter(job__in=jobs, index=index)
        reported_states.tasks_observe(
            entry, [Observation(task.id, task.incarnation, "backoff", "unknown", False, 4, EXIT) for task in tasks]
        )


def end(how: str, *jobs: Job, detail: str = "exited with status 1") -> None:
    """End all tasks of the jobs, the first one before the others."""
    for first in (True, False):
        with journal.write(jobs[0].cell_id, rows.ME) as entry:
            tasks = Task.objects.filter(job__in=jobs).exclude(state="dead").order_by("id")
            chosen = tasks.filter(index=0) if first else tasks
            endings = [Ending(task.id, how, detail=detail, exit=EXIT) for task in chosen]
            transitions.tasks_end(entry, endings)


def pending_for(job: Job, **how_long: float) -> None:
    Task.objects.filter(job=job).update(since=timezone.now() - dt.timedelta(**how_long))


def due_in(job: Job, left: dt.timedelta, whole: dt.timedelta) -> None:
    until = timezone.now() + left
    Job.objects.filter(pk=job.pk).update(created_at=until - whole, deadline_at=until)


def watch(*after_s: float) -> list[int]:
    """Look at the conditions this many seconds from now. Return the numbers of jobs in the notices."""
    now = timezone.now()
    return [conditions_notify(now=now + dt.timedelta(seconds=seconds)) for seconds in after_s]


def notices() -> list[tuple[str, str]]:
    return list(Notice.objects.order_by("id").values_list("kind", "subject"))


def newest() -> Notice:
    return Notice.objects.latest("id")


# --- conditions


def test_a_job_that_keeps_failing_is_reported_once_and_so_is_its_recovery(job, machine) -> None:
    world.place(job, machine, 0, 1, 2)
    crash(job)
    assert watch(0, 60, 150, 200) == [0, 0, 1, 0]
    assert notices() == [("job.failing", "Job web in cell cc is failing")]
    assert "1 of 3 tasks keeps crashing. Task 0 on m1: exit status 1, 4 restarts." in newest().text
    assert newest().url == "/jobs/cc/ubar/web/"
    world.report(job, 0)
    assert watch(260) == [0], "it is degraded, not healthy"
    world.report(job, 1, 2)
    assert watch(320) == [1]
    assert notices()[1:] == [("job.recovered", "Job web in cell cc is healthy again")]
    assert not JobCondition.objects.exists()


def test_nobody_hears_of_a_job_that_failed_for_a_moment_or_has_ended(job, machine, ann) -> None:
    world.place(job, machine, 0, 1, 2)
    crash(job)
    watch(0)
    world.report(job, 0, 1, 2)
    watch(150)
    crash(job)
    watch(200)
    job_kill(principal=ann, job=Job.objects.select_related("cell", "tenant").get(pk=job.pk))
    watch(900)
    assert (notices(), JobCondition.objects.count()) == ([], 0)


def test_tasks_that_crash_while_others_are_up_are_reported_after_ten_minutes(job, machine) -> None:
    world.place(job, machine, 0, 1, 2)
    world.report(job, 0, 1)
    crash(job, index=2)
    assert watch(0, 590, 610, 900) == [0, 0, 1, 0]
    assert notices() == [("job.crash-looping", "Tasks of job web in cell cc keep crashing")]
    assert "Task 2 on m1: exit status 1, 4 restarts." in newest().text
    world.report(job, 2)
    assert watch(1000, 1100) == [1, 0]
    assert notices()[1:] == [("job.recovered", "Job web in cell cc is healthy again")]


def test_a_pending_task_is_reported_with_its_verdict_and_its_expected_start(job, machine) -> None:
    reason = RuledOut(ReasonCode.RESOURCE, "cpu", 4, wanted=100, largest=50)
    expected = ExpectedStart(Basis.ENDS, 300.0, 600.0, ends=2, window_s=3600.0)
    why = Why(tasks=((job.id, 3),), machines=4, ruled_out=(reason,), code="resource", expected=expected)
    PendingVerdict.objects.create(job=job, revision=1, at=timezone.now(), whys=msgspec.to_builtins([why]))
    pending_for(job, minutes=14)
    assert watch(0) == [0]
    pending_for(job, minutes=16)
    assert watch(0, 30) == [1, 0]
    assert notices() == [("job.pending", "Tasks of job web in cell cc have been pending for too long")]
    assert "3 tasks can't be placed on any of 4 machines: 4 machines with less than" in newest().text
    assert "The next task is likely to start in 5 min to 10 min" in newest().text
    world.place(job, machine, 0, 1)
    pending_for(job, minutes=1)
    assert watch(0) == [0]
    assert JobCondition.objects.exists(), "a task is still pending"
    world.place(job, machine, 2)
    watch(0)
    assert not JobCondition.objects.exists()
    assert len(notices()) == 1


def test_how_long_tasks_may_be_pending_depends_on_the_band(cell, ann) -> None:
    (batch,), (free,) = submitted(cell, ann, 1, priority=110), submitted(cell, ann, 1, priority=0)
    (later,) = submitted(cell, ann, 1)
    Job.objects.filter(pk=later.pk).update(start_after=timezone.now() + dt.timedelta(hours=1))
    for one in (free, later):
        pending_for(one, days=2)
    pending_for(batch, minutes=50)
    assert watch(0) == [0]
    pending_for(batch, minutes=61)
    assert watch(0) == [1]
    assert newest().data["jobs"] == [batch.name]
    assert "1 task waits for a pass of the scheduler." in newest().text


def test_a_deadline_is_at_risk_in_its_last_tenth_or_its_last_ten_minutes(job) -> None:
    hour, day = dt.timedelta(hours=1), dt.timedelta(days=1)
    for left, whole in ((hour / 5, hour), (day / 9, day), (dt.timedelta(minutes=4), dt.timedelta(minutes=7))):
        due_in(job, left, whole)
        assert watch(0) == [0]
    due_in(job, hour / 7, hour)
    assert watch(0, 30) == [1, 0]
    assert notices() == [("job.deadline-at-risk", "The deadline of job web in cell cc is near")]
    assert "in about 9 min. 3 of 3 tasks have not ended (pending: 3)." in newest().text
    due_in(job, day, 2 * day)  # an update has moved the deadline
    assert watch(0) == [0]
    due_in(job, day / 11, day)
    assert watch(0) == [1]


def test_conditions_of_a_killed_process_are_reported_later_and_once(job, monkeypatch) -> None:
    pending_for(job, minutes=16)
    fail_when_notices_are_written(monkeypatch)
    with pytest.raises(RuntimeError):
        watch(0)
    assert (notices(), JobCondition.objects.count()) == ([], 0)
    monkeypatch.undo()
    assert watch(0, 30) == [1, 0]


# --- events of the journal


def test_a_failed_job_is_reported_once_with_its_first_failed_task(job, cell, ann) -> None:
    killed, finished = submitted(cell, ann, 2)
    end("failed", job)
    end("finished", finished)
    end("killed", killed)
    assert [events_notify(cell) for _ in range(3)] == [1, 0, 0]
    assert notices() == [("job.failed", "Job web in cell cc has failed")]
    text = "3 of 3 tasks failed. The first was task 0: exited with status 1."
    assert newest().text.startswith(text)
    assert newest().data == {"cell": "cc", "jobs": ["web"], "reasons": {"web": text}}
    assert (newest().url, newest().level) == ("/jobs/cc/ubar/web/", "warning")


def test_a_job_that_missed_its_deadline_has_failed(job, cell) -> None:
    due_in(job, dt.timedelta(seconds=-1), dt.timedelta(minutes=1))
    assert watch(0) == [0], "the deadline has passed, so it is no longer at risk"
    jobs_end_overdue(cell.id)
    assert events_notify(cell) == 1
    assert "The first was task 0: deadline: the job did not end within 60 s" in newest().text


def test_an_update_that_stops_by_itself_is_reported_once(job, cell, machine, ann) -> None:
    world.bring_up(job, machine)
    job = Job.objects.select_related("cell", "tenant").get(pk=job.pk)
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, world.with_task(command=["broken"])))
    assert events_notify(cell) == 0
    world.place(job, machine, 0)
    world.report(job, 0, up=False, restarts=3)
    updates.updates_advance(cell.id)
    assert [events_notify(cell), events_notify(cell)] == [1, 0]
    assert notices() == [("job.update-stopped", "The update of job web in cell cc has stopped")]
    assert newest().text.startswith("The update to version 2 stopped: 1 tasks of version 2 crash again and again")
    assert "`borgctl undo web`" in newest().text


def test_a_rollback_is_reported_once(job, cell, machine, ann) -> None:
    world.bring_up(job, machine)
    job = Job.objects.select_related("cell", "tenant").get(pk=job.pk)
    file = world.with_task(command=["broken"]) | {"update": {"rollback": True}}
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, file))
    world.place(job, machine, 0)
    world.report(job, 0, up=False, restarts=1)
    update_gates_check(cell.id)
    assert [events_notify(cell), events_notify(cell)] == [1, 0]
    assert notices() == [("job.rolled-back", "The update of job web in cell cc was rolled back")]
    assert newest().text.startswith("The update to version 2 was rolled back: task 0 of version 2 crashes or fails")
    assert "undo" not in newest().text


def test_jobs_that_fail_together_are_one_notice_per_tenant(cell, ann) -> None:
    jobs = submitted(cell, ann, 12)
    other = rows.a_job(cell, rows.a_tenant("foo"))
    end("failed", other, *jobs)
    assert events_notify(cell) == 13
    assert {subject for _, subject in notices()} == {"12 jobs in cell cc have failed", "Job jfoo in cell cc has failed"}
    notice = Notice.objects.get(tenant=Tenant.objects.get(name="ubar"))
    assert (len(notice.data["jobs"]), len(notice.data["reasons"])) == (12, 10)
    assert "and 2 more" in notice.text
    assert notice.url == "/jobs/?tenant=ubar&cell=cc&state=dead"


def test_a_part_of_the_journal_is_read_at_once(job, cell) -> None:
    end("failed", job)
    assert events_notify(cell, at_once=1) == 1
    assert JobNoticeReader.objects.get().revision == journal.newest(cell.id)


def test_events_of_a_killed_process_are_reported_later_and_once(job, cell, monkeypatch) -> None:
    end("failed", job)
    fail_when_notices_are_written(monkeypatch)
    with pytest.raises(RuntimeError):
        events_notify(cell)
    assert (notices(), JobNoticeReader.objects.get().revision) == ([], 0)
    monkeypatch.undo()
    assert [events_notify(cell), events_notify(cell)] == [1, 0]


def fail_when_notices_are_written(monkeypatch) -> None:
    def fails(entry: RecordEntry) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr(RecordEntry, "_flush", fails)


def test_a_failed_task_without_a_detail_does_not_stop_the_notices(job, cell) -> None:
    end("failed", job, detail="")
    assert events_notify(cell) == 1
    assert "The first was task 0: no reason is recorded." in newest().text


def test_an_error_in_the_conditions_does_not_stop_the_events(job, cell, ann) -> None:
    (failed,) = submitted(cell, ann, 1)
    end("failed", failed)
    PendingVerdict.objects.create(job=job, revision=1, at=timezone.now(), whys=[{"of": "another release"}])
    pending_for(job, minutes=16)
    job_notices()
    assert [kind for kind, _ in notices()] == ["job.failed"]


# --- cells


def test_nobody_is_notified_about_a_study_cell(job, cell, ann) -> None:
    (failed,) = submitted(cell, ann, 1)
    end("failed", failed)
    pending_for(job, days=1)
    due_in(job, dt.timedelta(minutes=5), dt.timedelta(hours=1))
    Cell.objects.filter(pk=cell.pk).update(study_of={"cell": "x"})
    job_notices()
    assert notices() == []
    Cell.objects.filter(pk=cell.pk).update(study_of=None)
    job_notices()
    assert sorted(kind for kind, _ in notices()) == ["job.deadline-at-risk", "job.failed", "job.pending"]


def test_an_upgrade_notifies_nobody_of_what_happened_before(job, cell, ann, machine) -> None:
    migration = import_module("scheduling.migrations.0048_notices_about_jobs")
    before, after = submitted(cell, ann, 2)
    end("failed", before)
    world.place(job, machine, 0, 1, 2)
    crash(job)
    long_ago = timezone.now() - dt.timedelta(hours=1)
    execute("INSERT INTO scheduling_failingjob VALUES (%s, %s, %s)", [job.id, long_ago, long_ago])
    execute(migration.COPY)
    execute(migration.BEGIN)
    job_notices()
    assert notices() == []
    world.report(job, 0, 1, 2)
    end("failed", after)
    job_notices()
    assert sorted(kind for kind, _ in notices()) == ["job.failed", "job.recovered"]


def test_many_jobs_take_as_many_queries_as_one(cell, ann, machine) -> None:
    def queries(number: int, priority: int) -> int:
        """Return how many queries the notices about `number` jobs of each kind take."""
        waiting, crashing = (
            submitted(cell, ann, number, priority=priority),
            submitted(cell, ann, number, priority=priority + 1),
        )
        failed = submitted(cell, ann, number, priority=priority + 2)
        place(machine, *crashing)
        crash(*crashing)
        end("failed", *failed)
        now = timezone.now()
        conditions_notify(now=now)
        Task.objects.filter(job__in=waiting).update(since=now - dt.timedelta(hours=2))
        until = now + dt.timedelta(minutes=9)
        Job.objects.filter(pk__in=[job.pk for job in waiting]).update(
            created_at=until - dt.timedelta(hours=1), deadline_at=until
        )
        Notice.objects.all().delete()
        with CaptureQueriesContext(connection) as captured:
            assert events_notify(cell) == number
            assert conditions_notify(now=now + dt.timedelta(seconds=150)) == 3 * number
        assert Notice.objects.count() == 4
        return len(captured)

    queries(1, 200)
    assert queries(1, 210) == queries(20, 220)


def test_a_recommendation_of_the_autoscaler_is_a_notice_after_six_hours(job) -> None:
    row = JobAutoscaling.objects.create(
        job=job, version=1, vertical="recommend", tasks=3, cpu=1000, ram=2**30, wanted_cpu=250, wanted_ram=2**27
    )
    row.wanted_since = timezone.now() - dt.timedelta(hours=5)
    row.save()
    assert watch(0) == [0]
    JobAutoscaling.objects.update(wanted_since=timezone.now() - dt.timedelta(hours=7))
    JobCondition.objects.update(since=timezone.now() - dt.timedelta(hours=7))
    assert watch(0, 30) == [1, 0]
    assert notices() == [("job.recommendation", "The tasks of job web in cell cc could have other limits")]
    assert "A task needs 0.25 cores of CPU instead of 1 core and 128 MiB of RAM instead of 1 GiB." in newest().text
    JobAutoscaling.objects.update(vertical="auto")
    assert watch(0) == [0]
    assert not JobCondition.objects.exists(), "the autoscaler sets it by itself now"


def test_a_rejected_change_by_the_autoscaler_is_a_notice_at_once(job) -> None:
    JobAutoscaling.objects.create(
        job=job,
        version=1,
        horizontal="auto",
        tasks_limited_code="quota-exceeded",
        tasks_limited_detail="The quota is too small.",
        tasks_limited_since=timezone.now(),
    )
    assert watch(0) == [1]
    assert notices() == [("job.scaling-limited", "The autoscaler cannot change job web in cell cc")]
    assert "The change was rejected: The quota is too small." in newest().text
    JobAutoscaling.objects.update(limited_detail="No machine is so large.", limited_since=timezone.now())
    assert watch(0) == [0], "it is the same condition"
    text = "The change was rejected: The quota is too small. The change was rejected: No machine is so large."
    assert limited_reasons([job]) == {job.id: text}
