"""Cells that are set back to an earlier moment, in place, on real PostgreSQL."""

from __future__ import annotations

import datetime as dt
import threading
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from borglet.messages import EndCause, Exit
from quota.models import Quota, QuotaUse, Tenant
from quota.vocabulary.errors import Conflict, Forbidden, Rejected
from quota.vocabulary.permissions import system
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.task_events import Ending
from scheduling.history.archive.archiver import Archiver
from scheduling.history.archive.store import store
from scheduling.history.checkpoints.folder import checkpoints_of
from scheduling.history.checkpoints.rows import load_recorded
from scheduling.history.checkpoints.saving import checkpoint_write, checkpoints_drop_old, due
from scheduling.history.checkpoints.state_at_moment import state_at
from scheduling.history.erasure.erasing import Eraser
from scheduling.history.erasure.identities import IdentityKind
from scheduling.history.restoring import restoring
from scheduling.history.restoring.differences import RequestedJob, requested
from scheduling.history.restoring.restoring import cell_restore
from scheduling.history.studies.deletion import study_delete
from scheduling.history.studies.studies import study_restore
from scheduling.jobs import submit_and_kill, updates
from scheduling.jobs.dependencies.turn import dependencies_settle
from scheduling.journal import journal
from scheduling.journal.sql import query
from scheduling.link.views.concerned_machines import concerned_machines
from scheduling.master.invariants import validate
from scheduling.master.snapshot import load_state
from scheduling.models import Cell, Job, JobDependency, JobSpec, Machine, Task
from scheduling.tasks import transitions
from tests.integration import rows, workflow_rows, world
from tests.integration.checkpoint_history import History
from tests.integration.portal_server import database_url
from tests.integration.simulated_cell import SimulatedCell
from tests.integration.test_allocs import envelope, inside
from tests.integration.test_races import wait_until_blocked

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(120)]
SRE = system("sre")


@pytest.fixture(autouse=True)
def home(settings, tmp_path: Path) -> Path:
    settings.BORG_HOME = tmp_path
    settings.BORG_ARCHIVE = (tmp_path / "archive").as_uri()
    return tmp_path


def fresh(cell: Cell) -> Cell:
    return Cell.objects.get(pk=cell.pk)


def kill(job: Job, **how: Any) -> None:
    submit_and_kill.job_kill(principal=SRE, job=Job.objects.get(pk=job.pk), **how)


def update(cell: Cell, job: Job, file: dict[str, Any]) -> None:
    read = world.read(cell, file)
    updates.job_update(principal=SRE, job=Job.objects.select_related("cell", "tenant").get(pk=job.pk), job_spec=read)


def restore(cell: Cell, revision: int, **how: Any) -> Any:
    shown = {} if how.get("dry_run") else {"if_revision": fresh(cell).revision}
    return cell_restore(principal=SRE, cell=fresh(cell), revision=revision, **{**shown, **how})


def everything(cell: Cell) -> list[Any]:
    tables = ("cell", "job", "jobspec", "task", "departure", "update", "event")
    return [
        query(f"SELECT count(*), md5(string_agg(t::text, ',' ORDER BY t::text)) FROM scheduling_{table} t")
        for table in tables
    ]


def finished(cell: Cell, task: Task) -> None:
    """A task ends by itself, successfully."""
    with journal.write(cell.id, SRE) as entry:
        transitions.tasks_end(entry, [Ending(task.id, "finished", gone=True)])


@pytest.fixture
def disaster(cell, ann):
    """A cell in which, after the returned revision, a job was killed, one was updated, one lost a task, one finished,
    and one was submitted."""
    kept = {name: world.submit(ann, cell, world.a_file(name)) for name in ("gone", "changed", "part", "done")}
    for job in kept.values():
        world.bring_up(job, rows.a_machine(cell, f"of-{job.name}"))
    good = fresh(cell).revision
    kill(kept["gone"])
    update(cell, kept["changed"], world.with_task("changed", command=["serve", "badly"]))
    kill(kept["part"], indexes=[1])
    for task in Task.objects.filter(job=kept["done"]):
        finished(cell, task)
    new = world.submit(ann, cell, world.a_file("new", tasks=2))
    world.bring_up(new, rows.a_machine(cell, "later"))
    return cell, good, kept | {"new": new}


