"""Tests of ended jobs: they move from PostgreSQL to the archive, and pages, REST and lists find them there."""

from __future__ import annotations

import datetime as dt
import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from quota.vocabulary.permissions import Principal, system
from scheduling.history.archive import ended_jobs, old_specs
from scheduling.history.archive.archiver import ArchiveFailed, Archiver
from scheduling.history.archive.metrics import ArchiveCollector
from scheduling.history.archive.store import store
from scheduling.jobs import submit_and_kill, updates
from scheduling.journal import journal
from scheduling.journal.sql import execute, query
from scheduling.models import ArchivedJob, ArchiveFile, Cell, Departure, Job, JobSpec, Task, Update
from scheduling.tasks.departures import tasks_gone
from tests.integration import rows, world
from tests.integration.portal_server import database_url
from tests.integration.test_archive_failures import _KILLED
from tests.integration.test_ended_jobs import nodes

# The archiver reads over connections of its own, so the rows have to be committed.
pytestmark = pytest.mark.django_db(transaction=True)
TABLES = (Job, JobSpec, Task, Update)
STEPS = ["began", "written", "verified", "stored", "checked", "recorded", "jobs marked", "jobs deleted", "deleted"]
JOBS = "/api/v1/cells/cc/jobs/"


@pytest.fixture(autouse=True)
def folder(settings, tmp_path):
    settings.BORG_ARCHIVE = (tmp_path / "archive").as_uri()
    return tmp_path / "archive"


def archive(*, days: float = 0) -> Any:
    return Archiver(store()).run(now=timezone.now() + dt.timedelta(days=days))


def ended_job(who: Principal, cell: Cell, name: str, *, days: float, **changes: Any) -> Job:
    """Return a job that ended `days` days ago, and whose processes have all ended."""
    job = world.submit(who, cell, world.a_file(name=name, **changes))
    kill(who, job, days=days)
    return job


def kill(who: Principal, job: Job, *, days: float) -> None:
    submit_and_kill.job_kill(principal=who, job=job)
    stop(job)
    ago = timezone.now() - dt.timedelta(days=days)
    Job.objects.filter(pk=job.pk).update(ended_at=ago, created_at=ago - dt.timedelta(days=1))


def stop(job: Job) -> None:
    """Record that the processes of all stopped tasks of the job have ended."""
    left = Departure.objects.filter(task__job=job).values_list("task_id", "incarnation")
    with journal.write(job.cell_id, system("test")) as entry:
        tasks_gone(entry, [(task, incarnation, None) for task, incarnation in left])


def stored(*, only: str = "job") -> list[int]:
    """Return the job ids of all archived rows of the kind `only`."""
    found: list[int] = []
    for file in ArchiveFile.objects.filter(table=ended_jobs.ENDED).exclude(state="deleted").order_by("id"):
        with store().local(file.key) as path:
            read = pq.read_table(path).to_pylist()
        found += [row["collection_id"] for row in read if row["kind"] == only]
    return found


def in_postgres() -> Counter[str]:
    return Counter({model.__name__: model.objects.count() for model in TABLES})


