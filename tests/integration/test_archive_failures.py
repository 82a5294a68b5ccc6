"""Tests of a failing archiver: it is killed at every step, its store fails or returns wrong bytes, or its disk is full.

No event is lost or archived twice.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from pyarrow import parquet as pq

from scheduling.history.archive.archiver import ArchiveFailed, Archiver
from scheduling.history.archive.store import store
from scheduling.journal import journal
from scheduling.models import ArchiveFile, Cell, Event
from scheduling.storage.files import StoreAway
from tests.integration import rows
from tests.integration.past import ago, happened, skipped_to
from tests.integration.portal_server import database_url

pytestmark = pytest.mark.django_db(transaction=True)
STEPS = ["began", "written", "verified", "stored", "checked", "recorded", "marked", "detached", "dropped", "deleted"]
# This program is an archiver in a process of its own that kills itself at a step.
_KILLED = """
import os, signal, sys, django
django.setup()
from django.utils import timezone
from scheduling.history.archive.archiver import Archiver
from scheduling.history.archive.store import store
for step in sys.argv[1:]:
    if os.fork() == 0:
        Archiver(store(), at=lambda now: os.kill(os.getpid(), signal.SIGKILL) if now == step else None).run(
            now=timezone.now()
        )
        os._exit(0)
    print(step, os.WTERMSIG(os.wait()[1]), flush=True)