def test_a_dry_run_shows_what_would_be_lost_and_changes_nothing(disaster) -> None:
    cell, good, _ = disaster
    before = everything(cell)
    shown = restore(cell, good, dry_run=True)
    assert everything(cell) == before
    assert (shown.revision, shown.to_revision, shown.history) == (fresh(cell).revision, good, "")
    assert (shown.stopped.names, shown.stopped.tasks) == (["ubar/new"], 2)
    assert (shown.submitted.names, shown.submitted.tasks) == (["ubar/gone"], 3)
    assert shown.changed.names == ["ubar/changed"]
    assert (shown.tasks_revived, shown.tasks_ended, shown.tasks_finished) == (1, 0, 3)
    assert (shown.joined.names, shown.removed.names, shown.problems) == (["later"], [], [])
    numbers = query("SELECT kind, count(*) FROM scheduling_event WHERE revision > %s GROUP BY 1", [good])
    assert shown.events == dict(numbers)
    assert shown.events["task.ended"] == 3 + 1 + 3


def test_a_job_that_waited_waits_again_for_the_job_that_came_back(cell, ann) -> None:
    """Set a cell back in which `archive` waited for `zload`. Both were killed, and both names come back."""
    world.submit(ann, cell, world.a_file("zload"))
    world.submit(ann, cell, world.a_file("archive", after={"zload": "ended"}))
    good = fresh(cell).revision
    for job in Job.objects.order_by("-id"):
        kill(job)
    done = restore(cell, good)
    assert done.problems == []
    live = {job.name: job for job in Job.objects.exclude(state="dead")}
    assert (live.keys(), live["archive"].waiting) == ({"archive", "zload"}, True)
    assert JobDependency.objects.get(job=live["archive"]).on_id == live["zload"].id


def test_a_job_that_waited_never_waits_for_a_newer_job_that_the_restore_ends(cell, ann) -> None:
    """Both jobs were killed and submitted again with other specs. The restore replaces both, `archive` first."""
    world.submit(ann, cell, world.a_file("zload"))
    world.submit(ann, cell, world.a_file("archive", after={"zload": "ended"}))
    good = fresh(cell).revision
    for job in Job.objects.order_by("-id"):
        kill(job)
    world.submit(ann, cell, world.a_file("zload", priority=0))
    world.submit(ann, cell, world.a_file("archive", priority=0))
    assert restore(cell, good).problems == []
    live = {job.name: job for job in Job.objects.exclude(state="dead")}
    assert live["archive"].waiting
    assert JobDependency.objects.get(job=live["archive"]).on_id == live["zload"].id


def test_a_job_that_waited_does_not_come_back_without_the_other(cell, ann, tenant) -> None:
    """Set a cell back when the quota is too small for `zload`. The job that waited for it must not start."""
    world.submit(ann, cell, world.a_file("zload"))
    world.submit(ann, cell, world.a_file("archive", priority=0, after={"zload": "ended"}))
    good = fresh(cell).revision
    for job in Job.objects.order_by("-id"):
        kill(job)
    Quota.objects.all().delete()
    with pytest.raises(Conflict, match="none of them can be set back"):
        restore(cell, good)
    assert not Job.objects.exclude(state="dead").exists()


def test_a_released_job_does_not_wait_again_after_a_restore(cell, ann) -> None:
    load = world.submit(ann, cell, world.a_file("load"))
    report = world.submit(ann, cell, world.a_file("report", after={"load": "succeeded"}))
    for task in Task.objects.filter(job=load):
        finished(cell, task)
    dependencies_settle(cell.id)
    good = fresh(cell).revision
    kill(report)
    world.submit(ann, cell, world.a_file("load"))  # a newer job of the name, which ends in the restore
    restore(cell, good)
    live = Job.objects.exclude(state="dead").get()
    assert (live.name, live.waiting) == ("report", False)