def test_a_job_of_last_year_has_its_page_its_tasks_and_its_versions(cell, machine, tenant, ann, client) -> None:
    file = world.with_task(
        tasks=3, env={"DB_PASSWORD": "hunter2-hunter2", "MODE": "fast"}, plain_env=["DB_PASSWORD"]
    ) | {"labels": {"team": "a"}}
    job = world.submit(ann, cell, file)
    world.bring_up(job, machine)
    updates.job_update(
        principal=ann,
        job=job,
        job_spec=submit_and_kill.spec_for(principal=ann, cell=cell, file=file | {"tasks": 2}, tenant="ubar"),
    )
    kill(ann, job, days=31)
    recent = ended_job(ann, cell, "recent", days=29)
    user = world.a_user("ann", tenant=tenant)
    rest = world.bearer(user, tenant=tenant)
    client.force_login(user)
    paths = ["", "tasks/", "tasks/1/", "versions/", "update/", "events/", "why/"]
    before = {path: rest.get(f"{JOBS}ubar/web/{path}").json() for path in paths}
    listed = rest.get(f"{JOBS}?state=dead").json()["results"]
    assert before[""]["spec"]["task"]["env"]["DB_PASSWORD"] == "hunter2-hunter2"
    archive()
    assert in_postgres() == Counter(Job=1, JobSpec=1, Task=3)
    for file in ArchiveFile.objects.filter(table=ended_jobs.ENDED):
        with store().local(file.key) as path:
            content = str(pq.read_table(path).to_pylist())
    assert "hunter2" not in content
    assert before["versions/"]["results"][0]["digest"] not in content
    assert "fast" in content

    assert rest.get(f"{JOBS}?state=dead").json()["results"] == listed
    assert [row["name"] for row in rest.get(f"{JOBS}?state=dead&label=team=a").json()["results"]] == ["web"]
    assert [row["name"] for row in rest.get(JOBS).json()["results"]] == ["recent"], "only the archive has the other"
    page = client.get("/jobs/?state=dead").context["page_obj"]
    assert ([row.name for row in page.object_list], page.paginator.count) == (["recent", "web"], 2)
    assert Job.objects.count() == 1, "lists copy nothing back"
    stranger = world.bearer(world.a_user("eve", tenant=rows.a_tenant("other")))
    assert stranger.get(f"{JOBS}ubar/web/").status_code == 404
    assert stranger.get(f"{JOBS}?state=dead").json()["results"] == []
    assert Job.objects.count() == 1, "a person who may not see a job cannot recall it"

    for path, expected in before.items():
        masked = without_secret(expected)
        assert rest.get(f"{JOBS}ubar/web/{path}").json() == masked, path
    assert client.get(f"/jobs/cc/ubar/web/?uid={job.uid}").context["page_obj"].paginator.count == 3
    assert client.get("/jobs/cc/ubar/web/0/").status_code == 200
    assert in_postgres() == Counter(Job=2, JobSpec=3, Task=6, Update=1)
    assert rest.get(f"{JOBS}?state=dead").json()["results"] == listed, "a recalled job is listed once"

    archive()
    assert Job.objects.count() == 2, "a job that was opened stays for an hour"
    assert lag() == 0
    ArchivedJob.objects.update(recalled_at=timezone.now() - dt.timedelta(hours=2))
    assert ended_jobs.due(now=timezone.now())
    archive()
    assert list(Job.objects.all()) == [recent]
    assert stored() == [job.id], "a recalled job is not archived again"
    assert not ended_jobs.due(now=timezone.now())


def without_secret(document: Any) -> Any:
    """Return a JSON document of the API with the secret masked and the digest emptied, as in the archive."""
    if isinstance(document, list):
        return [without_secret(one) for one in document]
    if not isinstance(document, dict):
        return document
    shown = {key: without_secret(value) for key, value in document.items()}
    if "DB_PASSWORD" in shown:
        shown["DB_PASSWORD"] = "(hidden: looks like a secret)"
    return shown | {"digest": ""} if "digest" in shown else shown


def lag() -> float:
    (family, *_) = ArchiveCollector().collect()
    (found,) = [sample.value for sample in family.samples if sample.labels == {"cell": "cc", "table": "ended_jobs"}]
    return found


def test_a_name_is_used_again_and_jobs_that_are_needed_stay(cell, machine, tenant, ann, client) -> None:
    first = ended_job(ann, cell, "nightly", days=40, tasks=1)
    second = ended_job(ann, cell, "nightly", days=39, tasks=1)
    stopping = world.submit(ann, cell, world.a_file(name="stopping", tasks=1))
    world.bring_up(stopping, machine)
    submit_and_kill.job_kill(principal=ann, job=stopping)
    Job.objects.filter(pk=stopping.pk).update(ended_at=timezone.now() - dt.timedelta(days=50))
    assert lag() > 8 * 86_400
    archive()
    assert list(Job.objects.all()) == [stopping], "its machine still has to stop a task"
    client.force_login(world.a_user("ann", tenant=tenant))
    third = world.submit(ann, cell, world.a_file(name="nightly", tasks=1))
    assert third.id not in (first.id, second.id)
    assert client.get("/jobs/cc/ubar/nightly/").context["job"] == third
    assert [one.uid for one in client.get("/jobs/cc/ubar/nightly/").context["namesakes"]] == [second.uid, first.uid]
    assert {one.outcome for one in client.get("/jobs/cc/ubar/nightly/").context["namesakes"]} == {"killed"}
    assert client.get(f"/jobs/cc/ubar/nightly/?uid={first.uid}").context["job"].id == first.id
    assert client.get(f"/jobs/cc/ubar/nightly/?uid={stopping.uid}").status_code == 404
    stop(stopping)
    archive()
    assert stored() == [first.id, second.id, stopping.id]


def test_a_job_may_leave_earlier_than_its_cell_says(cell, tenant, ann) -> None:
    """End jobs 5 days ago, in a cell that keeps them for 30 days, and another job 31 days ago."""
    early = ended_job(ann, cell, "early", days=5, ttl_after_end_s=3 * 86400)
    ended_job(ann, cell, "later", days=5, ttl_after_end_s=10 * 86400)
    ended_job(ann, cell, "usual", days=5)
    longest = ended_job(ann, cell, "longest", days=31, ttl_after_end_s=300 * 86400)
    assert 86400.0 < lag() < 3 * 86400.0
    archive()
    assert stored() == [early.id, longest.id]
    assert set(Job.objects.values_list("name", flat=True)) == {"later", "usual"}
    assert lag() == 0.0


