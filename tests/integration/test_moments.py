"""Tests of past moments of a cell and of chains of causes, on real PostgreSQL: what pages show, and to whom."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from django.test import Client
from django.utils import timezone

from quota.models import Tenant
from quota.vocabulary.errors import Forbidden, Rejected
from quota.vocabulary.permissions import Principal, Role, Scope, system
from scheduling.core.cell.state import CellState
from scheduling.history.archive.archiver import Archiver
from scheduling.history.archive.store import store
from scheduling.history.causes import chains
from scheduling.history.checkpoints.event_batches import numbers_between
from scheduling.history.checkpoints.file import read_header
from scheduling.history.checkpoints.folder import open_checkpoint
from scheduling.history.checkpoints.saving import checkpoint_write, due
from scheduling.history.checkpoints.state_at_moment import state_at
from scheduling.history.moments import answering, kept_states
from scheduling.history.moments import process as process_module
from scheduling.history.moments.asking import past_moment
from scheduling.history.moments.messages import MomentRequest
from scheduling.history.moments.process import MomentProcess
from scheduling.journal import journal
from scheduling.machines.evacuation import tasks_drain
from scheduling.machines.machines import machines_drain
from scheduling.models import ArchivedJob, ArchiveFile, Cell, Event, Job
from tests.integration import portal_world, rows, world
from tests.integration.past import ago, happened, skipped_to
from tests.integration.portal_server import database_url
from tests.integration.portal_world import signed_in
from tests.integration.test_why import preempted

pytestmark = pytest.mark.django_db
PAGE = "/cells/cc/at/"


@pytest.fixture(autouse=True)
def home(settings, tmp_path: Path) -> Path:
    settings.BORG_HOME = tmp_path
    return tmp_path


def fresh(cell: Cell) -> Cell:
    return Cell.objects.get(pk=cell.pk)


def time_of(cell: Cell, revision: int) -> dt.datetime:
    return Event.objects.filter(cell_id=cell.id, revision=revision).order_by("seq")[0].time


def shown(client: Client, **parameters: object) -> str:
    answer = client.get(PAGE, parameters)
    assert answer.status_code == 200, answer.text
    return answer.text


@pytest.fixture
def people():
    made = portal_world.make()
    Cell.objects.filter(pk=made.cell.pk).update(created_at=time_of(made.cell, 1) - dt.timedelta(hours=1))
    return made


def test_a_page_shows_each_moment_and_steps_to_its_neighbours(people) -> None:
    cell = fresh(people.cell)
    placed = Event.objects.get(kind="task.placed")
    before = placed.time - dt.timedelta(microseconds=1)
    viewer = signed_in("viewer")
    now, past = shown(viewer), shown(viewer, at=before.isoformat())
    assert f"at revision {cell.revision}." in now
    assert f"at revision {placed.revision - 1}." in past
    task = f'href="/jobs/cc/ubar/jfoo/0/?uid={people.job.uid.hex}"'
    assert task in past
    assert task in now
    assert "of 16" not in past.partition("<h2>Tasks</h2>")[2], "no task had a machine"
    assert past.count(">pending</span>") == 3
    assert now.count(">running</span>") == 1
    assert placed.time.isoformat().replace("+", "%2B").replace(":", "%3A") in past, "the link to the next event"
    redirect = viewer.get(PAGE, {"revision": placed.revision, "task_state": "running"})
    assert redirect.status_code == 302
    answer = viewer.get(PAGE + redirect.url)
    assert f"at revision {placed.revision}." in answer.text
    assert f'href="/cells/cc/events/{placed.revision}.{placed.seq}/"' in answer.text
    for wrong in ("x", "0", cell.revision + 1):
        assert viewer.get(PAGE, {"revision": wrong}).status_code == 422
    assert "is not a time" in shown(viewer, at="yesterday")


def test_the_reasons_of_pending_tasks_are_computed_and_said_to_be(people) -> None:
    rows.a_job(people.cell, people.tenant, "large", limit=(10**7, 2**26, 2**26, 0, 0, 1))
    page = shown(signed_in("viewer"))
    assert "3 tasks can&#x27;t be placed on any of 1 machine" in page
    assert "The reasons were not recorded." in page
    assert "The next scheduling pass would place 2 of these tasks." in page


def test_jobs_of_other_tenants_are_only_counted(people) -> None:
    rows.a_job(people.cell, Tenant.objects.get(name="other"), "hush", limit=(10**7, 2**26, 2**26, 0, 0, 1))
    page = shown(signed_in("viewer"))
    assert "hush" not in page
    assert "1 pending job of another team is counted, but not listed." in page
    page = shown(signed_in("stranger"))
    assert "jfoo" not in page
    assert "hush" in page
    for path in (PAGE, "/admin/moments/?cell=cc"):
        page = signed_in("sre").get(path).text
        assert "hush" in page
        assert "jfoo" in page
    assert signed_in("viewer").get("/admin/moments/").status_code == 302


def test_a_moment_of_a_token_of_one_tenant_has_the_jobs_of_this_tenant(people) -> None:
    rows.a_job(people.cell, Tenant.objects.get(name="other"), "hush")
    both = world.principal("viewer", tenant=Tenant.objects.get(name="other"), role=Role.VIEWER)

    def jobs(principal: Principal) -> set[str]:
        return {one.job for one in past_moment(principal=principal, cell=people.cell).picture.tasks}

    assert jobs(both) == {"jfoo", "hush"}
    assert jobs(replace(both, tenant="other")) == {"hush"}
    assert jobs(replace(system("x"), tenant="ubar")) == {"jfoo"}
    assert jobs(replace(both, scopes=frozenset({Scope.READ}))) == {"jfoo", "hush"}
    with pytest.raises(Forbidden):
        jobs(replace(both, scopes=frozenset()))


@pytest.mark.django_db(transaction=True)
def test_kept_states_equal_rebuilt_ones(people, monkeypatch) -> None:
    cell, machine = people.cell, people.machine
    monkeypatch.setattr(kept_states, "BACK", 3)
    for number in range(4):
        rows.a_job(cell, people.tenant, f"job{number}")
    checkpoint_write(cell.id)
    for number in range(6):
        portal_world.place(Job.objects.get(name="job0" if number < 3 else "job1"), number % 3, machine, port=21000)
    cell = fresh(cell)
    kept = kept_states.StateKeeper()
    last = cell.revision
    for revision in (last, last - 1, last - 2, last - 1, last, 3, last - 5, last - 4, 0, last):
        state = kept.state(cell, revision)
        assert state.revision == revision
        assert state.diff(state_at(cell, revision=revision)) == []
        assert len(kept._kept) <= kept_states.MOST_STATES
    with pytest.raises(Rejected, match="not a revision"):
        kept.state(cell, last + 1)
    assert isinstance(kept.state(cell, last), CellState)


@pytest.mark.django_db(transaction=True)
def test_a_checkpoint_is_due_after_many_events(people) -> None:
    cell = people.cell
    checkpoint_write(cell.id)
    Cell.objects.filter(pk=cell.pk).update(settings={"checkpoint_events": 3})
    now = time_of(cell, 1)
    rows.a_machine(cell, "m7")
    assert not due(fresh(cell), now=now)
    rows.a_machine(cell, "m8")
    rows.a_machine(cell, "m9")
    assert due(fresh(cell), now=now)
    newest = checkpoint_write(cell.id)
    assert not due(fresh(cell), now=now)
    with open_checkpoint(newest) as file:
        assert read_header(file).events == 3


@pytest.mark.django_db(transaction=True)
def test_a_process_of_its_own_rebuilds_states(people, monkeypatch) -> None:
    monkeypatch.setenv("BORG_DATABASE_URL", database_url())
    monkeypatch.setattr(process_module, "LONGEST_S", 200.0)
    process = MomentProcess()
    try:
        moment = process.moment(MomentRequest(cell_id=people.cell.id, tenants=("ubar",)))
        assert moment.picture.revision == fresh(people.cell).revision
        assert {one.job for one in moment.picture.tasks} == {"jfoo"}
        with pytest.raises(Rejected, match="not a revision") as wrong:
            process.moment(MomentRequest(cell_id=people.cell.id, revision=10**6))
        assert wrong.value.fields.keys() == {"revision"}
        process._process.kill()  # as after a long time without requests
        process._process.wait(10)
        assert process.moment(MomentRequest(cell_id=people.cell.id, revision=2)).picture.revision == 2
    finally:
        process.close()


def test_the_process_of_moments_imports_no_pages() -> None:
    imported = "import sys; from scheduling.history.moments import child; child.load(); print(*sys.modules)"
    modules = subprocess.check_output([sys.executable, "-c", imported], text=True).split()
    assert "scheduling.core.pass_" in modules
    unneeded = {"allauth", "portal.sigma", "redis", "rest_framework", "scheduling.admin", "unfold"}
    assert unneeded.isdisjoint(modules), "each import delays the first answer"


def test_a_request_that_ends_the_process_is_not_repeated(monkeypatch) -> None:
    started = []

    def ends_at_a_request() -> subprocess.Popen[bytes]:
        command = ["sh", "-c", "read -r line"]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0))
        return started[-1]

    monkeypatch.setattr(process_module, "_started", ends_at_a_request)
    monkeypatch.setattr(process_module, "LONGEST_WAIT_S", 0.01)
    monkeypatch.setattr(process_module, "_write_to", lambda process, _: process.stdin.write(b"\n"))
    process = MomentProcess()
    with pytest.raises(Rejected, match="process that rebuilds past states has ended"):
        process.moment(MomentRequest(cell_id=1))
    assert len(started) == 1
    with process._lock, pytest.raises(Rejected, match="other past states are being rebuilt"):
        process.moment(MomentRequest(cell_id=1))


@pytest.fixture
def cell() -> Cell:
    return rows.a_cell()


@pytest.fixture
def chain(cell) -> tuple[Job, Job]:
    victim, urgent = preempted(cell)
    world.a_user("ann", tenant=victim.tenant)
    world.a_user("sre", sre=True)
    return victim, urgent


@pytest.mark.django_db(transaction=True)
def test_moments_and_chains_before_the_journal_know_the_archive() -> None:
    cell = Cell.objects.create(name="cc")
    happened(cell, 4, at=ago(20))
    skipped_to(cell, journal.PARTITION + 5)
    happened(cell, 2, at=ago(1))
    before = fresh(cell)
    Archiver(store()).run(now=timezone.now())
    cell, second = fresh(cell), dt.timedelta(seconds=1)
    assert cell.journal_floor > 4
    for row in (before, cell):
        numbers = numbers_between(row, after=1, upto=cell.revision - 1)
        assert numbers == {"task.gone": 2 * 4}, "the row may be older than the files of the archive"
    times = [ago(20) + number * second for number in range(4)]
    assert answering._neighbours(cell, 0) == (None, None, times[0])
    assert answering._neighbours(cell, 2) == (times[1], times[0], times[2])
    assert answering._neighbours(cell, 4) == (times[3], times[2], ago(1))
    assert answering._neighbours(cell, cell.revision - 1) == (ago(1), times[3], ago(1) + second)
    world.a_user("sre", sre=True)
    page = signed_in("sre").get("/cells/cc/events/2.0/").text
    assert "The cause of this event is not in PostgreSQL. It may be in the archive." in page
    assert "Such events may be in the archive." in page


def test_a_tenant_sees_the_names_of_its_archived_jobs(people) -> None:
    now = timezone.now()
    file = ArchiveFile.objects.create(
        cell=people.cell, table="jobs", day=now, first=1, last=1, rows=1, bytes=1, schema_version=1, written_at=now
    )
    for number, tenant in ((901, people.tenant), (902, Tenant.objects.get(name="other"))):
        ArchivedJob.objects.create(
            id=number,
            uid=people.job.uid,
            cell=people.cell,
            tenant=tenant,
            name="old",
            priority=200,
            latency_sensitive=True,
            labels={},
            created_at=now,
            ended_at=now,
            file=file,
        )
    events = [Event(kind="task.gone", job_id=number) for number in (901, 902)]
    viewer = world.principal("viewer", tenant=people.tenant, role=Role.VIEWER)
    names = chains._Names(viewer, people.cell, events)
    own, hidden = (names.linked(event, None) for event in events)
    assert (own.job, own.band, own.hidden) == ("ubar/old", "production", False)
    assert (hidden.job, hidden.band, hidden.hidden) == ("", "production", True)


def event_page(user: str, kind: str, job: Job | None = None, **more: object) -> str:
    found = Event.objects.filter(kind=kind, **({"job_id": job.id} if job else {}), **more).latest("revision", "seq")
    answer = signed_in(user).get(f"/cells/cc/events/{found.revision}.{found.seq}/")
    assert answer.status_code == 200, answer.text
    return answer.text


def test_an_eviction_shows_who_preempted_and_what_followed(chain) -> None:
    victim, urgent = chain
    portal_world.place(victim, 0, victim.cell.machines.get(hostname="m2"))
    page = event_page("sre", "task.evicted", victim)
    causes, _, effects = page.partition("<h2>Events that this event caused</h2>")
    assert "placement of the task that preempted this task" in causes
    assert "other/urgent" in causes
    assert "job urgent was submitted with priority 200" in causes, "the cause of the placement"
    assert "task 0 was placed on m2 as incarnation 2" in effects
    page = event_page("sre", "task.placed", urgent)
    assert "task 0 was evicted from m1 by preemption" in page.partition("<h2>Events that this event caused</h2>")[2]


def test_the_names_of_others_are_not_in_a_chain(chain) -> None:
    victim, urgent = chain
    page = event_page("ann", "task.evicted", victim)
    assert "other/urgent" not in page
    assert "job urgent" not in page
    assert "task.placed of a task with priority 200 (production)" in page
    placed = Event.objects.get(kind="task.placed", job_id=urgent.id)
    answer = signed_in("ann").get(f"/cells/cc/events/{placed.revision}.{placed.seq}/")
    assert answer.status_code == 404
    for wrong in ("9999.0", "x", "1", "1.99999999999"):
        assert signed_in("ann").get(f"/cells/cc/events/{wrong}/").status_code == 404


def test_a_drain_and_its_evictions_are_linked_both_ways(cell) -> None:
    machine = rows.a_machine(cell)
    job = rows.a_job(cell, rows.a_tenant("ubar"))
    portal_world.place(job, 0, machine)
    world.a_user("sre", sre=True)
    machines_drain(principal=system("sre"), cell=cell, machines=[machine], reason="new disks")
    assert tasks_drain(cell.id, 10, patience_s=600.0) == 1
    page = event_page("sre", "task.evicted", job)
    assert "direct cause of this event" in page
    assert "m1 is draining: new disks" in page
    effects = event_page("sre", "machine.state").partition("<h2>Events that this event caused</h2>")[2]
    assert "task 0 was evicted" in effects


@pytest.mark.usefixtures("chain")
def test_the_page_of_a_task_lists_its_incarnations() -> None:
    page = signed_in("ann").get("/jobs/cc/ubar/batch/0/").text
    assert "preempted by a task with priority 200 (production)" in page
    assert "?incarnation=1" in page
    page = signed_in("sre").get("/jobs/cc/ubar/batch/0/").text
    assert "preempted by other/urgent/0 with priority 200 (production)" in page
    page = signed_in("sre").get("/jobs/cc/other/urgent/0/").text
    assert "-10.75" in page or "−10.75" in page
    assert "ubar/batch/0 with priority 110 (batch)" in page