def test_a_cell_is_set_back_in_place_and_forward_again(disaster) -> None:
    cell, good, kept = disaster
    before = fresh(cell)
    done = restore(cell, good)
    after = fresh(cell)
    assert after.history_ordinal == before.history_ordinal + 1
    assert done.history == str(after.history_id) != str(before.history_id)
    assert after.earlier_histories == [before.history_id]
    live = {job.name: job for job in Job.objects.exclude(state="dead")}
    assert live.keys() == {"gone", "changed", "part"}
    assert live["gone"].pk != kept["gone"].pk
    specs = [JobSpec.objects.get(job=job, version=job.spec_version).digest for job in (kept["gone"], live["gone"])]
    assert specs[0] == specs[1]
    assert JobSpec.objects.get(job=live["changed"], version=3).spec["task"]["command"] == ["serve"]
    assert list(Task.objects.filter(job=live["part"]).values_list("state", flat=True)) == [
        "running",
        "pending",
        "running",
    ]
    assert Task.objects.get(job=live["part"], index=0).incarnation == 1, "it runs on"
    record = next(
        r for r in journal.tail(cell.id, after=before.revision) if r.event.__struct_config__.tag == "cell.restored"
    )
    assert (record.revision, record.actor) == (before.revision + 1, SRE.name)
    assert (record.event.revision, record.event.history) == (good, before.history_id.hex)
    # The journal has the whole story: every moment before can be rebuilt, and gone back to.
    assert requested(state_at(after, revision=before.revision)).keys() == {
        ("ubar", n) for n in ("changed", "part", "new")
    }
    with pytest.raises(Conflict, match="already requests"):
        restore(cell, good)
    restore(cell, before.revision)
    assert set(Job.objects.exclude(state="dead").values_list("name", flat=True)) == {"changed", "part", "new"}
    assert Task.objects.get(job=kept["part"], index=1).state == "dead"
    assert JobSpec.objects.get(job=kept["changed"], version=4).spec["task"]["command"] == ["serve", "badly"]


def test_checkpoints_of_before_stay_usable(disaster) -> None:
    cell, good, _ = disaster
    checkpoint_write(cell.id)
    seen = fresh(cell).revision
    restore(cell, good)
    now, wait = fresh(cell), dt.timedelta(minutes=59)
    assert not due(now, now=timezone.now() + wait)
    checkpoint_write(cell.id)
    newest, first = checkpoints_of(cell.name)
    since = query("SELECT count(*) FROM scheduling_event WHERE revision > %s", [seen])
    assert [(newest.header.events - first.header.events,)] == since
    assert checkpoints_drop_old(now, now=timezone.now() + dt.timedelta(days=2)) == 1, "one per day of both histories"
    with connection.cursor() as cursor:  # the beginning of the journal is gone
        cursor.execute("ALTER TABLE scheduling_event DISABLE TRIGGER USER")
        cursor.execute("DELETE FROM scheduling_event WHERE revision <= %s", [seen])
        cursor.execute("ALTER TABLE scheduling_event ENABLE TRIGGER USER")
    now = fresh(cell)
    assert state_at(now, revision=seen).revision == seen
    assert state_at(now).diff(load_recorded(cell.id)) == []
    study = study_restore(principal=SRE, cell=now, into="copy", revision=seen)
    assert requested(load_recorded(study.cell.id)).keys() == {("ubar", name) for name in ("changed", "part", "new")}


