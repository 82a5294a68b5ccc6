"""Tests of erasing a person or a tenant from the journal, the archive and checkpoints, also after an interruption."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connection, transaction
from django.db.utils import ProgrammingError
from django.utils import timezone

from quota.models import Record
from quota.vocabulary.permissions import system
from scheduling.history.archive.archiver import USAGE_LOCK, Archiver, archive_lock
from scheduling.history.archive.store import sha256_of, store
from scheduling.history.checkpoints.file import read
from scheduling.history.checkpoints.folder import checkpoints_of
from scheduling.history.checkpoints.saving import checkpoint_write
from scheduling.history.erasure.erasing import Eraser
from scheduling.history.erasure.identities import IdentityKind
from scheduling.history.infrastore.derived_tables import derive
from scheduling.journal import journal
from scheduling.journal.sql import execute
from scheduling.master.invariants import validate
from scheduling.models import ArchiveFile, Cell, Erasure, Event, Job, Pool
from scheduling.pools.pools import pool_write
from tests.integration import rows, world
from tests.integration.past import ago, happened, skipped_to

pytestmark = pytest.mark.django_db(transaction=True)
STEPS = ["events", "written", "stored", "recorded", "deleted", "rows"]


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def folder(settings, tmp_path: Path) -> Path:
    settings.BORG_HOME, settings.BORG_ARCHIVE = tmp_path, (tmp_path / "archive").as_uri()
    return tmp_path / "archive"


@pytest.fixture
def job(cell, tenant, folder) -> Job:
    """Return an ended job of tenant `ubar`, submitted by the person `ann`. Some events are only in the archive."""
    job = Job.objects.create(
        cell=cell, tenant=tenant, name="ubar", priority=200, band="production", requested=[], state="dead",
        submitted_by="ann", ended_at=timezone.now(),
    )  # fmt: skip
    for day in (25, 20):
        happened(cell, 10, at=ago(day), job_id=job.id)
        named(cell, job, ago(day))
    skipped_to(cell, journal.PARTITION)
    happened(cell, 10, at=ago(2), job_id=job.id)
    named(cell, job, ago(2))
    Archiver(store()).run(now=timezone.now())
    happened(cell, 5, at=ago(0), job_id=job.id)
    named(cell, job, ago(0))
    return job


def named(cell: Cell, job: Job, at) -> None:
    """Write an event of the job at the time `at` that contains the names `ann` and `ubar`."""
    Cell.objects.filter(pk=cell.pk).update(revision=cell.revision + 1)
    cell.refresh_from_db()
    data = {"kind": "job.rejected", "tenant": "ubar", "name": "ubar", "code": "ann", "detail": "ann of ubar has none"}
    Event.objects.create(
        cell_id=cell.id, revision=cell.revision, seq=0, time=at, kind="job.rejected", version=1, job_id=job.id,
        actor="ann", data=data,
    )  # fmt: skip


def archived(table: str = "events") -> list[dict]:
    found = []
    for file in ArchiveFile.objects.filter(table=table, rows__gt=0).order_by("first"):
        assert sha256_of(store(), file.key) == file.sha256
        with store().local(file.key) as path:
            found += pq.read_table(path).to_pylist()
    return found


def erase(*args: str, capsys) -> dict[str, int]:
    call_command("erase", *args)
    return json.loads(capsys.readouterr().out)


def in_store(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet")}


def in_manifest() -> set[str]:
    return {file.key for file in ArchiveFile.objects.filter(rows__gt=0)}


def counted(texts: list[str]) -> list[int]:
    return sorted(Counter(texts).values())


def test_a_person_becomes_one_pseudonym_everywhere(job, folder, capsys) -> None:
    before, old = archived(), {file.key for file in ArchiveFile.objects.all()}
    planned = erase("--user", "ann", "--dry-run", capsys=capsys)
    assert planned == {"events": 2, "others": 1, "rows": 3, "files": 3, "checkpoints": 0}
    assert archived() == before
    assert erase("--user", "ann", capsys=capsys) == planned
    after = archived()
    pseudonym = Erasure.objects.get().pseudonym
    assert {row["actor"] for row in after if row["kind"] == "job.rejected"} == {pseudonym}
    assert counted([row["actor"] for row in after]) == counted([row["actor"] for row in before])
    assert [row["revision"] for row in after] == [row["revision"] for row in before]
    data = json.loads(next(row["data"] for row in after if row["kind"] == "job.rejected"))
    assert data["detail"] == f"{pseudonym} of ubar has none"
    assert data["code"] == "ann", "it is the code, and not the person"
    events = Event.objects.filter(kind="job.rejected")
    assert {event.actor for event in events} == {pseudonym} == {Job.objects.get().submitted_by}
    assert len({file.key for file in ArchiveFile.objects.all()} - old) == 3
    assert in_store(folder) == in_manifest()
    assert Erasure.objects.get().name == ""
    record = Record.objects.get(kind="history.erased")
    assert record.data == {"of": "person", "events": 2, "rows": 3, "files": 3}
    assert "ann" not in f"{record.actor} {record.data}"
    with pytest.raises(CommandError, match="Cannot erase person ann: there is no person 'ann'"):
        call_command("erase", "--user", "ann")


def test_a_tenant_becomes_one_pseudonym_also_in_rows_that_are_archived_later(job, folder, capsys) -> None:
    total = len(archived())
    done = erase("--tenant", "ubar", capsys=capsys)
    assert (done["rows"], done["files"]) == (total, 3)
    pseudonym = Erasure.objects.get().pseudonym
    archiver = Archiver(store())
    archiver.run(now=timezone.now() + dt.timedelta(days=1, hours=4))
    derive(store(), archiver)
    assert {row["user"] for row in archived("collection_events")} == {pseudonym}
    after = archived()
    assert len(after) == total + 11
    assert {row["user"] for row in after} == {pseudonym}
    for row in after:
        if row["kind"] == "job.rejected":
            data = json.loads(row["data"])
            assert (data["tenant"], data["name"], row["actor"]) == (pseudonym, "ubar", "ann")
    archiver.run(now=timezone.now() + dt.timedelta(days=32))
    assert not Job.objects.exists()
    assert {row["user"] for row in archived("ended_jobs")} == {pseudonym}
    Erasure.objects.update(ended_at=None, name="ubar")
    assert erase("--tenant", "ubar", "--dry-run", capsys=capsys)["rows"] == 0


def test_a_tenant_with_live_jobs_is_rejected(job, capsys) -> None:
    before = archived()
    Job.objects.update(state="running", ended_at=None)
    with pytest.raises(CommandError, match=r"tenant ubar has 1 live jobs.*kill the jobs"):
        call_command("erase", "--tenant", "ubar")
    assert archived() == before
    assert not Erasure.objects.exists()


class Stopped(Exception):
    pass


def test_an_erasure_that_is_interrupted_at_any_step_continues(job, folder, capsys) -> None:
    total = len(archived())
    for step in STEPS:

        def stop(now: str, step: str = step) -> None:
            if now == step:
                raise Stopped

        with pytest.raises(Stopped):
            Eraser(store(), at=stop).erase(IdentityKind.PERSON, "ann", principal=system("erase"), now=timezone.now())
        found = archived()
        assert len(found) == total, f"every file of the manifest is readable after the step {step}"
        assert not Record.objects.filter(kind="history.erased").exists()
    erase("--user", "ann", capsys=capsys)
    assert len({row["actor"] for row in archived() if row["kind"] == "job.rejected"}) == 1
    assert in_store(folder) == in_manifest()
    assert list((folder / ".drafts").iterdir()) == []
    assert Record.objects.filter(kind="history.erased").count() == 1


def test_the_archiver_and_an_erasure_do_not_run_together(job) -> None:
    other = connection.copy()
    with other.cursor() as cursor:
        for number in (job.cell_id, USAGE_LOCK):
            cursor.execute("SELECT pg_advisory_lock(hashtext('scheduling_archive'), %s)", [number])
            with pytest.raises(CommandError, match=r"the archiver( of cell cc)? is running; try again"):
                call_command("erase", "--user", "ann")
            cursor.execute("SELECT pg_advisory_unlock(hashtext('scheduling_archive'), %s)", [number])
    other.close()
    with archive_lock(job.cell_id) as own:
        assert own, "an erasure that was rejected leaves no lock"


def test_the_journal_stays_append_only(job) -> None:
    """PostgreSQL rejects deletions and changes of events. During an erasure it accepts only changes of names."""
    changes = ("actor = 'x', kind = 'x'", "revision = 77", "time = now()")
    rejected = ["UPDATE scheduling_event SET actor = 'x'"]
    rejected += ["DELETE FROM scheduling_event", *(f"UPDATE scheduling_event SET {change}" for change in changes)]
    for number, statement in enumerate(rejected):
        setting = "on" if number else "off"
        with pytest.raises(ProgrammingError, match="append-only"), transaction.atomic():
            execute(f"SET LOCAL scheduling.erasing = '{setting}'; {statement}")


def test_pools_name_the_pseudonym_of_an_erased_tenant(cell, machine, folder, capsys) -> None:
    rows.a_tenant("ubar")
    rows.a_tenant("ads")
    pool_write(
        principal=rows.ME,
        cell=cell,
        name="gpu",
        selector="rack=r1",
        tenants=["ubar", "ads"],
        dedicated=True,
        use="must",
    )
    checkpoint_write(cell.id)
    planned = erase("--tenant", "ubar", "--dry-run", capsys=capsys)
    assert (planned["events"], planned["others"], planned["checkpoints"]) == (1, 1, 1)
    assert erase("--tenant", "ubar", capsys=capsys) == planned
    pseudonym = Erasure.objects.get().pseudonym
    assert Pool.objects.get().tenants == ["ads", pseudonym]
    events = Event.objects.filter(kind="cell.pool").order_by("revision")
    assert [sorted(event.data["tenants"]) for event in events] == [["ads", pseudonym]] * 2
    assert validate(cell.id) == []
    (stored,) = checkpoints_of(cell.name)
    with stored.open() as file:
        _, tables = read(file)
    assert "ubar" not in str(tables["pools"].to_pylist())
    assert Pool.objects.get().dedicated, "no other tenant gets its machines"


def test_what_is_written_about_a_pool_during_an_erasure_has_no_name(cell, machine, folder) -> None:
    rows.a_tenant("ubar")
    pool_write(principal=rows.ME, cell=cell, name="gpu", tenants=["ubar"])

    def write(step: str) -> None:
        if step == "events":
            checkpoint_write(cell.id)

    Eraser(store(), at=write).erase(IdentityKind.TENANT, "ubar", principal=system("erase"), now=timezone.now())
    (stored,) = checkpoints_of(cell.name)
    with stored.open() as file:
        assert "ubar" not in str(read(file)[1]["pools"].to_pylist())


def test_checkpoints_contain_no_erased_tenant(cell, machine, ann, folder, capsys) -> None:
    world.submit(ann, cell, world.a_file())
    checkpoint_write(cell.id)
    Job.objects.update(state="dead", ended_at=timezone.now())
    assert erase("--tenant", "ubar", capsys=capsys)["checkpoints"] == 1
    (stored,) = checkpoints_of(cell.name)
    with stored.open() as file:
        _, tables = read(file)
    assert tables["jobs"]["tenant"].to_pylist() == [Erasure.objects.get().pseudonym]
    assert '"tenant":"ubar"' not in str(tables["specs"].to_pylist()).replace(" ", "")
