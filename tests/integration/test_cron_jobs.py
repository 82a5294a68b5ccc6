"""Tests of cron jobs: due runs are submitted exactly once, through the ordinary path of submissions."""

from __future__ import annotations

import datetime as dt
import signal
import sys
import threading
import time

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from quota.models import Membership, Quota
from quota.vocabulary.errors import Conflict, Rejected
from quota.vocabulary.permissions import Role
from scheduling.cron import cron_jobs, due_runs
from scheduling.journal import journal
from scheduling.models import Cell, CronJob, CronRun, Job
from tests.integration import cron_rows, forks, master_processes, world

pytestmark = pytest.mark.django_db(transaction=True)

RARE = "0 0 1 1 *"  # no other run becomes due during a test


def submit_in_process(cell: Cell, *, until: str = "") -> forks.Fork:
    """Start a process that submits the due runs, and kills itself with SIGKILL at the step `until`."""
    command = [sys.executable, "-m", "tests.integration.killed_submission", str(cell.pk), until]
    return forks.fork(command, env=master_processes.environment(), output=sys.__stderr__.fileno())


def test_a_due_run_is_an_ordinary_job(cell, ann) -> None:
    row = cron_rows.apply(ann, cell, schedule=RARE, job={"priority": "production", "labels": {"app": "report"}})
    assert due_runs.runs_submit_due(cell.pk).handled == 0  # it is due on 1 January
    at = cron_rows.due(row)
    assert due_runs.runs_submit_due(cell.pk).handled == 1
    (job,) = cron_rows.jobs_of(row)
    assert job.name == f"nightly-{at.astimezone(dt.UTC):%Y%m%dt%H%Mz}"
    assert (job.submitted_by, job.labels, job.tasks_total) == ("ann", {"app": "report", "cron": "nightly"}, 3)
    run = CronRun.objects.get(cron_job=row)
    assert (run.due_at, run.outcome, run.job_name, run.job_uid) == (at, "submitted", job.name, job.uid)
    row.refresh_from_db()
    assert row.next_at > timezone.now()
    (record,) = [r for r in journal.tail(cell.pk, after=0) if type(r.event).__name__ == "JobSubmitted"]
    assert (record.actor, record.request_id, record.event.job_id) == ("ann", "cron", job.pk)
    assert due_runs.runs_submit_due(cell.pk).handled == 0


@pytest.mark.parametrize("step", ["read", "prepared", "before-commit"])
def test_a_kill_before_the_commit_loses_no_run(cell, ann, step) -> None:
    row = cron_rows.apply(ann, cell, schedule=RARE)
    cron_rows.due(row)
    assert submit_in_process(cell, until=step).wait() == -signal.SIGKILL
    assert (cron_rows.runs(row), cron_rows.jobs_of(row)) == ([], [])
    assert submit_in_process(cell).wait() == 0
    assert (cron_rows.runs(row), len(cron_rows.jobs_of(row))) == ([("submitted", "")], 1)


def test_a_kill_after_the_commit_submits_no_run_twice(cell, ann) -> None:
    row = cron_rows.apply(ann, cell, schedule=RARE)
    cron_rows.due(row)
    assert submit_in_process(cell, until="after-commit").wait() == -signal.SIGKILL
    assert submit_in_process(cell).wait() == 0
    assert (cron_rows.runs(row), len(cron_rows.jobs_of(row))) == ([("submitted", "")], 1)


def test_two_workers_at_once_submit_each_run_once(cell, ann) -> None:
    made = [cron_rows.apply(ann, cell, f"each-{n}", schedule=RARE, job={"tasks": 1}) for n in range(40)]
    for row in made:
        cron_rows.due(row)

    def work() -> None:
        try:
            while (turn := due_runs.runs_submit_due(cell.pk, at_once=3)).handled or turn.busy:
                pass
        finally:
            connection.close()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [cron_rows.runs(row) for row in made] == [[("submitted", "")]] * 40
    assert Job.objects.count() == 40