def test_the_restored_state_equals_the_original_except_for_what_the_readme_names() -> None:
    history, originals = History(seed=2), {}
    cell = history.row
    while len(originals) < 14:
        history.step()
        originals[fresh(cell).revision] = requested(load_recorded(cell.id))
    known = sorted(originals)
    for revision in (known[4], known[-2]):
        history.step()
        finished = set(query("SELECT job_id, index FROM scheduling_task WHERE outcome = 'finished'"))
        then, before = originals[revision], query("SELECT id, incarnation FROM scheduling_task")
        assert restore(cell, revision).problems == []
        updates.updates_advance(cell.id)
        now = requested(load_recorded(cell.id))
        digests = {of[:2]: of[2] for of in query("SELECT job_id, version, digest FROM scheduling_jobspec")}
        done = {name: {i for i in job.alive if (job.id, i) in finished} for name, job in then.items()}
        assert now.keys() <= then.keys()
        for name, job in then.items():
            if job.alive == done[name]:
                continue  # its work is done
            again = now[name]
            assert (again.kind, again.alloc_set) == (job.kind, job.alloc_set)
            assert digests[again.id, again.version] == digests[job.id, job.version]
            tasks = spec_tasks(again)
            assert job.alive - done[name] <= again.alive | {i for i in job.alive if i >= tasks}
            assert not again.alive & job.dead
        incarnations = dict(query("SELECT id, incarnation FROM scheduling_task"))
        assert all(incarnations[task] >= incarnation for task, incarnation in before)
        assert validate(cell.id) == []
        history.work()


def test_borglets_and_the_master_follow_the_new_history(cell, machine, ann) -> None:
    here = SimulatedCell(cell)
    borglet = here.add(machine)

    def settle() -> None:
        here.commit(here.decide())
        for _ in range(3):
            here.talk(borglet)

    kept, lost = (world.submit(ann, cell, world.a_file(name, tasks=2)) for name in ("kept", "lost"))
    settle()
    good, runs = fresh(cell).revision, set(borglet.runs)
    kill(lost)
    kill(kept, indexes=[1])
    world.submit(ann, cell, world.a_file("new", tasks=2))
    settle()
    assert Task.objects.filter(job__name="new", up=True).count() == 2
    key = next(key for key in borglet.runs if key not in runs)
    borglet.ends(key, Exit(EndCause.EXITED, here.now, status=0), here.tick())
    borglet.look(here.specs)
    borglet.poll(here.tick())  # its report is on the way
    before = fresh(cell).revision
    restore(cell, good)
    assert concerned_machines(cell.id, before, newest=fresh(cell).revision) is None, "all machines get the new history"
    at = fresh(cell).revision
    borglet.deliver()
    assert fresh(cell).revision == at, "a report of the old history changes nothing"
    for _ in range(12):  # longer than the notice of a task
        here.talk(borglet)
    assert set(borglet.runs) == {key for key in runs if (key.job, key.index) == (kept.uid.hex, 0)}
    assert Machine.objects.get().quarantined == []
    settle()
    here.advance()
    assert here.state.diff(load_state(cell.id)) == []
    back = Task.objects.filter(job__name="lost", up=True)
    assert list(back.values_list("incarnation", flat=True)) == [1_000_001, 1_000_001]
    assert list(Task.objects.filter(job=kept, up=True).order_by("index").values_list("incarnation", flat=True)) == [
        1,
        1_000_001,
    ]


def test_allocs_come_back_before_the_jobs_inside(cell, machine, ann) -> None:
    shelf, inner = world.submit(ann, cell, envelope()), world.submit(ann, cell, inside())
    good = fresh(cell).revision
    kill(inner)
    kill(shelf)
    world.submit(ann, cell, envelope("other"))
    world.submit(ann, cell, inside("within", alloc_set="other"))
    done = restore(cell, good)
    assert (done.stopped.number, done.submitted.names, done.problems) == (2, ["ubar/shelf", "ubar/web"], [])
    live = {job.name: job for job in Job.objects.exclude(state="dead")}
    assert live.keys() == {"shelf", "web"}
    assert live["web"].alloc_set_id == live["shelf"].pk


def test_a_job_of_the_same_name_stays_only_if_its_spec_is_the_same(cell, machine, ann) -> None:
    jobs_then = [
        world.submit(ann, cell, file) for file in (envelope(), inside("inner"), world.a_file("same"), world.a_file("x"))
    ]
    good = fresh(cell).revision
    for job in reversed(jobs_then):
        kill(job)
    same = world.submit(ann, cell, world.a_file("same"))
    for file in (envelope(cpu="2"), inside("inner", tasks=2), world.with_task("x", command=["other"])):
        world.submit(ann, cell, file)
    done = restore(cell, good)
    assert sorted(done.stopped.names) == sorted(done.submitted.names) == ["ubar/inner", "ubar/shelf", "ubar/x"]
    live = {job.name: job for job in Job.objects.exclude(state="dead")}
    assert live.keys() == {"shelf", "inner", "same", "x"}
    assert live["same"].pk == same.pk
    assert live["inner"].alloc_set_id == live["shelf"].pk
    for job in jobs_then:
        digests = {JobSpec.objects.get(job=one).digest for one in (job, live[job.name])}
        assert len(digests) == 1


