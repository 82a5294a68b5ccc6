"""Tests of the partitions of metered hours: created before their month, dropped when they are empty."""

from __future__ import annotations

import datetime as dt
from importlib import import_module

import psycopg
import pytest
from django.db import connection

from quota import clock
from quota.billing.metering import MeteredRow, meter
from quota.models import MeteredHour, metered_months
from scheduling.journal.sql import execute, query
from tests.integration import rows
from tests.integration.money_rows import a_metered_hour
from tests.integration.portal_server import database_url

pytestmark = pytest.mark.django_db
MIGRATION = import_module("quota.migrations.0020_metered_hours_have_partitions")
NOW = dt.datetime(2031, 5, 31, 23, tzinfo=dt.UTC)
TABLE, ZERO = "quota_meteredhour", (0,) * 6
_PARTITIONS = f"SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = '{TABLE}'::regclass ORDER BY 1"
_PLACES = f"SELECT tableoid::regclass::text, job FROM {TABLE}"


def report(hour: dt.datetime, job: str = "web") -> int:
    row = MeteredRow(rows.a_tenant().pk, "", f"{sum(job.encode()):032x}", job, {}, ZERO, ZERO, ZERO)
    with clock.at(NOW):
        return meter(cell="cc", hour=hour, rows=[row])


def partitions() -> list[str]:
    return [name.removeprefix(f"{TABLE}_") for (name,) in query(_PARTITIONS)]


def places() -> list[tuple[str, str]]:
    """Return the partition and the job of each row."""
    return [(name.removeprefix(f"{TABLE}_"), job) for name, job in query(f"{_PLACES} ORDER BY 1, 2")]


@pytest.fixture(autouse=True)
def no_partitions(db) -> None:
    connection.check_constraints()
    for name in partitions():
        execute(f"DROP TABLE {TABLE}_{name}")


def test_a_report_creates_the_partitions_of_its_month_and_the_next_two() -> None:
    assert report(NOW) == 1
    assert partitions() == ["203105", "203106", "203107"]
    assert report(NOW + dt.timedelta(hours=1)) == 1, "the first hour of the next month"
    assert partitions() == ["203105", "203106", "203107", "203108"]
    assert places() == [("203105", "web"), ("203106", "web")]
    assert report(NOW) == 1, "a repeated report replaces the row"
    assert (metered_months.ensure(NOW), len(places())) == ([], 2)


def test_only_old_partitions_without_rows_are_dropped_and_a_late_report_creates_one_again() -> None:
    for month in (1, 2, 3):
        report(NOW.replace(month=month, day=1), f"job{month}")
    MeteredHour.objects.filter(job__in=["job1", "job3"]).delete()
    connection.check_constraints()
    assert metered_months.empty_months(now=NOW) == [f"{TABLE}_203101", f"{TABLE}_203103"]
    assert metered_months.empty_months(now=NOW - dt.timedelta(days=31)) == [f"{TABLE}_203101"]
    assert not metered_months.drop(f"{TABLE}_203102"), "it has a row"
    assert metered_months.drop(f"{TABLE}_203101")
    assert partitions() == ["203102", "203103", "203104", "203105"]
    assert report(NOW.replace(month=1, day=31), "late") == 1
    assert places() == [("203101", "late"), ("203102", "job2")]


@pytest.mark.django_db(transaction=True)
def test_a_partition_is_not_dropped_while_somebody_reads_the_table() -> None:
    metered_months.ensure(NOW)
    with psycopg.connect(database_url()) as reader:
        reader.execute(f"SELECT count(*) FROM {TABLE}")
        assert not metered_months.drop(f"{TABLE}_203105")
        assert metered_months.ensure(NOW + dt.timedelta(days=31)) == [f"{TABLE}_203108", f"{TABLE}_203109"]
    assert metered_months.drop(f"{TABLE}_203105")
    assert partitions() == ["203106", "203107", "203108", "203109"]


def schema() -> list[tuple[str, ...]]:
    return query(
        f"SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = '{TABLE}'::regclass"
        f" UNION ALL SELECT indexdef FROM pg_indexes WHERE tablename = '{TABLE}' ORDER BY 1"
    )


def migrate(*steps: str) -> None:
    connection.check_constraints()
    for step in steps:
        execute(step)


def test_an_upgrade_keeps_the_old_table_as_the_partition_of_all_hours_before_the_month_after_next() -> None:
    made, old = schema(), dt.datetime(2031, 3, 5, tzinfo=dt.UTC)
    hour = {"tenant": rows.a_tenant(), "cell": "cc", "limit": ZERO, "reserved": ZERO, "used": ZERO}
    ids = [a_metered_hour(hour=at, job=str(at.month), **hour).pk for at in (old, NOW)]
    migrate(MIGRATION.BACK)
    assert query(_PLACES) == [(TABLE, "3"), (TABLE, "5")]
    migrate(MIGRATION.CLAIM, MIGRATION.CLAIM, MIGRATION.CHECK, MIGRATION.SWAP)
    migrate(MIGRATION.CLAIM, MIGRATION.CHECK, MIGRATION.SWAP)  # a repetition changes nothing
    assert (schema(), partitions()) == (made, ["until_203107"])
    assert places() == [("until_203107", "3"), ("until_203107", "5")]
    june = NOW + dt.timedelta(hours=1)
    new = MeteredHour.objects.create(hour=june, job="6", job_uid="6", **hour)  # by a process of the version before
    assert new.pk > max(ids)
    assert report(june, "web") == 1
    assert partitions() == ["203107", "203108", "until_203107"]
    assert report(NOW + dt.timedelta(days=31), "later") == 1
    assert places()[0] == ("203107", "later")
    later = NOW + dt.timedelta(days=70)
    assert metered_months.empty_months(now=later) == []
    MeteredHour.objects.filter(hour__lt=june + dt.timedelta(days=1)).delete()
    connection.check_constraints()
    assert metered_months.empty_months(now=NOW + dt.timedelta(days=60)) == [], "June is not over for 31 days"
    assert metered_months.empty_months(now=later) == [f"{TABLE}_until_203107"]
    assert metered_months.drop(f"{TABLE}_until_203107")
    assert places() == [("203107", "later")]


def test_an_upgrade_without_rows_makes_partitions_for_processes_of_the_version_before() -> None:
    made = schema()
    migrate(MIGRATION.BACK, MIGRATION.CLAIM, MIGRATION.CHECK, MIGRATION.SWAP)
    month = dt.datetime.now(dt.UTC).date().replace(day=1)
    first = (month - dt.timedelta(days=1)).replace(day=1)
    assert (schema(), len(partitions())) == (made, 4)
    assert f"{first:%Y%m}" == partitions()[0]
    assert f"{month:%Y%m}" in partitions()
