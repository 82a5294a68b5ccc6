"""Tests of lists of events: where PostgreSQL has no older events, a list continues in the archive."""

from __future__ import annotations

from itertools import chain

import pytest
from django.utils import timezone

from naming.api import changes
from quota.vocabulary.permissions import Role
from scheduling.history.archive import reading
from scheduling.history.archive.archiver import Archiver
from scheduling.history.archive.metrics import ArchiveCollector
from scheduling.history.archive.store import store
from scheduling.journal import journal
from scheduling.link.views.concerned_machines import concerned_machines
from scheduling.master.invariants import replay_journal
from scheduling.models import ArchiveFile, Event, Job
from tests.integration import rows, world
from tests.integration.past import ago, happened, skipped_to

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cell():
    return rows.a_cell()


@pytest.fixture
def job(cell, tenant, settings, tmp_path) -> Job:
    """Return a job with 20 events in PostgreSQL, and 80 in the archive among events of another job."""
    settings.BORG_ARCHIVE = (tmp_path / "archive").as_uri()
    job = Job.objects.create(
        cell=cell, tenant=tenant, name="web", priority=200, band="production", requested=[], created_at=ago(30)
    )
    Job.objects.filter(pk=job.pk).update(created_at=ago(30))
    for day in (25, 24, 20):
        happened(cell, 10, at=ago(day), job_id=job.id)
        happened(cell, 10, at=ago(day), job_id=job.id + 1)
    happened(cell, 10, at=ago(18), job_id=job.id)
    skipped_to(cell, journal.PARTITION)
    happened(cell, 10, at=ago(1), job_id=job.id)
    job.places = list(Event.objects.filter(job_id=job.id).order_by("-revision", "-seq").values_list("revision", "seq"))
    job.all_places = list(Event.objects.order_by("-revision", "-seq").values_list("revision", "seq"))
    Archiver(store()).run(now=timezone.now())
    assert Event.objects.count() == 20
    job.refresh_from_db()
    return job


def pages(client, path: str, limit: int) -> list[list[tuple[int, int]]]:
    """Read a list to its last page, and return (revision, seq) of the events of each page."""
    found = []
    url = f"/api/v1/cells/cc/{path}?limit={limit}"
    while url:
        assert len(found) < 50
        answer = client.get(url)
        assert answer.status_code == 200, answer.content
        found.append([(one["revision"], one["seq"]) for one in answer.json()["results"]])
        url = answer.json()["next"]
    return found


def joined(pages: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    return list(chain.from_iterable(pages))


@pytest.mark.parametrize("limit", [7, 20, 1000])
def test_rest_lists_the_events_of_a_job_at_any_age(job, tenant, limit, monkeypatch) -> None:
    client = world.bearer(world.a_user("ann", tenant=tenant, role=Role.VIEWER), tenant=tenant)
    found = pages(client, "jobs/ubar/web/events/", limit)
    assert joined(found) == job.places
    assert {len(page) for page in found[:-1]} <= {limit}


def test_a_search_that_takes_too_long_continues_on_the_next_page(job, tenant, monkeypatch) -> None:
    monkeypatch.setattr(reading, "MOST_GROUPS", 1)
    client = world.bearer(world.a_user("ann", tenant=tenant), tenant=tenant)
    found = pages(client, "jobs/ubar/web/events/", 1000)
    assert joined(found) == job.places
    assert len(found) == 4


def test_the_list_of_a_cell_shows_each_caller_what_they_may_see(job, tenant) -> None:
    sre = world.bearer(world.a_user("sre", sre=True))
    assert joined(pages(sre, "events/", 30)) == job.all_places
    ann = world.bearer(world.a_user("ann", tenant=tenant), tenant=tenant)
    assert joined(pages(ann, "events/", 30)) == job.places
    stranger = world.bearer(world.a_user("eve", tenant=rows.a_tenant("other")))
    assert joined(pages(stranger, "events/", 30)) == []


def test_the_page_of_a_job_goes_back_and_forth_across_both(job, tenant, client) -> None:
    client.force_login(world.a_user("ann", tenant=tenant))
    url = f"/jobs/cc/ubar/web/events/?uid={job.uid}"
    seen, back = [], []
    query = ""
    while len(seen) < 1000:
        context = client.get(url + query).context
        seen += [(one.event.revision, one.event.seq) for one in context["events"]]
        if context["paging"].after is None:
            break
        query = f"&before={context['paging'].after['before']}"
    assert seen == job.places
    query = f"&after={seen[-1][0]}.{seen[-1][1]}"
    while query and len(back) < 1000:
        context = client.get(url + query).context
        back = [(one.event.revision, one.event.seq) for one in context["events"]] + back
        newer = context["paging"].before
        query = f"&after={newer['after']}" if newer else ""
    assert back == job.places[:-1]
    kinds = client.get(f"{url}&kind=task.placed").context
    assert (kinds["events"], kinds["paging"].after) == ([], None)


def test_an_archive_that_is_away_is_reported_and_recent_events_are_not_affected(job, tenant, settings) -> None:
    client = world.bearer(world.a_user("ann", tenant=tenant), tenant=tenant)
    with store().local(ArchiveFile.objects.latest("first").key) as path:
        pass
    for file in path.parents[1].rglob("*.parquet"):
        file.write_bytes(b"nothing")
    answer = client.get("/api/v1/cells/cc/jobs/ubar/web/events/?limit=100")
    assert (answer.status_code, answer.json()["code"]) == (503, "archive-away")
    assert len(client.get("/api/v1/cells/cc/jobs/ubar/web/events/?limit=10").json()["results"]) == 10


def test_readers_that_are_behind_the_floor_read_the_rows_again(job) -> None:
    """A reader that needs changes which are only in the archive gets None, so that it reads all rows again."""
    cell = job.cell
    assert concerned_machines(cell.id, journal.PARTITION + 2, newest=cell.revision) is not None
    assert concerned_machines(cell.id, 5, newest=cell.revision) is None
    assert changes.changed_jobs(cell.id, after=journal.PARTITION - 1, until=cell.revision) == set()
    assert changes.changed_jobs(cell.id, after=journal.PARTITION - 5, until=cell.revision) is None
    assert changes.changed_after(cell.id, [], [], after=5)
    assert not changes.changed_after(cell.id, [], [], after=journal.PARTITION)
    assert replay_journal(cell.id) is None


def test_metrics_show_how_far_the_archive_is(job) -> None:
    found = {
        (sample.name, sample.labels.get("table")): sample.value
        for family in ArchiveCollector().collect()
        for sample in family.samples
    }
    assert found["borg_archive_rows", "events"] == 160
    assert found["borg_archive_lag_seconds", "events"] == 0
    ArchiveFile.objects.filter(table="events").latest("first").delete()
    (lag, *_) = ArchiveCollector().collect()
    (value,) = [sample.value for sample in lag.samples if sample.labels == {"cell": "cc", "table": "events"}]
    assert 0 < value <= 86_400