def test_many_runs_need_as_many_queries_as_one(cell, ann) -> None:
    numbers = []
    for count in (1, 12):
        for n in range(count):
            cron_rows.due(
                cron_rows.apply(ann, cell, f"many-{count}-{n}", overlap="forbid", schedule=RARE, job={"tasks": 1})
            )
        with CaptureQueriesContext(connection) as captured:
            assert due_runs.runs_submit_due(cell.pk).handled == count
        numbers.append(len(captured))
    assert numbers[1] <= numbers[0] + 1, numbers  # the rare cut of a history


def test_one_rejected_run_blocks_no_other(cell, ann, tenant) -> None:
    good = cron_rows.apply(ann, cell, "good", schedule=RARE)
    large = cron_rows.apply(ann, cell, "large", schedule=RARE, job={"priority": "production", "tasks": 10_000})
    for row in (large, good):
        cron_rows.due(row)
    for _ in range(2):
        due_runs.runs_submit_due(cell.pk)
    assert cron_rows.runs(good) == [("submitted", "")]
    assert cron_rows.runs(large) == [("rejected", "quota-exceeded")]
    run = CronRun.objects.get(cron_job=large)
    assert "too little production quota" in run.detail
    assert run.job_name == ""
    large.refresh_from_db()
    assert large.next_at > timezone.now()


def test_a_run_without_quota_any_more_is_rejected(cell, ann, tenant) -> None:
    row = cron_rows.apply(ann, cell, job={"priority": "production"})
    Quota.objects.all().delete()
    cron_rows.due(row)
    due_runs.runs_submit_due(cell.pk)
    assert cron_rows.runs(row) == [("rejected", "quota-exceeded")]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda ann: Membership.objects.update(role=Role.VIEWER), "forbidden"),
        (lambda ann: Membership.objects.all().delete(), "not-found"),
        (lambda ann: CronJob.objects.update(owner=None), "no-owner"),
        (lambda ann: world.a_user("ann").__class__.objects.update(is_active=False), "no-owner"),
    ],
)
def test_runs_have_the_present_permissions_of_the_owner(cell, ann, change, code) -> None:
    row = cron_rows.apply(ann, cell)
    change(ann)
    cron_rows.due(row)
    due_runs.runs_submit_due(cell.pk)
    assert cron_rows.runs(row) == [("rejected", code)]
    assert cron_rows.jobs_of(row) == []


def test_overlap_forbid_skips_a_run_while_one_is_live(cell, ann, machine) -> None:
    row = cron_rows.apply(ann, cell, overlap="forbid", schedule=RARE)
    cron_rows.due(row, ago_s=50)
    due_runs.runs_submit_due(cell.pk)
    cron_rows.due(row, ago_s=1)
    due_runs.runs_submit_due(cell.pk)
    assert cron_rows.runs(row) == [("submitted", ""), ("skipped", "cron-overlap")]
    assert len(cron_rows.jobs_of(row)) == 1


def test_overlap_replace_kills_the_live_run(cell, ann, machine) -> None:
    row = cron_rows.apply(ann, cell, overlap="replace", schedule=RARE)
    cron_rows.due(row, ago_s=70)
    due_runs.runs_submit_due(cell.pk)
    (first,) = cron_rows.jobs_of(row)
    world.bring_up(first, machine)
    cron_rows.due(row, ago_s=1)
    due_runs.runs_submit_due(cell.pk)
    first, second = cron_rows.jobs_of(row)
    assert (first.outcome, second.state) == ("killed", "pending")
    assert f"replaced by run {second.name}" in set(first.tasks.values_list("detail", flat=True))