def test_lists_page_across_postgresql_and_the_archive(cell, tenant, ann) -> None:
    made = [ended_job(ann, cell, f"j{n}", days=40 if n % 2 else 20, tasks=1) for n in range(7)]
    rest = world.bearer(world.a_user("ann", tenant=tenant), tenant=tenant)
    archive()
    url, seen = f"{JOBS}?state=dead&limit=3", []
    while url:
        answer = rest.get(url).json()
        seen.append([row["name"] for row in answer["results"]])
        url, previous = answer["next"], answer["previous"]
    assert seen == [["j0", "j1", "j2"], ["j3", "j4", "j5"], ["j6"]]
    assert [row["name"] for row in rest.get(previous).json()["results"]] == ["j3", "j4", "j5"]
    assert set(Job.objects.values_list("id", flat=True)) == {job.id for job in made[::2]}


def test_an_alloc_set_goes_after_its_jobs_and_comes_back_with_them(cell, tenant, ann) -> None:
    alloc_set = world.submit(ann, cell, world.a_file(name="set", kind="AllocSet", tasks=1) | {"task": ALLOC})
    inner = world.submit(ann, cell, world.a_file(name="inner", tasks=1, alloc_set="set") | {"task": INNER})
    kill(ann, inner, days=31)
    kill(ann, alloc_set, days=31)
    archive()
    assert (Job.objects.count(), stored()) == (0, [inner.id, alloc_set.id])
    rest = world.bearer(world.a_user("ann", tenant=tenant), tenant=tenant)
    assert [row["alloc_set"] for row in rest.get(f"{JOBS}?state=dead").json()["results"]] == [None, "set"]
    assert rest.get(f"{JOBS}ubar/inner/").json()["alloc_set"] == "set"
    ArchivedJob.objects.update(recalled_at=timezone.now() - dt.timedelta(hours=2))
    archive()
    assert Job.objects.count() == 0


ALLOC = {"limit": {"cpu": "1", "ram": "1Gi", "disk": "1Gi"}}
INNER = {"command": ["run"], "limit": {"cpu": "100m", "ram": "64Mi", "disk": "64Mi"}}


def test_files_of_jobs_expire_with_their_entries(cell, folder, tenant, ann) -> None:
    ended_job(ann, cell, "old", days=500, tasks=1)
    ended_job(ann, cell, "newer", days=300, tasks=1)
    archive()
    assert sorted(ArchivedJob.objects.values_list("name", flat=True)) == ["newer", "old"], "they share a file"
    rest = world.bearer(world.a_user("ann", tenant=tenant), tenant=tenant)
    assert rest.get(f"{JOBS}ubar/newer/").status_code == 200
    ArchivedJob.objects.filter(name="newer").update(recalled_at=timezone.now() + dt.timedelta(days=110))
    archive(days=110)
    assert Job.objects.count() == 0, "a job that was opened just before is not archived again"
    assert ArchivedJob.objects.count() == 0
    assert list(folder.rglob(f"{ended_jobs.ENDED}/**/*.parquet")) == []
    assert rest.get(f"{JOBS}ubar/old/").status_code == 404


def test_an_archive_that_is_away_is_reported(cell, folder, tenant, ann) -> None:
    ended_job(ann, cell, "web", days=40, tasks=1)
    archive()
    for path in folder.rglob("*.parquet"):
        path.write_bytes(b"nothing")
    rest = world.bearer(world.a_user("ann", tenant=tenant), tenant=tenant)
    for url in (f"{JOBS}ubar/web/", f"{JOBS}?state=dead"):
        answer = rest.get(url)
        assert (answer.status_code, answer.json()["code"]) == (503, "archive-away")


def test_an_archiver_that_is_killed_at_any_step_loses_and_doubles_no_job(cell, folder, tenant, ann, settings) -> None:
    made = [ended_job(ann, cell, f"j{n}", days=40 - n / 10, tasks=2).id for n in range(4)]
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "portal.settings.test",
        "BORG_DATABASE_URL": database_url(),
        "BORG_ARCHIVE": settings.BORG_ARCHIVE,
    }
    small = "from scheduling.history.archive import ended_jobs\nended_jobs.MOST_DELETED = ended_jobs.MOST_ROWS = 4\n"
    done = subprocess.run(
        [sys.executable, "-c", _KILLED.replace("for step", small + "for step", 1), *STEPS],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.rpartition(" ") for line in done.stdout.splitlines()]
    killed = {step: code for step, _, code in lines if step in STEPS}
    assert killed == dict.fromkeys(STEPS[:-1], str(int(signal.SIGKILL))) | {"deleted": "0"}, done.stdout
    assert sorted(stored()) == made
    assert Counter(stored(only="task")) == dict.fromkeys(made, 2)
    assert in_postgres() == Counter()
    assert sorted(ArchivedJob.objects.values_list("id", flat=True)) == made
    files = ArchiveFile.objects.filter(table=ended_jobs.ENDED)
    assert [file.state for file in files] == ["sole", "sole"]
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.parquet")) == sorted(
        file.key for file in files
    )