def test_jobs_that_finished_in_part_do_not_repeat_their_work(cell, machine, ann) -> None:
    job = world.submit(ann, cell, world.a_file())
    world.bring_up(job, machine)
    finished(cell, Task.objects.get(job=job, index=0))
    good = fresh(cell).revision
    finished(cell, Task.objects.get(job=job, index=1))
    kill(job)
    done = restore(cell, good)
    assert (done.submitted.tasks, done.tasks_finished) == (1, 1)
    again = Job.objects.exclude(state="dead").get()
    states = list(Task.objects.filter(job=again).order_by("index").values_list("state", "outcome"))
    assert states == [("dead", "finished"), ("dead", "finished"), ("pending", "")]


def test_a_job_whose_tasks_were_swapped_stays_live(cell, ann) -> None:
    job = world.submit(ann, cell, world.a_file(tasks=2))
    kill(job, indexes=[1])
    good = fresh(cell).revision
    with journal.write(cell.id, SRE) as entry:
        transitions.tasks_revive(entry, [task_id(job.id, 1)], spec_version=1)
    kill(job, indexes=[0])
    done = restore(cell, good)
    assert (done.tasks_revived, done.tasks_ended) == (1, 1)
    assert list(Task.objects.filter(job=job).order_by("index").values_list("state", flat=True)) == ["pending", "dead"]
    assert Job.objects.get(pk=job.pk).state == "pending"


def test_a_job_that_cannot_come_back_is_a_problem_and_no_error(cell, ann, tenant, monkeypatch) -> None:
    job, other, old, done = (world.submit(ann, cell, world.a_file(name)) for name in ("web", "other", "old", "done"))
    update(cell, other, world.with_task("other", command=["again"]))
    good = fresh(cell).revision
    kill(old)
    for task in Task.objects.filter(job=done):
        finished(cell, task)
    Archiver(store()).run(now=timezone.now() + dt.timedelta(days=31))
    kill(job)
    update(cell, other, world.with_task("other", command=["badly"]))
    JobSpec.objects.filter(job=other, version=2).delete()  # as the archiver does after a month
    Quota.objects.filter(tenant=tenant).delete()
    new = world.submit(ann, cell, world.a_file("new", priority=0))
    shown = restore(cell, good, dry_run=True)
    with CaptureQueriesContext(connection) as queries:
        restored = restore(cell, good)
    assert not any("AS number FROM scheduling_job" in one["sql"] for one in queries), "no explanation under the lock"
    assert shown.problems == restored.problems
    assert [problem.job for problem in restored.problems] == ["ubar/old", "ubar/other", "ubar/web"]
    assert restored.problems[0].reason.endswith(
        "in the archive, without secret values; submit the job again from its own file"
    )
    assert restored.problems[1].reason.endswith("without secret values; apply your own copy of it")
    assert "quota" in restored.problems[2].reason
    assert (restored.stopped.names, restored.submitted.number, restored.changed.number) == (["ubar/new"], 0, 0)
    assert restored.tasks_finished == 3, "the archive has the outcome"
    assert Job.objects.get(pk=new.pk).state == "dead"
    assert Job.objects.get(pk=other.pk).spec_version == 3
    assert query("SELECT count(*) FROM scheduling_event WHERE kind = 'job.rejected'") == [(1,)]
    with pytest.raises(Conflict, match="the first is job ubar/old: its job file"):
        restore(cell, good)
    monkeypatch.setattr(restoring, "MOST_NAMES", 2)
    few = restore(cell, good, dry_run=True)
    assert (few.problems_number, few.problems) == (3, restored.problems[:2])