def test_a_large_run_is_replaced_in_several_transactions(cell, ann, monkeypatch) -> None:
    row = cron_rows.apply(ann, cell, overlap="replace", schedule=RARE, job={"tasks": 5})
    cron_rows.due(row, ago_s=70)
    due_runs.runs_submit_due(cell.pk)
    cron_rows.due(row, ago_s=1)
    monkeypatch.setattr(journal, "CHUNK", 3)
    due_runs.runs_submit_due(cell.pk)
    assert len(cron_rows.jobs_of(row)) == 1  # two of its tasks are live
    due_runs.runs_submit_due(cell.pk)
    assert [job.outcome for job in cron_rows.jobs_of(row)] == ["killed", ""]


def test_overlap_allow_runs_both(cell, ann) -> None:
    row = cron_rows.apply(ann, cell)
    for ago_s in (70, 1):
        cron_rows.due(row, ago_s=ago_s)
        due_runs.runs_submit_due(cell.pk)
    assert [job.state for job in cron_rows.jobs_of(row)] == ["pending", "pending"]


def test_runs_in_the_catch_up_window_are_caught_up_and_earlier_ones_are_missed(cell, ann) -> None:
    row = cron_rows.apply(ann, cell, catch_up_s=180)
    first = cron_rows.due(row, ago_s=3600)
    while due_runs.runs_submit_due(cell.pk).handled:
        pass
    run, *later = CronRun.objects.filter(cron_job=row).order_by("due_at")
    assert (run.outcome, run.due_at) == ("missed", first)
    assert [r.outcome for r in later] == ["submitted"] * 3  # one per minute of the window
    assert [r.due_at.second for r in later] == [0, 0, 0]


def test_a_clock_that_jumps_back_submits_no_run_twice(cell, ann) -> None:
    row = cron_rows.apply(ann, cell, schedule=RARE)
    at = cron_rows.due(row)
    due_runs.runs_submit_due(cell.pk)
    CronJob.objects.filter(pk=row.pk).update(next_at=at)  # as if the clock showed the same moment again
    assert due_runs.runs_submit_due(cell.pk).handled == 1
    assert cron_rows.runs(row) == [("submitted", "")]
    row.refresh_from_db()
    assert row.next_at > timezone.now()
    assert len(cron_rows.jobs_of(row)) == 1
    CronJob.objects.filter(pk=row.pk).update(next_at=timezone.now() + dt.timedelta(hours=2))
    assert due_runs.runs_submit_due(cell.pk).handled == 0


def test_a_suspended_cron_job_has_no_runs_and_catches_none_up(cell, ann) -> None:
    row = cron_rows.apply(ann, cell)
    cron_rows.due(row)
    cron_jobs.cron_suspend(principal=ann, cron_job=row)
    assert due_runs.runs_submit_due(cell.pk).handled == 0
    assert due_runs.runs_submit_due(cell.pk).wait_s is None
    again = cron_jobs.cron_resume(principal=ann, cron_job=row)
    assert again.suspended_at is None
    assert again.next_at > timezone.now()
    assert cron_rows.runs(row) == [("missed", "cron-changed")]


def test_a_run_by_hand_starts_at_once(cell, ann) -> None:
    row = cron_rows.apply(ann, cell, schedule="0 0 1 1 *", overlap="forbid")
    cron_jobs.cron_suspend(principal=ann, cron_job=row)
    result = cron_jobs.cron_run_now(principal=ann, cron_job=row)
    assert result.job is not None
    assert cron_rows.runs(row) == [("submitted", "")]
    assert CronRun.objects.get(cron_job=row).by == "ann"
    time.sleep(1.0)  # a run by hand has a name with seconds
    with pytest.raises(Conflict, match="still live"):
        cron_jobs.cron_run_now(principal=ann, cron_job=row)
    viewer = world.principal("vic", tenant=row.tenant, role=Role.VIEWER)
    with pytest.raises(Rejected, match="may not change jobs"):
        cron_jobs.cron_run_now(principal=viewer, cron_job=row)


def test_the_history_is_cut(cell, ann, monkeypatch) -> None:
    row = cron_rows.apply(ann, cell, keep_runs=2, overlap="forbid", schedule=RARE)
    monkeypatch.setattr("scheduling.cron.run_history._CUT_EVERY", 1)
    for ago_s in (50, 40, 30, 20):
        cron_rows.due(row, ago_s=ago_s)
        due_runs.runs_submit_due(cell.pk)
    assert len(cron_rows.runs(row)) == 2


