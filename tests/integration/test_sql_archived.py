"""SQL over rows of which some are in the archive and some in PostgreSQL."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
import pytest
from django.db import connection
from django.utils import timezone

from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal, Role, Scope
from scheduling.history.archive import ranges
from scheduling.history.archive.archiver import Archiver
from scheduling.history.archive.store import store
from scheduling.history.infrastore import asking
from scheduling.models import ArchiveFile, Cell
from tests.integration import rows, world
from tests.integration.past import used

# The archiver reads over connections of its own, so the rows have to be committed.
pytestmark = pytest.mark.django_db(transaction=True)

HISTORY = """
    SELECT 'instances' AS part, type AS kind, user, count(*) AS n FROM instance_events WHERE time >= :since
    GROUP BY type, user
    UNION ALL SELECT 'machines', type, max(user), count(*) FROM machine_events GROUP BY type
    UNION ALL SELECT 'events', kind, user, count(*) FROM events GROUP BY kind, user
    UNION ALL SELECT 'usage', '', user, count(*) FROM instance_usage GROUP BY user
    ORDER BY ALL"""


@pytest.fixture(autouse=True)
def archive_of_this_test(settings, tmp_path):
    settings.BORG_ARCHIVE, settings.BORG_USAGE_KEEP_HOURS = (tmp_path / "archive").as_uri(), 100
    yield
    with connection.cursor() as cursor:
        for hour in ranges.usage_windows.stored_hours():
            cursor.execute(f"DROP TABLE {ranges.usage_windows.partition(hour)}")


def ask(who: Principal, cell: Cell, query: str) -> list[Any]:
    found: list[Any] = msgspec.json.decode(asking.ask(principal=who, cell=cell, query=query, now=timezone.now()).body)
    return found


def test_rows_of_the_archive_and_of_postgresql_are_one_history(cell, machine, tenant, ann, tmp_path) -> None:
    other = rows.a_tenant("other")
    rows.grant(other, cell, "production")
    bob = world.principal("bob", tenant=other, role=Role.OPERATOR)
    sre = Principal(name="sre", sre=True, scopes=frozenset({Scope.READ}))
    job = world.submit(ann, cell, world.a_file())
    world.submit(bob, cell, world.a_file(name="theirs", tenant="other"), tenant="other")
    used(cell, 3, at=timezone.now().replace(second=0, microsecond=0) - dt.timedelta(minutes=5), job_id=job.id)
    before = [ask(who, cell, HISTORY) for who in (sre, ann, bob)]
    Archiver(store()).run(now=timezone.now() + dt.timedelta(days=2))
    assert set(ArchiveFile.objects.filter(rows__gt=0).values_list("table", flat=True)) == {"events", "instance_usage"}
    assert [ask(who, cell, HISTORY) for who in (sre, ann, bob)] == before
    assert ["events", "job.submitted", "ubar", 1] in before[1]

    world.submit(ann, cell, world.a_file(name="later"))
    count = "SELECT count(*) AS n FROM events WHERE kind = 'job.submitted'"
    assert ask(sre, cell, count) == [[3]]


def test_a_missing_file_is_an_error_and_not_fewer_rows(cell, tenant, ann, tmp_path) -> None:
    world.submit(ann, cell, world.a_file())
    Archiver(store()).run(now=timezone.now() + dt.timedelta(days=2))
    (tmp_path / "archive" / ArchiveFile.objects.get(table="events", rows__gt=0).key).unlink()
    with pytest.raises(Rejected, match="of the archive cannot be read") as caught:
        ask(ann, cell, "SELECT count(*) FROM events")
    assert (caught.value.code, caught.value.status) == ("archive-away", 503)
