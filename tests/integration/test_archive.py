"""Tests of the archive on real PostgreSQL: what is copied, when rows are dropped, and the metadata of a file."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.conf import settings
from django.db import connection
from django.utils import timezone
from psycopg.errors import ProgramLimitExceeded

from scheduling.history.archive import parquet, retention, tables
from scheduling.history.archive.archiver import Archiver
from scheduling.history.archive.columns import read_columns
from scheduling.history.archive.parquet import UnreadableArchive
from scheduling.history.archive.store import store
from scheduling.history.archive.tables import ARCHIVE_TABLES
from scheduling.journal import journal
from scheduling.models import ArchiveFile, ArchiveState, Cell, Event, InstanceUsage
from tests.integration import rows, world
from tests.integration.past import ago, happened, skipped_to, used
from tests.integration.portal_server import database_url

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def folder(settings, tmp_path):
    settings.BORG_ARCHIVE = (tmp_path / "archive").as_uri()
    yield tmp_path / "archive"
    with connection.cursor() as cursor:
        for hour in retention.usage_windows.stored_hours():
            cursor.execute(f"DROP TABLE {retention.usage_windows.partition(hour)}")


@pytest.fixture
def cell():
    """Return a cell. Its rows are not compared with its journal, because these tests write invented events."""
    return rows.a_cell()


def archive(now: dt.datetime | None = None):
    return Archiver(store()).run(now=now or timezone.now())


def in_file(file: ArchiveFile) -> list[dict]:
    with store().local(file.key) as path:
        return pq.read_table(path).to_pylist()


def test_closed_days_are_copied_row_by_row_and_today_is_not(cell, folder) -> None:
    tenant = rows.a_tenant()
    job = rows.Job.objects.create(cell=cell, tenant=tenant, name="j", priority=200, band="production", requested=[])
    happened(cell, 5, at=ago(2), job_id=job.id)
    happened(cell, 33_000, at=ago(1), job_id=job.id)
    happened(cell, 3, at=ago(0))
    expected = list(Event.objects.filter(revision__lte=5).order_by("revision", "seq"))
    done = archive()
    first, second = ArchiveFile.objects.filter(table="events").order_by("first")
    assert (first.first, first.last, first.rows, first.day) == (1, 5, 10, ago(2).date())
    assert (second.first, second.last, second.rows) == (6, 33_005, 66_000)
    assert (done.files, done.rows) == (2, 66_010)
    found = in_file(first)
    for row, event in zip(found, expected, strict=True):
        assert (row["id"], row["revision"], row["seq"]) == (event.id, event.revision, event.seq)
        assert row["time"].replace(tzinfo=dt.UTC) == event.time
        assert row["time_us"] == event.time.timestamp() * 1_000_000
        assert (row["collection_id"], row["instance_index"], row["machine_id"]) == (
            (event.job_id, event.task_index, event.machine_id)
        )
        assert (row["kind"], row["actor"], row["request_id"], row["user"]) == (
            (event.kind, event.actor, "", tenant.name)
        )
        assert row["caused_by_revision"] is None
        assert json.loads(row["data"]) == event.data
    path = folder / first.key
    assert path.stat().st_size == first.bytes
    assert parquet.sha256(path) == first.sha256
    assert archive() == type(done)(), "a second run does nothing"
    assert not retention.due(now=timezone.now())


def test_events_of_a_day_wait_until_no_more_can_arrive(cell) -> None:
    happened(cell, 3, at=ago(1))
    archive(ago(0) + dt.timedelta(minutes=9))
    assert ArchiveFile.objects.count() == 0
    assert retention.lag_s(cell, "events", now=ago(0) + dt.timedelta(minutes=9)) == 0
    assert retention.lag_s(cell, "events", now=ago(0) + dt.timedelta(minutes=70)) == 3600
    archive(ago(0) + dt.timedelta(minutes=11))
    assert ArchiveFile.objects.count() == 1


def test_old_partitions_are_dropped_when_all_their_events_are_archived(cell) -> None:
    """Partitions whose events are old and archived are dropped. The partition with the newest revision always stays."""
    happened(cell, 10, at=ago(20))
    skipped_to(cell, journal.PARTITION + 5)
    happened(cell, 10, at=ago(10))
    skipped_to(cell, 5 * journal.PARTITION)
    happened(cell, 10, at=ago(3))
    assert archive().partitions == 1
    cell.refresh_from_db()
    assert cell.journal_floor == journal.PARTITION - 1
    assert [f.state for f in ArchiveFile.objects.filter(table="events")] == ["sole", "stored", "stored"]
    assert set(Event.objects.values_list("revision", flat=True)) == {
        *range(journal.PARTITION + 6, journal.PARTITION + 16),
        *range(5 * journal.PARTITION + 1, 5 * journal.PARTITION + 11),
    }
    Cell.objects.filter(pk=cell.pk).update(settings={"journal_keep_days": 1.0})
    archive()
    assert Event.objects.count() == 20, "the partition with the newest revision stays"
    archived = [row for file in ArchiveFile.objects.filter(table="events") for row in in_file(file)]
    assert [row["revision"] for row in archived[::2]] == [
        *range(1, 11),
        *range(journal.PARTITION + 6, journal.PARTITION + 16),
        *range(5 * journal.PARTITION + 1, 5 * journal.PARTITION + 11),
    ]


def test_partitions_of_other_cells_do_not_matter(cell) -> None:
    other = Cell.objects.create(name="dd")
    for one in (cell, other):
        happened(one, 4, at=ago(20))
        skipped_to(one, journal.PARTITION)
    Cell.objects.filter(pk=other.pk).update(settings={"journal_keep_days": 30.0})
    archive()
    assert set(Event.objects.values_list("cell_id", flat=True)) == {other.id}
    assert ArchiveFile.objects.filter(table="events").count() == 2


def test_usage_is_dropped_only_after_it_is_in_the_archive(cell, settings) -> None:
    settings.BORG_USAGE_KEEP_HOURS = 3
    other = Cell.objects.create(name="dd")
    for hours in (0, 1, 23.5):
        used(cell, 3, at=ago(2) + dt.timedelta(hours=hours))
    used(cell, 3, at=ago(1))
    before = list(InstanceUsage.objects.order_by("start_time", "instance_index")[:9])
    archive(ago(1) + dt.timedelta(hours=2))
    assert InstanceUsage.objects.count() == 12, "the day is not closed"
    archive(ago(1) + dt.timedelta(hours=3.5))
    assert InstanceUsage.objects.count() == 3
    assert ArchiveFile.objects.get(cell=other).rows == 0
    file = ArchiveFile.objects.get(cell=cell, table="instance_usage")
    assert (file.last - file.first, file.rows, file.state) == (86_399, 9, ArchiveState.SOLE)
    for row, window in zip(in_file(file), before, strict=True):
        assert row["start_time"].replace(tzinfo=dt.UTC) == window.start_time
        assert row["average_usage_cpus"] == pytest.approx(window.average_usage_cpus)
        assert row["cpu_usage_distribution"] == pytest.approx(window.cpu_usage_distribution)
        assert len(row["tail_cpu_usage_distribution"]) == 9
        assert (row["collection_id"], row["instance_index"]) == (window.collection_id, window.instance_index)


def test_files_are_deleted_after_the_time_of_the_cell(cell, folder) -> None:
    happened(cell, 4, at=ago(60))
    happened(cell, 4, at=ago(20))
    skipped_to(cell, journal.PARTITION)
    Cell.objects.filter(pk=cell.pk).update(settings={"archive_keep_days": 30.0})
    archive()
    old, newer = ArchiveFile.objects.filter(table="events").order_by("first")
    assert (old.state, newer.state) == (ArchiveState.DELETED, ArchiveState.SOLE)
    assert [path.name for path in folder.rglob("*.parquet")] == [newer.key.rpartition("/")[2]]
    assert archive().files == 0, "deleted days are not copied again"


def test_secret_values_of_the_environment_are_not_in_the_archive(cell, tenant, ann) -> None:
    file = world.a_file()
    file["task"] |= {"env": {"DB_PASSWORD": "hunter2-hunter2"}, "plain_env": ["DB_PASSWORD"]}
    world.submit(ann, cell, file)
    archive(timezone.now() + dt.timedelta(days=1, hours=4))
    found = [row for file in ArchiveFile.objects.filter(table="events") for row in in_file(file)]
    assert "job.submitted" in {row["kind"] for row in found}
    assert "hunter2" not in str(found)


def test_a_file_of_a_newer_version_is_rejected_with_the_cure(cell, tmp_path) -> None:
    table = ARCHIVE_TABLES["events"]
    newer = type(table)(table.name, 2, table.table, table.order, table.place, table.sources, table.types)
    parquet.write(tmp_path / "newer.parquet", newer, "cc", [])
    with pytest.raises(UnreadableArchive, match=r"version 2 .* upgrade"):
        parquet.open_file(tmp_path / "newer.parquet")
    parquet.write(tmp_path / "same.parquet", table, "cc", [])
    assert parquet.read_back(tmp_path / "same.parquet").rows == 0
    (tmp_path / "other.parquet").write_bytes(b"PAR1 is not enough")
    with pytest.raises(UnreadableArchive, match="damaged"):
        parquet.open_file(tmp_path / "other.parquet")


def test_columns_of_all_types_arrive_with_their_nulls() -> None:
    types = {
        "long": pa.int64(),
        "whole": pa.int32(),
        "short": pa.int16(),
        "flag": pa.bool_(),
        "single": pa.float32(),
        "double": pa.float64(),
        "time": pa.timestamp("us"),
        "text": pa.string(),
        "floats": pa.list_(pa.float32()),
    }
    select = """SELECT * FROM (VALUES
        (1::bigint, -2, 3::smallint, true, 0.5::real, 1e300::float8, '1969-07-20 20:17'::timestamp, 'é,"\n', '{1,2}'::real[]),
        (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
        (9223372036854775807, 2147483647, 32767, false, -1, 0, '2026-11-27 00:00:00.000001', '', '{}'),
        (0, 0, 0, false, 0, 0, '2000-01-01', 'z', '{0.25}')) AS rows"""  # noqa: E501
    found = read_columns(types, select)
    assert found.schema == pa.schema(list(types.items()))
    found.validate(full=True)
    first, null, third, last = found.to_pylist()
    moon = dt.datetime(1969, 7, 20, 20, 17)
    assert list(first.values()) == [1, -2, 3, True, 0.5, 1e300, moon, 'é,"\n', [1.0, 2.0]]
    assert set(null.values()) == {None}
    assert list(third.values())[:6] == [2**63 - 1, 2**31 - 1, 2**15 - 1, False, -1.0, 0.0]
    assert (third["time"].microsecond, third["text"], third["floats"], last["floats"]) == (1, "", [], [0.25])
    assert read_columns(types, f"{select} WHERE false").num_rows == 0


def test_large_events_are_read_with_several_statements(cell, monkeypatch) -> None:
    happened(cell, 50, at=ago(1))
    monkeypatch.setattr(tables, "ROWS_PER_GROUP", 40)
    monkeypatch.setattr(tables, "_STATEMENT_BYTES", 2_000)
    read, limits = tables.read_part, []

    def limited(table: tables.ArchiveTable, select: str) -> pa.Table:
        limits.append(int(select.rpartition(" ")[2]))
        if limits == [40]:
            raise ProgramLimitExceeded("string buffer exceeds maximum allowed length")
        return read(table, select)

    monkeypatch.setattr(tables, "read_part", limited)
    wanted = retention.next_range(cell, "events", now=timezone.now())
    assert wanted is not None
    parts = list(tables.rows_of(cell.id, wanted))
    assert limits[:2] == [40, 1]
    assert 1 < max(limits[1:]) < 40
    assert max(part.nbytes for part in parts) < 4_000
    assert [row["revision"] for part in parts for row in part.to_pylist()] == [1 + n // 2 for n in range(100)]


def test_only_one_archiver_works_on_a_cell(cell) -> None:
    happened(cell, 3, at=ago(1))
    seen = []
    archiver = Archiver(store(), at=lambda step: seen.append(command()) if step == "began" else None)
    archiver.run(now=timezone.now())
    assert seen == [{"files": 0, "rows": 0, "bytes": 0, "partitions": 0, "jobs": 0, "deleted": 0}]
    assert ArchiveFile.objects.count() == 1


def command() -> dict[str, int]:
    """Run the management command `archive` in a process of its own, and return the figures that it prints."""
    env = os.environ | {
        "DJANGO_SETTINGS_MODULE": "portal.settings.test",
        "BORG_DATABASE_URL": database_url(),
        "BORG_ARCHIVE": settings.BORG_ARCHIVE,
    }
    done = subprocess.run([sys.executable, "-m", "django", "archive"], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