def test_apply_is_idempotent_and_keeps_a_suspension(cell, ann) -> None:
    row = cron_rows.apply(ann, cell)
    spec = cron_jobs.cron_spec_for(principal=ann, cell=cell, file=cron_rows.a_cron_file())
    assert cron_jobs.cron_apply(principal=ann, cell=cell, spec=spec).outcome == "unchanged"
    cron_jobs.cron_suspend(principal=ann, cron_job=row)
    changed = cron_rows.apply(ann, cell, schedule="5 4 * * *")
    assert (changed.pk, changed.version, changed.next_at) == (row.pk, 3, None)
    with pytest.raises(Rejected, match="look at the plan again"):
        cron_jobs.cron_apply(principal=ann, cell=cell, spec=spec, if_revision=cron_jobs.revision_of(row))
    bob = world.principal("bob", tenant=row.tenant)
    assert cron_rows.apply(bob, cell, schedule="6 4 * * *").owner_name == "bob"


def test_a_change_between_reading_and_locking_is_respected(cell, ann) -> None:
    row = cron_rows.apply(ann, cell)
    cron_rows.due(row)

    def change() -> None:
        try:
            cron_jobs.cron_suspend(principal=ann, cron_job=row)
        finally:
            connection.close()

    def suspend(step: str) -> None:
        if step == "prepared":
            thread = threading.Thread(target=change)
            thread.start()
            thread.join()

    due_runs.runs_submit_due(cell.pk, reached=suspend)
    assert (cron_rows.runs(row), cron_rows.jobs_of(row)) == ([("missed", "cron-changed")], [])


def test_the_number_of_cron_jobs_is_limited(cell, ann, settings) -> None:
    settings.BORG_MAX_CRON_JOBS_PER_TENANT = 1
    cron_rows.apply(ann, cell)
    with pytest.raises(Rejected, match="at most 1 are possible"):
        cron_rows.apply(ann, cell, "second")
    settings.BORG_MAX_CRON_JOBS_PER_TENANT, settings.BORG_MAX_CRON_JOBS_PER_CELL = 9, 1
    with pytest.raises(Rejected, match="of all tenants together"):
        cron_rows.apply(ann, cell, "second")
    settings.BORG_CRON_MIN_PERIOD_S = 3600
    with pytest.raises(Rejected, match="at most one run per 3600 s"):
        cron_rows.apply(ann, cell, "third")


def test_a_cron_job_is_deleted_with_its_history(cell, ann) -> None:
    row = cron_rows.apply(ann, cell)
    cron_rows.due(row)
    due_runs.runs_submit_due(cell.pk)
    cron_jobs.cron_delete(principal=ann, cron_job=row)
    assert (CronJob.objects.count(), CronRun.objects.count(), Job.objects.count()) == (0, 0, 1)


def test_a_job_that_the_database_rejects_blocks_no_other(cell, ann, caplog) -> None:
    good, bad = (cron_rows.apply(ann, cell, name) for name in ("good", "bad"))
    CronJob.objects.filter(pk=bad.pk).update(name="x" * 60)  # the name of its run is too long for the column
    for row in (bad, good):
        cron_rows.due(row)
    due_runs.runs_submit_due(cell.pk)
    assert (cron_rows.runs(good), cron_rows.runs(bad)) == ([("submitted", "")], [("rejected", "internal")])


def test_a_deleted_cell_has_no_runs(cell, ann) -> None:
    row = cron_rows.apply(ann, cell)
    cron_rows.due(row)
    Cell.objects.filter(pk=cell.pk).update(deleted_at=timezone.now())
    assert due_runs.runs_submit_due(cell.pk).handled == 0
    Cell.objects.filter(pk=cell.pk).update(deleted_at=None)
    assert cron_rows.jobs_of(row) == []
