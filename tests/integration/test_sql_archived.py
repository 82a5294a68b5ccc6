"""Tests of SQL over rows of which some are in the archive and some in PostgreSQL."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
import pytest
from django.db import connection
from django.db.models import Sum
from django.utils import timezone

from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal, Role, Scope
from scheduling.history.archive import retention
from scheduling.history.archive.archiver import ArchiveFailed, Archiver
from scheduling.history.archive.store import store
from scheduling.history.infrastore import asking
from scheduling.history.infrastore.derived_tables import derive
from scheduling.journal import journal
from scheduling.journal.row_events import machine_set_event
from scheduling.models import ArchiveFile, Cell, Machine, Task
from tests.integration import rows, world
from tests.integration.past import used

# The archiver reads over connections of its own, so the rows have to be committed.
pytestmark = pytest.mark.django_db(transaction=True)

HISTORY = """
    SELECT 'instances' AS part, type AS kind, user, count(*) AS n FROM instance_events WHERE time >= :since
    GROUP BY type, user
    UNION ALL SELECT 'machines', type, max(user), count(*) FROM machine_events GROUP BY type
    UNION ALL SELECT 'attributes', name, value, count(*) FROM machine_attributes GROUP BY name, value
    UNION ALL SELECT 'events', kind, user, count(*) FROM events GROUP BY kind, user
    UNION ALL SELECT 'usage', '', user, count(*) FROM instance_usage GROUP BY user
    ORDER BY ALL"""


@pytest.fixture(autouse=True)
def archive_of_this_test(settings, tmp_path):
    settings.BORG_ARCHIVE, settings.BORG_USAGE_KEEP_HOURS = (tmp_path / "archive").as_uri(), 100
    yield
    with connection.cursor() as cursor:
        for hour in retention.usage_windows.stored_hours():
            cursor.execute(f"DROP TABLE {retention.usage_windows.partition(hour)}")


def ask(who: Principal, cell: Cell, query: str) -> list[Any]:
    found: list[Any] = msgspec.json.decode(asking.ask(principal=who, cell=cell, query=query, now=timezone.now()).body)
    return found


def files() -> dict[str, int]:
    """Return the number of rows in the archive, by table."""
    found = ArchiveFile.objects.filter(rows__gt=0).values("table").annotate(n=Sum("rows"))
    return {row["table"]: row["n"] for row in found}


def set_attributes(cell: Cell, machine: Machine, **attributes: str) -> None:
    with journal.write(cell.id, rows.ME) as entry:
        machine.attributes = attributes
        machine.save()
        entry.append(machine_set_event(machine))


def test_rows_of_the_archive_and_of_postgresql_are_one_history(cell, machine, tenant, ann, tmp_path) -> None:
    """A query returns the same rows before archiving, after it, and with tables derived from archived events."""
    other = rows.a_tenant("other")
    rows.grant(other, cell, "production")
    bob = world.principal("bob", tenant=other, role=Role.OPERATOR)
    people = [Principal(name="sre", sre=True, scopes=frozenset({Scope.READ})), ann, bob]
    set_attributes(cell, machine, flash="true", old="yes")
    job = world.submit(ann, cell, world.a_file())
    world.submit(bob, cell, world.a_file(name="theirs", tenant="other"), tenant="other")
    used(cell, 3, at=timezone.now().replace(second=0, microsecond=0) - dt.timedelta(minutes=5), job_id=job.id)
    before = [ask(who, cell, HISTORY) for who in people]
    archiver = Archiver(store())
    archiver.run(now=timezone.now() + dt.timedelta(days=2))
    assert set(files()) == {"events", "instance_usage"}
    assert [ask(who, cell, HISTORY) for who in people] == before
    assert ["events", "job.submitted", "ubar", 1] in before[1]

    derive(store(), archiver)
    assert files().keys() - {"events", "instance_usage"} == {
        *("collection_events", "instance_events", "machine_events", "machine_attributes")
    }
    assert [ask(who, cell, HISTORY) for who in people] == before
    written = archiver.done.files
    derive(store(), archiver)
    assert archiver.done.files == written
    ArchiveFile.objects.filter(table="machine_events").delete()
    derive(store(), archiver)
    assert archiver.done.files == written + 1
    assert [ask(who, cell, HISTORY) for who in people] == before

    world.submit(ann, cell, world.a_file(name="later"))
    set_attributes(cell, machine, flash="true")
    sre = people[0]
    assert ask(sre, cell, "SELECT count(*) AS n FROM events WHERE kind = 'job.submitted'") == [[3]]
    assert ask(sre, cell, "SELECT count(*) AS n FROM collection_events WHERE type = 'submit'") == [[3]]
    types = "SELECT type FROM machine_events ORDER BY revision"
    assert ask(sre, cell, types) == [["add"], ["update"], ["update"]]
    assert ask(ann, cell, types) == [["add"], ["update"], ["update"]]
    gone = "SELECT name FROM machine_attributes WHERE deleted"
    assert [ask(who, cell, gone) for who in people] == [[["old"]]] * 3


def test_a_query_reads_only_the_derived_files_of_its_table(cell, tenant, ann, tmp_path) -> None:
    world.submit(ann, cell, world.a_file())
    archiver = Archiver(store())
    archiver.run(now=timezone.now() + dt.timedelta(days=2))
    derive(store(), archiver)
    (file,) = ArchiveFile.objects.filter(table="events", rows__gt=0)
    assert set(ArchiveFile.objects.filter(table="instance_events").values_list("first", "last", "state")) == {
        (file.first, file.last, "sole")
    }
    (tmp_path / "archive" / file.key).unlink()
    count = "SELECT count(*) FROM instance_events WHERE type = 'submit'"
    assert ask(ann, cell, count) == [[Task.objects.count()]]
    with pytest.raises(Rejected, match="of the archive cannot be read"):
        ask(ann, cell, "SELECT count(*) FROM events")
    ArchiveFile.objects.filter(table="instance_events").delete()
    with pytest.raises(ArchiveFailed, match="is missing in the archive"):
        derive(store(), archiver)


def test_a_missing_file_is_an_error_and_not_fewer_rows(cell, tenant, ann, tmp_path) -> None:
    world.submit(ann, cell, world.a_file())
    Archiver(store()).run(now=timezone.now() + dt.timedelta(days=2))
    (tmp_path / "archive" / ArchiveFile.objects.get(table="events", rows__gt=0).key).unlink()
    with pytest.raises(Rejected, match="of the archive cannot be read") as caught:
        ask(ann, cell, "SELECT count(*) FROM events")
    assert (caught.value.code, caught.value.status) == ("archive-away", 503)
