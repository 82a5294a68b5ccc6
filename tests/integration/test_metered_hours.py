"""Tests of the hours that scheduling reports to quota, once each: limits, mean reservations and usage."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone

from borglet.messages import TaskKey, UsageWindow
from quota.models import MeteredHour
from quota.vocabulary.resources import CPU, DISK_BANDWIDTH, RAM, SIZE, scale
from scheduling.celery_tasks import metering_run
from scheduling.jobs import updates
from scheduling.journal.sql import execute
from scheduling.models import Cell, Job, JobSpec, MeteringHour, ReservedInHour, Task
from scheduling.usage import metering, usage_windows
from scheduling.usage.metering import HOUR, look, meter_due, rows_of
from scheduling.usage.usage_windows import TaskWindow
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)
TEN = dt.datetime(2026, 11, 20, 10, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def tenant(cell):
    tenant = rows.a_tenant()
    rows.grant(tenant, cell, "production")
    return tenant


@pytest.fixture
def job(cell, tenant):
    """Return a job of three tasks (100m and 64 MiB each) that was submitted at nine o'clock."""
    job = rows.a_job(cell, tenant, tasks=3)
    Job.objects.filter(pk=job.pk).update(created_at=TEN - HOUR)
    JobSpec.objects.update(created_at=TEN - HOUR)
    return job


def run(job: Job, *indexes: int, reservation=rows.SMALL) -> None:
    machine = rows.a_machine(job.cell)
    Task.objects.filter(job=job, index__in=indexes).update(
        state="running", machine=machine, incarnation=1, reservation=list(reservation)
    )


def window(job: Job, index: int, at: dt.datetime, **fields: object) -> TaskWindow:
    told = {
        "key": TaskKey(job.uid.hex, index, 1),
        "start": int(at.timestamp()),
        "span_s": 300,
        "samples": 60,
        "cpu_milli": 40,
        "ram_bytes": 2**20,
        "disk_bytes": 2**10,
        "read_bytes_s": 30,
        "written_bytes_s": 12,
        "cpu_distribution": [0] * 11,
        "cpu_tail": [0] * 9,
        "most_cpu_milli": 40,
        "random_cpu_milli": 40,
        "most_ram_bytes": 2**20,
        "limit_cpu_milli": 100,
        "limit_ram_bytes": 2**26,
        "cached_bytes": 0,
        "most_threads": 1,
    }
    task = Task.objects.get(job=job, index=index)
    return TaskWindow(job.cell_id, 1, task.id, UsageWindow(**(told | fields)))  # type: ignore[arg-type]


def one_row(cell, *, looks: int = 0, hour: dt.datetime = TEN):
    (row,) = rows_of(cell, hour, looks=looks)
    return row


def test_limits_are_those_of_a_jobs_life_in_the_hour(cell, job) -> None:
    assert one_row(cell).limit == scale(job.requested, 3600)
    Job.objects.update(created_at=TEN + 10 * MINUTE, state="dead", ended_at=TEN + 40 * MINUTE)
    row = one_row(cell)
    assert row.limit == scale(job.requested, 30 * 60)
    assert (row.tenant_id, row.band, row.job_uid, row.job) == (job.tenant_id, "production", job.uid.hex, "jfoo")
    assert rows_of(cell, TEN - HOUR, looks=0) == []
    assert rows_of(cell, TEN + HOUR, looks=0) == []


