"""Tests of cron jobs when something goes wrong: rejected replacements, retried and forgotten runs, entries that cannot
be handled, outages, and tenants with many or large runs.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from quota.models import Membership, Quota
from quota.vocabulary.errors import Conflict, Rejected
from quota.vocabulary.permissions import Principal, Role
from scheduling.cron import cron_jobs, cron_spec, due_runs, overlaps, run_history, selectors
from scheduling.jobs.actions.retry import job_retry
from scheduling.jobs.submit_and_kill import job_kill
from scheduling.journal import journal
from scheduling.journal.sql import execute
from scheduling.models import Cell, CronJob, CronRun, Job, JobSpec
from scheduling.spec import parser
from tests.integration import cron_rows, rows, world

pytestmark = pytest.mark.django_db(transaction=True)
RARE = "0 0 1 1 *"  # no other run becomes due during a test


def submitted(cell: Cell, row: CronJob, *, ago_s: float = 70) -> Job:
    """Submit a run that is due since `ago_s` seconds. Return its job."""
    cron_rows.due(row, ago_s=ago_s)
    due_runs.runs_submit_due(cell.pk)
    return cron_rows.jobs_of(row)[-1]


def other_tenant(cell: Cell, name: str) -> Principal:
    tenant = rows.a_tenant(name)
    rows.grant(tenant, cell, "production")
    return world.principal(f"{name}-ann", tenant=tenant, role=Role.OPERATOR)


def test_the_stored_spec_of_a_run_at_each_limit_can_be_loaded(cell, ann) -> None:
    labels = {f"l{number}": "x" * 255 for number in range(parser.MAX_LABELS)}
    with pytest.raises(Rejected, match=r"job\.labels: has 64 labels; give at most 63"):
        cron_rows.apply(ann, cell, job={"labels": labels})
    del labels["l0"]
    row = cron_rows.apply(ann, cell, "n" * cron_spec.MAX_NAME, job={"labels": labels})
    cron_rows.due(row)
    due_runs.runs_submit_due(cell.pk)
    cron_jobs.cron_run_now(principal=ann, cron_job=row)
    stored = [parser.load(spec) for spec in JobSpec.objects.order_by("id").values_list("spec", flat=True)]
    assert [(len(spec.labels), len(spec.name)) for spec in stored] == [(64, 61), (64, 63)]


def test_a_stored_job_with_too_many_labels_is_rejected(cell, ann) -> None:
    row = cron_rows.apply(ann, cell)
    labels = {f"l{number}": "x" for number in range(parser.MAX_LABELS)}
    CronJob.objects.filter(pk=row.pk).update(template={**row.template, "labels": labels})
    cron_rows.due(row)
    due_runs.runs_submit_due(cell.pk)
    assert (cron_rows.runs(row), Job.objects.count()) == ([("rejected", "invalid-spec")], 0)


@pytest.mark.parametrize("overlap", ["forbid", "replace"])
def test_a_live_run_is_known_after_the_history_was_cut(cell, ann, monkeypatch, overlap) -> None:
    monkeypatch.setattr(run_history, "_CUT_EVERY", 1)
    row = cron_rows.apply(ann, cell, overlap=overlap, keep_runs=1, schedule=RARE)
    first = submitted(cell, row)
    CronRun.objects.all().delete()
    submitted(cell, row, ago_s=1)
    jobs = cron_rows.jobs_of(row)
    assert [job.pk for job in jobs if job.state != "dead"] == [first.pk if overlap == "forbid" else jobs[-1].pk]


def test_a_retried_run_is_a_live_run(cell, ann) -> None:
    row = cron_rows.apply(ann, cell, overlap="forbid", schedule=RARE)
    first = submitted(cell, row)
    job_kill(principal=ann, job=first)
    retried = job_retry(principal=ann, job=Job.objects.get(pk=first.pk), ranges=[(0, 0)]).job
    assert retried.uid != first.uid
    submitted(cell, row, ago_s=1)
    assert cron_rows.runs(row) == [("submitted", ""), ("skipped", "cron-overlap")]
    assert f"the run {retried.name} is still live" in CronRun.objects.get(outcome="skipped").detail


def test_only_runs_of_the_same_cron_job_overlap(cell, ann) -> None:
    row = cron_rows.apply(ann, cell, overlap="forbid", schedule=RARE)
    longer = cron_rows.apply(ann, cell, "nightly-2", overlap="forbid", schedule=RARE)
    eve = other_tenant(cell, "second")
    of_eve = cron_rows.apply(eve, cell, overlap="forbid", schedule=RARE, tenant="second")
    for each in (longer, of_eve):
        submitted(cell, each)
    world.submit(ann, cell, world.a_file("nightly-test"))
    submitted(cell, row, ago_s=1)
    assert cron_rows.runs(row) == [("submitted", "")]


def test_histories_are_cut_often_at_every_period() -> None:
    start = dt.datetime(2026, 1, 1, 2, 30, tzinfo=dt.UTC)
    for minutes in (1, 60, 1440, 7 * 1440):
        for cron_id in range(1, 200):
            cuts = [run_history._is_cut(cron_id, start + n * dt.timedelta(minutes=minutes)) for n in range(400)]
            longest = max(len(part) for part in "".join("x" if cut else "." for cut in cuts).split("x"))
            assert longest < 100, (minutes, cron_id)


def test_the_history_of_a_daily_cron_job_is_cut(cell, ann) -> None:
    made = [cron_rows.apply(ann, cell, f"daily-{n}", keep_runs=3, schedule=RARE, job={"tasks": 1}) for n in range(3)]
    Membership.objects.all().delete()  # so that runs are rejected, which is faster
    for days in range(60, 0, -1):
        for row in made:
            CronJob.objects.filter(pk=row.pk).update(catch_up_s=10**8, next_at=timezone.now() - dt.timedelta(days=days))
        due_runs.runs_submit_due(cell.pk)
    assert all(3 <= len(cron_rows.runs(row)) < 60 for row in made)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda row: Quota.objects.all().delete(), "quota-exceeded"),
        (lambda row: Membership.objects.update(role=Role.VIEWER), "forbidden"),
        (lambda row: CronJob.objects.filter(pk=row.pk).update(template={"task": {}}), "invalid-spec"),
    ],
)
def test_a_rejected_run_replaces_nothing(cell, ann, machine, change, code) -> None:
    row = cron_rows.apply(ann, cell, overlap="replace", schedule=RARE, job={"priority": "production"})
    first = submitted(cell, row)
    good = cron_rows.apply(ann, cell, "good", overlap="replace", schedule=RARE) if code == "invalid-spec" else None
    before = submitted(cell, good) if good else None
    change(row)
    cron_rows.due(row)
    if good:
        cron_rows.due(good)
    due_runs.runs_submit_due(cell.pk)
    assert cron_rows.runs(row) == [("submitted", ""), ("rejected", code)]
    first.refresh_from_db()
    assert (first.state, first.tasks_total) == ("pending", 3)
    assert set(first.tasks.values_list("state", flat=True)) == {"pending"}
    if before is not None:
        before.refresh_from_db()
        assert before.outcome == "killed"


def test_one_rejected_replacement_does_not_undo_others(cell, ann) -> None:
    good = cron_rows.apply(ann, cell, "good", overlap="replace", schedule=RARE)
    bad = cron_rows.apply(ann, cell, "bad", overlap="replace", schedule=RARE, job={"priority": "production"})
    old_good, old_bad = submitted(cell, good), submitted(cell, bad)
    Quota.objects.filter(band__name="production").delete()
    for row in (bad, good):
        cron_rows.due(row)
    due_runs.runs_submit_due(cell.pk)
    assert cron_rows.runs(good) == [("submitted", "")] * 2
    assert cron_rows.runs(bad) == [("submitted", ""), ("rejected", "quota-exceeded")]
    assert [Job.objects.get(pk=job.pk).outcome for job in (old_good, old_bad)] == ["killed", ""]


def test_runs_that_do_not_fit_into_a_turn_together_are_replaced_whole(cell, ann, monkeypatch) -> None:
    large, small = (
        cron_rows.apply(ann, cell, name, overlap="replace", schedule=RARE, job={"tasks": tasks, "priority": band})
        for name, tasks, band in (("large", 4, "production"), ("small", 3, 0))
    )
    old_large, old_small = submitted(cell, large), submitted(cell, small)
    CronJob.objects.update(tasks=1)
    monkeypatch.setattr(journal, "CHUNK", 5)
    for row in (large, small):
        cron_rows.due(row)
    Quota.objects.all().delete()
    while due_runs.runs_submit_due(cell.pk).handled:
        pass
    old_large.refresh_from_db()
    old_small.refresh_from_db()
    assert (old_small.outcome, old_large.state, old_large.tasks_dead) == ("killed", "pending", 0)
    assert cron_rows.runs(large)[-1] == ("rejected", "quota-exceeded")


def test_an_alloc_set_with_the_name_of_a_run_does_not_count(cell, ann) -> None:
    row = cron_rows.apply(ann, cell, overlap="replace", schedule=RARE)
    first = submitted(cell, row)
    Job.objects.filter(pk=first.pk).update(kind="alloc-set")
    assert overlaps.live_runs([row.pk]) == {}
    assert selectors.tasks_running(row) == 0
    Job.objects.filter(pk=first.pk).update(kind="job")


def test_an_apply_starts_a_cron_job_again_whose_times_could_not_be_computed(cell, ann) -> None:
    row = cron_rows.apply(ann, cell)
    CronJob.objects.filter(pk=row.pk).update(next_at=None)
    assert cron_rows.apply(ann, cell).next_at is not None


def test_a_run_by_hand_cannot_replace_a_large_run(cell, ann, monkeypatch) -> None:
    row = cron_rows.apply(ann, cell, overlap="replace", schedule=RARE, job={"tasks": 5})
    first = submitted(cell, row)
    monkeypatch.setattr(journal, "CHUNK", 3)
    with pytest.raises(Conflict, match=f"kill job {first.name} first"):
        cron_jobs.cron_run_now(principal=ann, cron_job=row)
    first.refresh_from_db()
    assert set(first.tasks.values_list("state", flat=True)) == {"pending"}


def test_tenants_share_each_turn(cell, ann) -> None:
    many = [cron_rows.apply(ann, cell, f"many-{n}", schedule=RARE, job={"tasks": 1}) for n in range(12)]
    late = cron_rows.apply(other_tenant(cell, "second"), cell, tenant="second", schedule=RARE)
    for row in many:
        cron_rows.due(row, ago_s=300)
    cron_rows.due(late, ago_s=1)
    assert due_runs.runs_submit_due(cell.pk, at_once=4).handled == 4
    assert cron_rows.runs(late) == [("submitted", "")]


def test_large_runs_and_runs_of_other_tenants_both_get_turns(cell, ann, monkeypatch) -> None:
    monkeypatch.setattr(journal, "CHUNK", 5)
    large = cron_rows.apply(ann, cell, "large", schedule=RARE, job={"tasks": 5})
    small = [
        cron_rows.apply(other_tenant(cell, "second"), cell, f"small-{n}", tenant="second", schedule=RARE)
        for n in range(2)
    ]
    for row in (large, *small):
        cron_rows.due(row, ago_s=300 if row is large else 1)
    chosen = [frozenset(run.name for run in due_runs._read_due(cell.pk, 100)[1]) for _ in range(60)]
    assert {"large"} in chosen
    assert any("large" not in names for names in chosen)


@pytest.mark.parametrize("overlap", ["forbid", "replace"])
def test_only_the_newest_due_time_is_caught_up_without_overlap(cell, ann, overlap) -> None:
    row = cron_rows.apply(ann, cell, overlap=overlap, catch_up_s=600)
    cron_rows.due(row, ago_s=300)
    while due_runs.runs_submit_due(cell.pk).handled:
        pass
    assert cron_rows.runs(row)[:2] == [("skipped", "cron-superseded"), ("submitted", "")]
    run = CronRun.objects.filter(cron_job=row, outcome="submitted").earliest("due_at")
    assert timezone.now() - run.due_at < dt.timedelta(seconds=120)
    assert len(cron_rows.jobs_of(row)) == 1


def test_after_a_long_outage_without_overlap_one_run_is_missed_and_the_newest_one_runs(cell, ann) -> None:
    row = cron_rows.apply(ann, cell, overlap="forbid", catch_up_s=600)
    cron_rows.due(row, ago_s=14 * 86_400)
    for _ in range(2):
        due_runs.runs_submit_due(cell.pk)
    assert cron_rows.runs(row) == [("missed", "cron-missed"), ("submitted", "")]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"time_zone": "Mars/Base"}, "internal"),
        ({"schedule": "* * *"}, "internal"),
        ({"template": []}, "internal"),
        ({"template": {"task": 5}}, "invalid-spec"),
    ],
)
def test_an_entry_that_cannot_be_handled_blocks_no_other(cell, ann, change: dict[str, Any], code) -> None:
    good, bad = (cron_rows.apply(ann, cell, name, schedule=RARE) for name in ("good", "bad"))
    CronJob.objects.filter(pk=bad.pk).update(**change)
    for row in (bad, good):
        cron_rows.due(row)
    due_runs.runs_submit_due(cell.pk)
    assert (cron_rows.runs(good), cron_rows.runs(bad)) == ([("submitted", "")], [("rejected", code)])
    bad.refresh_from_db()
    assert (bad.next_at is None) == ("template" not in change)
    (record,) = [r.event for r in journal.tail(cell.pk, after=0) if type(r.event).__name__ == "CronSkipped"]
    assert (record.name, record.outcome, record.code) == ("bad", "rejected", code)


def test_a_failing_replacement_blocks_no_other(cell, ann) -> None:
    good, bad = (cron_rows.apply(ann, cell, name, overlap="replace", schedule=RARE) for name in ("good", "bad"))
    old_good, old_bad = submitted(cell, good), submitted(cell, bad)
    for row in (bad, good):
        cron_rows.due(row)
    with tasks_that_cannot_end(old_bad):
        due_runs.runs_submit_due(cell.pk)
    assert cron_rows.runs(good) == [("submitted", "")] * 2
    assert cron_rows.runs(bad) == [("submitted", ""), ("rejected", "internal")]
    assert [Job.objects.get(pk=job.pk).outcome for job in (old_good, old_bad)] == ["killed", ""]


def test_one_bad_job_of_many_is_found_in_few_steps(cell, ann) -> None:
    made = [cron_rows.apply(ann, cell, f"many-{n}", schedule=RARE, job={"tasks": 1}) for n in range(32)]
    CronJob.objects.filter(pk=made[7].pk).update(name="x" * 60)  # the name of its run is too long for the column
    for row in made:
        cron_rows.due(row)
    with CaptureQueriesContext(connection) as captured:
        assert due_runs.runs_submit_due(cell.pk).handled == 32
    assert [row.pk for row in made if cron_rows.runs(row) != [("submitted", "")]] == [made[7].pk]
    steps = [one for one in captured if "FROM scheduling_job WHERE" in one["sql"] and "name = ANY(" in one["sql"]]
    assert 5 <= len(steps) <= 11, len(steps)  # one at a time would be more than 32


def test_a_turn_reads_a_bounded_number_of_bytes(cell, ann, monkeypatch) -> None:
    text = "".join(f"{n:x}." for n in range(1_000))
    made = [cron_rows.apply(ann, cell, f"big-{n}", schedule=RARE, job={"task": a_task(TEXT=text)}) for n in range(5)]
    for row in made:
        cron_rows.due(row)
    monkeypatch.setattr(due_runs, "MAX_BYTES", 3 * len(text))
    handled = []
    while number := due_runs.runs_submit_due(cell.pk).handled:
        handled.append(number)
    assert handled == [2, 2, 1]


def test_large_jobs_are_rejected_and_not_kept_in_memory(cell, ann) -> None:
    def job(tasks: int) -> dict[str, Any]:
        envs = {str(n): {"env": {f"V{n}": "x" * 4_000 for n in range(12)}} for n in range(tasks)}
        return {"tasks": tasks, "overrides": envs}

    with pytest.raises(Rejected, match=r"job: the job of a run has [0-9,]* bytes in JSON; give at most 262,144"):
        cron_rows.apply(ann, cell, job=job(8))
    cron_spec._parsed.clear()
    for row in (cron_rows.apply(ann, cell, "small"), cron_rows.apply(ann, cell, "large", job=job(2))):
        cron_rows.due(row)
    assert due_runs.runs_submit_due(cell.pk).handled == 2
    assert len(cron_spec._parsed) == 1


def a_task(**env: str) -> dict[str, Any]:
    return {**world.a_file()["task"], "env": env}


@contextmanager
def tasks_that_cannot_end(job: Job) -> Iterator[None]:
    """Make PostgreSQL reject each change of the job's tasks inside the `with` block."""
    execute(
        "CREATE FUNCTION reject_change() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'the test rejects this'; END $$"
    )
    execute(
        "CREATE TRIGGER reject_change BEFORE UPDATE ON scheduling_task FOR EACH ROW"
        f" WHEN (OLD.job_id = {job.pk}) EXECUTE FUNCTION reject_change()"
    )
    try:
        yield
    finally:
        execute("DROP TRIGGER reject_change ON scheduling_task")
        execute("DROP FUNCTION reject_change()")
