"""Tests of submitting and killing jobs on real PostgreSQL: each is done whole, or rejected with a reason."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from quota.models import QuotaUse
from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected
from quota.vocabulary.permissions import Role
from quota.vocabulary.resources import CPU
from scheduling.core.vocabulary import events
from scheduling.jobs import submit_and_kill
from scheduling.journal import journal
from scheduling.master.invariants import validate
from scheduling.models import Job, JobSpec, Task, Update
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cell():
    """Yield a new cell. After the test, check that its rows equal the replayed journal, and its counters the rows."""
    cell = rows.a_cell()
    yield cell
    assert validate(cell.id) == []


@pytest.fixture
def tenant(cell):
    tenant = rows.a_tenant("ubar")
    rows.grant(tenant, cell, "production")
    return tenant


@pytest.fixture
def ann(tenant):
    return world.principal("ann", tenant=tenant, role=Role.OPERATOR)


def used(tenant) -> int:
    row = QuotaUse.objects.filter(tenant=tenant, band__name="production").first()
    return row.used[CPU] if row else 0


def kinds(cell) -> list[str]:
    return [record.event.__struct_config__.tag for record in journal.tail(cell.id, after=0)]


def test_an_admitted_job_has_all_its_tasks_pending_under_one_revision(cell, tenant, ann) -> None:
    job = world.submit(ann, cell, world.a_file(overrides={"1": {"limit": {"cpu": 2}}}, labels={"a": "b"}))
    job.refresh_from_db()
    assert (job.tasks_total, job.tasks_pending, job.state, job.band) == (3, 3, "pending", "production")
    assert [task.limit[CPU] for task in Task.objects.filter(job=job)] == [100, 2000, 100]
    (record,) = journal.tail(cell.id, after=0)
    assert isinstance(record.event, events.JobSubmitted)
    assert (record.actor, record.request_id) == ("ann", "r-1")
    assert sum(group.size for group in record.event.groups) == 3
    assert used(tenant) == 2200
    assert JobSpec.objects.get(job=job).spec["name"] == "web"


def test_a_job_beyond_its_quota_is_refused_with_the_shortfall_and_leaves_only_that_news(cell, tenant, ann) -> None:
    with pytest.raises(Rejected, match="too little production quota") as caught:
        world.submit(ann, cell, world.with_task(limit={"cpu": 30}))
    assert caught.value.code == "quota-exceeded"
    assert caught.value.figures["short"]["cpu"]["short"] == 3 * 30_000 - 64_000
    assert not Job.objects.exists()
    assert used(tenant) == 0
    (record,) = journal.tail(cell.id, after=0)
    assert isinstance(record.event, events.JobRejected)
    assert record.event.code == "quota-exceeded"


def test_priority_zero_needs_no_quota(cell, ann) -> None:
    job = world.submit(ann, cell, world.with_task(limit={"cpu": 3000}) | {"priority": 0})
    assert job.band == "best-effort"


def test_an_equal_submission_changes_nothing_and_a_different_one_is_a_conflict(cell, ann) -> None:
    job = world.submit(ann, cell, world.a_file())
    revision = journal.newest(cell.id)
    again = submit_and_kill.job_submit(principal=ann, cell=cell, job_spec=world.read(cell, world.a_file(priority=120)))
    assert (again.outcome, again.job.id) == ("unchanged", job.id)
    with pytest.raises(Conflict, match="has a live job web"):
        world.submit(ann, cell, world.a_file(tasks=4))
    assert journal.newest(cell.id) == revision


def test_the_name_of_a_dead_job_is_free_and_its_successor_another_job(cell, tenant, ann) -> None:
    first = world.submit(ann, cell, world.a_file())
    assert submit_and_kill.job_kill(principal=ann, job=first) == 3
    assert used(tenant) == 0
    second = world.submit(ann, cell, world.a_file())
    assert second.uid != first.uid
    assert Job.objects.filter(name="web").count() == 2


def test_killing_is_idempotent_and_may_be_of_some_tasks(cell, ann) -> None:
    job = world.submit(ann, cell, world.a_file())
    world.place(job, rows.a_machine(cell), 0)
    assert submit_and_kill.job_kill(principal=ann, job=job, indexes=[0, 2]) == 2
    assert submit_and_kill.job_kill(principal=ann, job=job, indexes=[0, 2]) == 0
    job.refresh_from_db()
    assert (job.tasks_pending, job.tasks_dead, job.state) == (1, 2, "running")
    with pytest.raises(Rejected, match="has no task 7"):
        submit_and_kill.job_kill(principal=ann, job=job, indexes=[7])
    assert submit_and_kill.job_kill(principal=ann, job=job, dry_run=True) == 1
    assert submit_and_kill.job_kill(principal=ann, job=job, reason="done with it") == 1
    job.refresh_from_db()
    assert (job.state, job.outcome) == ("dead", "killed")
    assert Task.objects.get(job=job, index=1).detail == "done with it"


@pytest.mark.parametrize("role, error", [(Role.VIEWER, Forbidden), (Role.BUYER, Forbidden), (None, NotFound)])
def test_only_operators_and_owners_submit_and_strangers_learn_nothing(cell, tenant, ann, role, error) -> None:
    job = world.submit(ann, cell, world.a_file("mine"))
    who = world.principal("bob", tenant=tenant, role=role) if role else world.principal("bob")
    with pytest.raises(error):
        world.submit(who, cell, world.a_file())
    with pytest.raises(error):
        submit_and_kill.job_kill(principal=who, job=job)
    with pytest.raises(NotFound):
        world.submit(who, cell, world.a_file(), tenant="nobody")
    assert Job.objects.count() == 1


def test_a_tenant_has_a_limit_of_live_jobs(cell, tenant, ann) -> None:
    tenant.max_jobs = 1
    tenant.save()
    files = [world.a_file("one"), world.a_file("two")]
    one, two = submit_and_kill.jobs_submit_bulk(principal=ann, cell=cell, files=files)
    assert (one.outcome, two.outcome, two.problem.code) == ("submitted", "refused", "too-many-jobs")
    submit_and_kill.job_kill(principal=ann, job=one.job)
    assert world.submit(ann, cell, world.a_file("two"))


def test_a_dry_run_answers_and_changes_nothing(cell, tenant, ann) -> None:
    good = world.read(cell, world.a_file())
    assert submit_and_kill.job_submit(principal=ann, cell=cell, job_spec=good, dry_run=True).outcome == "submitted"
    large = world.read(cell, world.with_task(limit={"cpu": 30}))
    with pytest.raises(Rejected, match="quota"):
        submit_and_kill.job_submit(principal=ann, cell=cell, job_spec=large, dry_run=True)
    assert (journal.newest(cell.id), used(tenant), Job.objects.count()) == (0, 0, 0)


def test_a_bulk_gives_every_job_its_own_verdict(cell, tenant, ann) -> None:
    rows.a_tenant("other")
    files = [
        world.a_file("a"),
        world.a_file("b", tasks=0),
        world.with_task("c", limit={"cpu": 30}),
        world.a_file("a"),
        world.a_file("d", tenant="other"),
        world.a_file("e", cell="elsewhere"),
        17,
        {"name": "f", "kind": "AllocSet", "task": {}},
        world.a_file("g"),
    ]
    verdicts = submit_and_kill.jobs_submit_bulk(principal=ann, cell=cell, files=files)
    assert [(v.name, v.outcome, v.problem.code if v.problem else "") for v in verdicts] == [
        ("a", "submitted", ""),
        ("b", "refused", "invalid-spec"),
        ("c", "refused", "quota-exceeded"),
        ("a", "refused", "job-exists"),
        ("d", "refused", "not-found"),
        ("e", "refused", "invalid-spec"),
        ("", "refused", "invalid-spec"),
        ("f", "submitted", ""),
        ("g", "submitted", ""),
    ]
    assert set(Job.objects.values_list("name", flat=True)) == {"a", "f", "g"}
    assert kinds(cell) == [*["job.submitted"] * 3, "job.rejected"]


def test_the_number_of_queries_does_not_grow_with_the_number_of_jobs(cell, tenant, ann) -> None:
    def queries(prefix: str, number: int) -> int:
        files = [world.a_file(f"{prefix}{n}", priority=0) for n in range(number)]
        with CaptureQueriesContext(connection) as captured:
            submit_and_kill.jobs_submit_bulk(principal=ann, cell=cell, files=files)
        return len(captured)

    assert queries("few", 3) == queries("many", 300)


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_bulk_in_parts_answers_as_one(cell, tenant, ann, monkeypatch, dry_run) -> None:
    """Many jobs in one request are submitted in parts, also in a dry run. The verdicts are those of a single part."""
    monkeypatch.setattr(submit_and_kill, "JOBS_AT_ONCE", 2)
    monkeypatch.setattr(journal, "CHUNK", 7)
    names = ["a", "b", "c", "a", "d", "e", "f"]
    files = [world.with_task(name, limit={"cpu": 4, "ram": 2**26 + n}) for n, name in enumerate(names)]
    verdicts = submit_and_kill.jobs_submit_bulk(principal=ann, cell=cell, files=files, dry_run=dry_run)
    assert [v.name for v in verdicts] == names
    assert [v.problem.code if v.problem else v.outcome for v in verdicts] == [
        *["submitted"] * 3,
        "job-exists",
        *["submitted"] * 2,
        "quota-exceeded",
    ]
    assert Job.objects.count() == (0 if dry_run else 5)
    # one revision for each part
    assert journal.newest(cell.id) == (0 if dry_run else 4)


def test_a_job_larger_than_a_chunk_comes_in_parts(cell, ann, monkeypatch) -> None:
    monkeypatch.setattr(journal, "CHUNK", 4)
    job = world.submit(ann, cell, world.a_file(tasks=10, priority=0))
    job.refresh_from_db()
    assert (job.tasks_total, job.tasks_pending) == (10, 10)
    assert kinds(cell) == ["job.submitted", "update.started", "tasks.added", "tasks.added", "update.ended"]
    assert Update.objects.get(job=job).state == Update.DONE
    assert submit_and_kill.job_kill(principal=ann, job=job) == 10
    job.refresh_from_db()
    assert job.state == "dead"


def test_too_many_jobs_for_one_request_are_refused_together(cell, ann, settings) -> None:
    settings.BORG_MAX_BULK_JOBS = 2
    with pytest.raises(Rejected, match="has 3 jobs; send at most 2 per request"):
        submit_and_kill.jobs_submit_bulk(principal=ann, cell=cell, files=[world.a_file(f"j{n}") for n in range(3)])
    assert not Job.objects.exists()


def test_the_tenant_is_the_only_one_the_caller_has(cell, tenant, ann) -> None:
    other = rows.a_tenant("other")
    assert submit_and_kill.spec_for(principal=ann, cell=cell, file=world.a_file()).tenant == "ubar"
    both = world.principal("ann", tenant=other)
    with pytest.raises(Rejected, match="one of other, ubar"):
        submit_and_kill.spec_for(principal=both, cell=cell, file=world.a_file())
    with pytest.raises(Rejected, match="use the same value in both"):
        submit_and_kill.spec_for(principal=both, cell=cell, file=world.a_file(tenant="other"), tenant="ubar")