def limit_quota(tenant: Tenant) -> None:
    """Set the quota of a tenant to what its jobs use."""
    for use in QuotaUse.objects.filter(tenant=tenant):
        Quota.objects.filter(tenant=tenant, band=use.band).update(amounts=use.used)


def test_live_jobs_stay_if_the_earlier_ones_cannot_come_back(cell, ann, tenant) -> None:
    earlier = [envelope(), inside(), world.a_file("big"), world.a_file("moved"), world.a_file("free", priority=0)]
    then = [world.submit(ann, cell, file) for file in earlier]
    good = fresh(cell).revision
    for job in reversed(then):
        kill(job)
    small = [envelope(tasks=1), inside(), world.a_file("big", tasks=1), envelope("new", tasks=1, cpu="200m")]
    moved = inside("moved", alloc_set="new", tasks=1)
    now = [world.submit(ann, cell, file) for file in (*small, moved, world.a_file("free", priority=0, tasks=1))]
    limit_quota(tenant)
    done = restore(cell, good)
    reasons = {problem.job.removeprefix("ubar/"): problem.reason for problem in done.problems}
    assert reasons.keys() == {"shelf", "web", "big", "new", "moved"}
    assert "the restore left this job unchanged: tenant ubar" in reasons["big"]
    assert "ubar/shelf cannot be restored" in reasons["web"]
    assert "ubar/moved cannot be restored" in reasons["new"]
    assert (done.stopped.names, done.submitted.names, done.submitted.tasks) == (["ubar/free"], ["ubar/free"], 3)
    live = Job.objects.exclude(state="dead").exclude(name="free").order_by("pk")
    assert list(live.values_list("pk", flat=True)) == [job.pk for job in now[:-1]]
    assert sum(live.values_list("tasks_pending", flat=True)) == 1 + 3 + 1 + 1 + 1


def test_jobs_come_back_in_the_order_in_which_they_fit(cell, ann, tenant) -> None:
    names = ("grows", "gone", "shrinks")
    grows, gone, shrinks = (world.submit(ann, cell, world.a_file(name, tasks=2)) for name in names)
    shelf = world.submit(ann, cell, envelope(cpu="2", priority="batch"))
    large = inside("a-part", limit={"cpu": "1500m", "ram": "64Mi", "disk": "64Mi"}, tasks=1)
    part = world.submit(ann, cell, large | {"priority": "batch"})
    good = fresh(cell).revision
    limit_quota(tenant)
    for job in (gone, part):
        kill(job)
    update(cell, shelf, envelope(cpu="1", priority="batch"))
    update(cell, grows, world.a_file("grows", tasks=1))
    update(cell, shrinks, world.a_file("shrinks", tasks=5))  # it uses all quota that the others have released
    done = restore(cell, good)
    assert done.problems == []
    assert done.submitted.names == ["ubar/a-part", "ubar/gone"]
    assert done.changed.names == ["ubar/grows", "ubar/shelf", "ubar/shrinks"]
    assert query("SELECT count(*) FROM scheduling_event WHERE kind = 'job.rejected'") == [(0,)]


def test_jobs_of_an_erased_tenant_do_not_come_back(cell, ann) -> None:
    job = world.submit(ann, cell, world.a_file())
    good = fresh(cell).revision
    kill(job)
    Eraser(store()).erase(IdentityKind.TENANT, "ubar", principal=SRE, now=timezone.now())
    world.submit(ann, cell, world.a_file("new"))
    shown = restore(cell, good, dry_run=True)
    (problem,) = shown.problems
    assert problem.job.startswith("erased-")
    assert problem.reason == "its tenant was erased from the history, so its jobs do not come back"
    assert (shown.stopped.names, shown.submitted.names) == (["ubar/new"], [])