"""


@pytest.fixture(autouse=True)
def folder(settings, tmp_path) -> Path:
    settings.BORG_ARCHIVE = (tmp_path / "archive").as_uri()
    return tmp_path / "archive"


@pytest.fixture
def cell():
    return rows.a_cell()


def run() -> None:
    Archiver(store()).run(now=timezone.now())


def a_past(cell: Cell) -> list[tuple[int, int]]:
    """Write events of several days, some of them old enough to be dropped. Return (revision, seq) of each event."""
    happened(cell, 20, at=ago(20))
    happened(cell, 20, at=ago(19))
    skipped_to(cell, journal.PARTITION)
    happened(cell, 20, at=ago(16))
    skipped_to(cell, 2 * journal.PARTITION)
    happened(cell, 20, at=ago(2))
    return list(Event.objects.order_by("revision", "seq").values_list("revision", "seq"))


def archived(cell: Cell) -> list[tuple[int, int]]:
    """Return (revision, seq) of each archived event of the cell, from the files that `ArchiveFile` lists."""
    found: list[tuple[int, int]] = []
    for file in ArchiveFile.objects.filter(cell=cell, table="events").exclude(state="deleted").order_by("first"):
        with store().local(file.key) as path:
            table = pq.read_table(path)
        found += zip(table["revision"].to_pylist(), table["seq"].to_pylist(), strict=True)
    return found


def in_postgres() -> set[tuple[int, int]]:
    return set(Event.objects.values_list("revision", "seq"))


def test_an_archiver_that_is_killed_at_any_step_loses_and_doubles_nothing(cell, folder, settings) -> None:
    everything = a_past(cell)
    Cell.objects.filter(pk=cell.pk).update(settings={"archive_keep_days": 18.0})
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "portal.settings.test",
        "BORG_DATABASE_URL": database_url(),
        "BORG_ARCHIVE": settings.BORG_ARCHIVE,
    }
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, *STEPS], env=environment, capture_output=True, text=True, check=True
    )
    killed = dict(line.split() for line in done.stdout.splitlines() if line.count(" ") == 1)
    assert killed == dict.fromkeys(STEPS, str(int(signal.SIGKILL)))
    run()
    assert archived(cell) == everything[80:], "the first two days have expired"
    assert in_postgres() == {place for place in everything if place[0] > 2 * journal.PARTITION}
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet")) == sorted(
        file.key for file in ArchiveFile.objects.filter(rows__gt=0).exclude(state="deleted")
    )
    assert list((folder / ".drafts").iterdir()) == [], "no draft is left over"
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname LIKE 'scheduling_event\\_%'")
        assert cursor.fetchone() == (len(partitions()),), "no table is left over"


def partitions() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT name FROM scheduling_event_partition ORDER BY cell_id, first")
        return [name for (name,) in cursor.fetchall()]


def test_a_detachment_that_was_interrupted_is_finished(cell) -> None:
    """If PostgreSQL left a partition `detach pending`, the next run detaches it, and no event is lost."""
    everything = a_past(cell)
    run_until_marked = Archiver(store(), at=lambda step: step == "marked" and pytest.fail("stop"))
    with pytest.raises(pytest.fail.Exception):
        run_until_marked.run(now=timezone.now())
    name = partitions()[0]
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE pg_inherits SET inhdetachpending = true WHERE inhrelid = %s::regclass", [name]
        )  # the first step of DETACH CONCURRENTLY does this
    run()
    assert name not in partitions()
    assert archived(cell) == everything


def test_a_file_that_was_damaged_is_written_again_before_its_rows_are_dropped(cell, folder) -> None:
    everything = a_past(cell)
    Cell.objects.filter(pk=cell.pk).update(settings={"journal_keep_days": 30.0})
    run()
    assert in_postgres() == set(everything)
    file = ArchiveFile.objects.filter(table="events").earliest("first")
    path = folder / file.key
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    Cell.objects.filter(pk=cell.pk).update(settings={})
    run()
    assert len(in_postgres()) == 40
    assert archived(cell) == everything


def test_a_store_that_is_away_or_lies_keeps_the_rows_in_postgresql(cell, folder, settings, tmp_path) -> None:
    everything = a_past(cell)

    class Lying:
        """A store that loses the last byte of each file that it receives."""

        def __init__(self) -> None:
            self.files = store()

        def __getattr__(self, name: str) -> object:
            return getattr(self.files, name)

        def put(self, key: str, draft: Path) -> None:
            os.truncate(draft, draft.stat().st_size - 1)
            self.files.put(key, draft)

    with pytest.raises(ArchiveFailed, match=r"cell cc: .*damaged or missing; check the store of BORG_ARCHIVE"):
        Archiver(Lying()).run(now=timezone.now())  # type: ignore[arg-type]
    assert ArchiveFile.objects.count() == 0
    (tmp_path / "file").write_text("")
    settings.BORG_ARCHIVE = (tmp_path / "file" / "archive").as_uri()
    with pytest.raises((ArchiveFailed, StoreAway), match="check the folder of BORG_ARCHIVE"):
        run()
    assert in_postgres() == set(everything)
    settings.BORG_ARCHIVE = folder.as_uri()
    run()
    assert archived(cell) == everything


class Failing:
    """A store whose operation number `number` fails, either before or after the operation has its effect."""

    OPERATIONS = ("spool", "put", "read", "listing", "delete")

    def __init__(self, number: int, *, after: bool) -> None:
        self.files, self.left, self.after = store(), number, after

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.files, name)
        if name not in self.OPERATIONS:
            return method

        def operation(*args: Any, **options: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self.after:
                raise StoreAway("the store is away")
            found = method(*args, **options)
            if self.left == 0:
                raise StoreAway("the store does not answer")
            return found

        return operation


@pytest.mark.parametrize("after", [False, True])
def test_a_store_that_fails_at_any_operation_loses_and_doubles_nothing(cell, folder, after) -> None:
    everything = a_past(cell)
    Cell.objects.filter(pk=cell.pk).update(settings={"archive_keep_days": 18.0})
    failed, number = 0, 1
    while True:
        failing = Failing(number, after=after)
        try:
            Archiver(failing).run(now=timezone.now())  # type: ignore[arg-type]
        except ArchiveFailed:
            failed += 1
        kept = archived(cell)
        assert kept == sorted(set(kept)), "no event is in two files"
        expired = ArchiveFile.objects.filter(cell=cell, state="deleted")
        ranges = [range(file.first, file.last + 1) for file in expired]
        lost = set(everything) - set(kept) - in_postgres()
        assert all(any(revision in one for one in ranges) for revision, _ in lost), "only expired events are gone"
        if failing.left > 0:  # the run ended before the operation that should fail
            break
        number += 1
    assert failed >= 5
    assert archived(cell) == everything[80:]
    assert in_postgres() == {place for place in everything if place[0] > 2 * journal.PARTITION}


def test_a_full_disk_keeps_the_rows_in_postgresql(cell, folder) -> None:
    everything = a_past(cell)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    try:
        with pytest.raises(ArchiveFailed, match=r"cannot write cc/events/.*check the disk"):
            run()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert ArchiveFile.objects.count() == 0
    assert [path for path in folder.rglob("*") if path.is_file()] == [], "no draft is left"
    assert in_postgres() == set(everything)
    run()
    assert archived(cell) == everything