def test_each_version_of_a_spec_counts_for_as_long_as_it_was_in_force(cell, tenant) -> None:
    ann = world.principal("ann", tenant=tenant)
    job = world.submit(ann, cell, world.a_file())
    first = tuple(job.requested[:SIZE])
    for tasks, priority in ((5, 200), (5, 100)):
        if priority == 100:
            rows.grant(tenant, cell, "batch")
        job.refresh_from_db()
        spec = world.read(cell, world.a_file(tasks=tasks, priority=priority))
        updates.job_update(principal=ann, job=job, job_spec=spec)
    for version, minute in ((1, -30), (2, 15), (3, 45)):
        JobSpec.objects.filter(version=version).update(created_at=TEN + minute * MINUTE)
    Job.objects.update(created_at=TEN - 30 * MINUTE)
    told = {row.band: row for row in rows_of(cell, TEN, looks=0)}
    grown = tuple(value * 5 // 3 for value in first)
    assert told["production"].limit[CPU] == first[CPU] * 900 + grown[CPU] * 1800
    assert told["batch"].limit == scale(grown, 900)
    (later,) = rows_of(cell, TEN + HOUR, looks=0)
    assert (later.band, later.limit) == ("batch", scale(grown, 3600))


def test_reservations_are_means_of_the_looks_of_running_tasks(cell, job) -> None:
    run(job, 0, 1, reservation=(60, 2**20, 0, 0, 0, 0))
    assert look(cell, now=TEN + MINUTE)
    assert not look(cell, now=TEN + 2 * MINUTE)
    Task.objects.filter(index=1).update(state="pending", machine=None)
    assert look(cell, now=TEN + 6 * MINUTE)
    Task.objects.update(state="pending", machine=None)
    assert look(cell, now=TEN + 11 * MINUTE)
    row = one_row(cell, looks=MeteringHour.objects.get().looks)
    assert (row.reserved[CPU], row.reserved[RAM]) == (60 * 3600, 2**20 * 3600)


def test_tasks_inside_allocs_reserve_nothing_of_their_own(cell, job) -> None:
    run(job, 0, 1)
    Task.objects.filter(index=1).update(alloc=Task.objects.get(index=0))
    look(cell, now=TEN)
    assert tuple(ReservedInHour.objects.get().reserved) == rows.SMALL


def test_usage_is_what_windows_say_by_the_hour_they_begin_in(cell, job) -> None:
    run(job, 0, 1)
    usage_windows.store(
        [
            window(job, 0, TEN - 5 * MINUTE, cpu_milli=9_000),
            window(job, 0, TEN),
            window(job, 1, TEN + 55 * MINUTE, span_s=600),
            window(job, 0, TEN + HOUR, cpu_milli=9_000),
        ]
    )
    used = one_row(cell).used
    assert used[CPU] == pytest.approx(40 * 900, abs=1)
    assert used[RAM] == 2**20 * 900
    assert used[DISK_BANDWIDTH] == 42 * 900


def test_what_ran_after_its_job_ended_is_reported_too(cell, job) -> None:
    Job.objects.update(state="dead", ended_at=TEN - MINUTE)
    usage_windows.store([window(job, 0, TEN)])
    row = one_row(cell)
    assert (any(row.limit), row.used[RAM]) == (False, 2**20 * 300)


def test_the_free_priority_has_no_band_and_amounts_are_exact(cell, job) -> None:
    Job.objects.update(priority=0, band="best-effort", requested=[2**60] * 6)
    row = one_row(cell)
    assert (row.band, set(row.limit)) == ("", {2**60 * 3600})
    run(job, 0, reservation=[2**62] * 6)
    for minute in (0, 5, 10):
        look(cell, now=TEN + minute * MINUTE)
    assert set(one_row(cell, looks=3).reserved) == {(2**63 - 1) * 1200}


def test_hours_are_reported_once_in_order_and_missed_ones_later(cell, job) -> None:
    told: list[dt.datetime] = []

    def due(now: dt.datetime, keep_hours: int = 24) -> list[dt.datetime]:
        def meter(*, cell: str, hour: dt.datetime, rows: object) -> None:
            assert (cell, len(rows)) == ("cc", 1)  # type: ignore[arg-type]
            told.append(hour)

        return meter_due(cell, now=now, keep_hours=keep_hours, meter=meter)

    assert due(TEN) == []  # this hour was never sampled
    run(job, 0)
    look(cell, now=TEN + 50 * MINUTE)
    assert due(TEN + HOUR + 14 * MINUTE) == []
    assert due(TEN + HOUR + 15 * MINUTE) == [TEN]
    assert not ReservedInHour.objects.exists()
    assert due(TEN + HOUR + 16 * MINUTE) == []
    assert due(TEN + 4 * HOUR) == [TEN + HOUR, TEN + 2 * HOUR]
    assert due(TEN + 10 * HOUR, keep_hours=3) == [TEN + 7 * HOUR, TEN + 8 * HOUR]
    assert told == [TEN + number * HOUR for number in (0, 1, 2, 7, 8)]


def test_an_hour_whose_report_fails_is_reported_again(cell, job) -> None:
    look(cell, now=TEN)

    def broken(**_: object) -> None:
        raise OSError

    with pytest.raises(OSError):
        meter_due(cell, now=TEN + 2 * HOUR, keep_hours=24, meter=broken)
    assert meter_due(cell, now=TEN + 2 * HOUR - MINUTE, keep_hours=24, meter=lambda **_: None) == [TEN]


def test_queries_do_not_grow_with_jobs(cell, tenant, job, django_assert_num_queries) -> None:
    for number in range(20):
        rows.a_job(cell, tenant, name=f"j{number}")
    Job.objects.update(created_at=TEN - HOUR, spec_version=2)
    with django_assert_num_queries(5):
        assert len(rows_of(cell, TEN, looks=1)) == 21


def test_old_marks_are_forgotten(cell, job) -> None:
    run(job, 0)
    look(cell, now=TEN)
    metering.forget_old(now=TEN + 59 * 24 * HOUR)
    assert MeteringHour.objects.exists()
    metering.forget_old(now=TEN + 61 * 24 * HOUR)
    assert not MeteringHour.objects.exists()
    assert not ReservedInHour.objects.exists()


def test_a_cell_that_cannot_be_metered_does_not_stop_the_others(cell) -> None:
    """Hours older than a day are lost, so an error in one cell would cost all other cells their charges."""
    other = rows.a_cell(name="dd")
    execute(f"ALTER TABLE scheduling_meteringhour ADD CONSTRAINT test_broken CHECK (cell_id <> {cell.id:d})")
    try:
        metering_run()
    finally:
        execute("ALTER TABLE scheduling_meteringhour DROP CONSTRAINT test_broken")
    assert [mark.cell for mark in MeteringHour.objects.all()] == [other]


def test_the_lag_of_metering_is_the_time_since_the_last_reported_hour(cell) -> None:
    Cell.objects.update(created_at=TEN - 30 * MINUTE)
    assert metering.lag_s(now=TEN) == {"cc": 1800.0}
    look(cell, now=TEN + 5 * MINUTE)
    assert metering.lag_s(now=TEN + HOUR) == {"cc": 3600.0}
    meter_due(cell, now=TEN + 2 * HOUR, keep_hours=24, meter=lambda **_: None)
    assert metering.lag_s(now=TEN + 2 * HOUR) == {"cc": 3600.0}


def test_celery_looks_and_reports_to_quota_once(cell, job) -> None:
    run(job, 0)
    Job.objects.update(labels={"team": "search"})
    this_hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    past = this_hour - 2 * HOUR
    Job.objects.update(created_at=past)
    look(cell, now=past)
    for _ in range(2):
        metering_run()
    row = MeteredHour.objects.get(hour=past)
    assert (row.tenant, row.job_uid, row.labels) == (job.tenant, job.uid.hex, {"team": "search"})
    assert row.limit == [value * 3600 for value in job.requested]
    assert row.reserved == [value * 3600 for value in rows.SMALL]
    assert ReservedInHour.objects.get().hour in (this_hour, this_hour + HOUR), "it may have struck meanwhile"