def test_a_restore_is_rejected_if_users_changed_jobs_after_the_losses_were_shown(disaster, ann) -> None:
    cell, good, kept = disaster
    shown = restore(cell, good, dry_run=True).revision
    world.report(kept["part"], 0, up=False)  # what tasks do does not count
    world.submit(ann, cell, world.a_file("newest", tasks=1))
    kill(kept["part"], indexes=[0])
    before = everything(cell)
    with pytest.raises(Conflict, match=rf"after revision {shown} \(1 job.submitted, 1 task.ended\)") as error:
        restore(cell, good, if_revision=shown)
    assert error.value.code == "cell-changed"
    for wrong, field in (({"if_revision": None}, "if_revision"), ({"if_revision": 10**9}, "if_revision")):
        with pytest.raises(Rejected) as rejected:
            restore(cell, good, **wrong)
        assert rejected.value.fields.keys() == {field}
    with pytest.raises(Forbidden):
        cell_restore(principal=ann, cell=fresh(cell), revision=good, dry_run=True)
    study = study_restore(principal=SRE, cell=fresh(cell), into="copy", revision=good)
    with pytest.raises(Conflict, match="study cell"):
        restore(study.cell, good, dry_run=True)
    study_delete(principal=SRE, cell=study.cell)
    assert everything(cell) == before
    part = Job.objects.select_related("cell", "tenant").get(pk=kept["part"].pk)
    larger = world.read(cell, world.a_file("part", tasks=5))
    updates.job_update(principal=SRE, job=part, job_spec=larger, later=True)
    shown = fresh(cell).revision
    updates.updates_advance(cell.id)  # it adds tasks, but an SRE has started it before
    assert query("SELECT count(*) FROM scheduling_event WHERE revision > %s AND kind = 'tasks.added'", [shown]) == [
        (1,)
    ]
    restore(cell, good, if_revision=shown)


def test_a_restore_whose_connection_is_lost_changes_nothing(disaster) -> None:
    cell, good, _ = disaster
    before, errors = everything(cell), []

    def attempt() -> None:
        try:
            restore(cell, good)
        except DatabaseError as error:
            errors.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=attempt)
    with transaction.atomic():
        list(QuotaUse.objects.select_for_update())  # the second half of the restore has to wait
        thread.start()
        wait_until_blocked()
        query("SELECT 1 FROM scheduling_cell FOR KEY SHARE NOWAIT")  # rows that refer to the cell can be inserted
        query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        thread.join(30)
    assert len(errors) == 1
    assert everything(cell) == before
    assert restore(cell, good).stopped.number == 1


def test_sres_restore_in_place_over_rest(disaster, monkeypatch, home) -> None:
    cell, good, _ = disaster
    monkeypatch.setenv("BORG_DATABASE_URL", database_url())
    monkeypatch.setenv("BORG_HOME", str(home))
    sre, path = world.bearer(world.a_user("root", sre=True)), f"/api/v1/cells/{cell.name}/checkpoints:restore-in-place"
    missing = sre.post(path, {"revision": good}, content_type="application/json")
    assert (missing.status_code, missing.json()["fields"].keys()) == (422, {"if_revision"})
    confirmed = {"revision": good, "if_revision": fresh(cell).revision}
    done = sre.post(path, confirmed, content_type="application/json")
    assert done.status_code == 200, done.content
    assert done.json()["stopped"] == {"number": 1, "tasks": 2, "names": ["ubar/new"]}
    assert done.json()["history"] == str(fresh(cell).history_id)


def spec_tasks(job: RequestedJob) -> int:
    return JobSpec.objects.get(job_id=job.id, version=job.version).spec["tasks"]


def test_workflows_and_their_jobs_stay_as_they_are(cell, ann) -> None:
    after_a = workflow_rows.after("a")
    row = workflow_rows.submit(ann, cell, {"a": workflow_rows.node(), "b": after_a, "c": after_a})
    workflow_rows.advance(cell)
    good = fresh(cell).revision
    world.submit(ann, cell, world.a_file("plain"))
    workflow_rows.end(row, "a")
    workflow_rows.advance(cell)
    done = restore(cell, good)
    assert (done.stopped.names, done.submitted.names, done.changed.names) == (["ubar/plain"], [], [])
    workflow_rows.advance(cell)
    assert workflow_rows.states(row) == {"a": "succeeded", "b": "running", "c": "running"}
    assert [job.name for job in workflow_rows.jobs_of(row)] == ["w-a", "w-b", "w-c"]