def test_a_damaged_file_is_written_again_and_a_full_disk_changes_nothing(cell, folder, tenant, ann) -> None:
    job = ended_job(ann, cell, "web", days=40)
    before = in_postgres()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, limit[1]))
    try:
        with pytest.raises(ArchiveFailed, match=r"cannot write cc/ended_jobs/.*check the disk"):
            archive()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert (in_postgres(), ArchivedJob.objects.count()) == (before, 0)

    def damage(step: str) -> None:
        if step == "recorded":
            (path,) = folder.rglob("*.parquet")
            path.write_bytes(path.read_bytes()[:-9])
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        Archiver(store(), at=damage).run(now=timezone.now())
    assert in_postgres() == before
    archive()
    assert (in_postgres(), stored()) == (Counter(), [job.id])


def test_old_specs_of_live_jobs_that_nothing_uses_are_archived(cell, tenant, ann) -> None:
    job = world.submit(ann, cell, world.a_file())
    for tasks in (4, 5, 6, 7):
        spec = submit_and_kill.spec_for(principal=ann, cell=cell, file=world.a_file(tasks=tasks), tenant="ubar")
        job.refresh_from_db()
        updates.job_update(principal=ann, job=job, job_spec=spec)
    Task.objects.filter(job=job, index=0).update(spec_version=2)
    Task.objects.filter(job=job, index__gt=0).update(spec_version=5)
    Update.objects.update(state="done")
    assert not old_specs.due(now=timezone.now()), "they were replaced today"
    JobSpec.objects.update(created_at=timezone.now() - dt.timedelta(days=40))
    assert old_specs.due(now=timezone.now())
    Archiver(store()).run(now=timezone.now())
    assert list(JobSpec.objects.order_by("version").values_list("version", flat=True)) == [2, 4, 5]
    file = ArchiveFile.objects.get(table="old_specs")
    with store().local(file.key) as path:
        read = pq.read_table(path).to_pylist()
    assert [(row["collection_id"], row["number"], row["user"]) for row in read] == [
        (job.id, 1, "ubar"),
        (job.id, 3, "ubar"),
    ]
    assert (file.state, file.rows) == ("sole", 2)
    assert not old_specs.due(now=timezone.now())
    Task.objects.filter(job=job).update(spec_version=5)


def test_very_many_versions_by_the_autoscaler_are_looked_through_once(cell, tenant, ann) -> None:
    job = world.submit(ann, cell, world.a_file())
    copies = """INSERT INTO scheduling_jobspec (job_id, version, spec, digest, packages, secrets, actor, created_at)
        SELECT s.job_id, n, '{}', md5(n::text), s.packages, s.secrets, 'system:autoscaler', now()
        FROM scheduling_jobspec AS s, generate_series(2, 5000) AS n WHERE s.job_id = %s AND s.version = 1"""
    with transaction.atomic():
        execute(copies, [job.id])
        Job.objects.filter(pk=job.pk).update(spec_version=5000)
        with CaptureQueriesContext(connection) as captured:
            assert not old_specs.due(now=timezone.now())
        (statement,) = (one["sql"] for one in captured if "scheduling_jobspec" in one["sql"])
        ((plans,),) = query(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}")
        assert sum(map(rows_read, nodes(plans[0]["Plan"]))) < 20 * 5000
        transaction.set_rollback(True)


def rows_read(node: dict[str, Any]) -> int:
    """Return how many rows a step of a plan returned or rejected."""
    removed = sum(count for name, count in node.items() if name.startswith("Rows Removed by"))
    return round(node["Actual Loops"] * (node["Actual Rows"] + removed))


def test_every_table_that_refers_to_jobs_is_known_to_the_archiver() -> None:
    """Statements of the archiver name every table with a foreign key to jobs or tasks, so that none is forgotten."""
    text = " ".join(ended_jobs._DELETIONS) + ended_jobs._FREE
    for model in (Job, Task):
        for relation in model._meta.related_objects:
            assert relation.related_model._meta.db_table in text, relation
