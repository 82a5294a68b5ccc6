"""Tests of jobs that wait for other jobs: binding of names, the wait, releases, ends, changes and deletion."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from quota.models import QuotaUse
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import system
from scheduling.access.selectors import job_named
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.task_events import Ending
from scheduling.history.archive import ended_jobs
from scheduling.jobs import plans, submit_and_kill, updates
from scheduling.jobs.actions.retry import job_retry
from scheduling.jobs.dependencies import turn
from scheduling.jobs.dependencies.turn import dependencies_settle
from scheduling.jobs.why import explain_job, explain_task, job_sentences
from scheduling.journal import group_commit, journal
from scheduling.journal.sql import query
from scheduling.master import queue_health
from scheduling.master.invariants import validate
from scheduling.master.loop import Master
from scheduling.master.snapshot import load_state
from scheduling.models import ArchiveFile, Job, JobDependency, Task, Update
from scheduling.tasks import transitions
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)


def end(job: Job, how: str = "finished", *indexes: int) -> None:
    """End tasks of the job, by default all live ones."""
    living = Task.objects.filter(job=job).exclude(state="dead").order_by("id")
    ids = living.filter(index__in=indexes) if indexes else living
    with journal.write(job.cell_id, system("test")) as entry:
        transitions.tasks_end(entry, [Ending(task, how) for task in ids.values_list("id", flat=True)])


def submitted(ann, cell, name: str, **changes) -> Job:
    return world.submit(ann, cell, world.a_file(name, **changes))


def update(who, job: Job, **changes) -> updates.JobChange:
    job = Job.objects.select_related("cell", "tenant").get(pk=job.pk)
    file = world.a_file(job.name, **changes)
    return updates.job_update(principal=who, job=job, job_spec=world.read(job.cell, file))


def delete_rows(job: Job) -> None:
    """Delete the rows of an ended job, as the archiver does after it has written them to a file."""
    now = timezone.now()
    facts = {"rows": 1, "bytes": 1, "sha256": "", "content": "", "schema_version": 1, "written_at": now}
    file = ArchiveFile.objects.create(
        cell=job.cell, table=ended_jobs.ENDED, day=now.date(), first=job.id, last=job.id, **facts
    )
    ended_jobs.index(file, (job.id,))
    ended_jobs._delete([job.id])


def running(job: Job) -> int:
    return Task.objects.filter(job=job, state="running").count()


def waiting(job: Job) -> bool:
    return Job.objects.get(pk=job.pk).waiting


def test_tasks_wait_until_the_other_job_has_succeeded(cell, ann, machine) -> None:
    load = submitted(ann, cell, "load")
    job = submitted(ann, cell, "report", after={"load": "succeeded"})
    assert QuotaUse.objects.get().used[0] == 600  # both have their quota
    master = Master(cell.id)
    master.tick()
    assert (running(load), running(job), waiting(job)) == (3, 0, True)
    assert validate(cell.id) == []
    assert queue_health.queues(cell.id) == []  # a task that waits for another job does not starve

    end(load, "finished", 0, 1)
    assert dependencies_settle(cell.id) == 0
    end(load)
    assert dependencies_settle(cell.id) == 1
    master.tick()
    assert (running(job), waiting(job)) == (3, False)
    said = [record.event for record in journal.tail(cell.id, after=0)]
    assert [event.job_id for event in said if isinstance(event, events.JobReleased)] == [job.id]
    master._advance()
    assert load_state(cell.id).diff(master.state) == []


def test_a_master_releases_jobs_by_itself(cell, ann, machine) -> None:
    load = submitted(ann, cell, "load")
    job = submitted(ann, cell, "report", after={"load": "ended"})
    world.bring_up(load, machine)
    end(load, "failed")
    master, until = Master(cell.id), timezone.now() + dt.timedelta(seconds=30)
    while running(job) < 3 and timezone.now() < until:
        master.run(0.3)
    assert running(job) == 3


@pytest.mark.parametrize(("goal", "how"), [("succeeded", "failed"), ("succeeded", "killed"), ("running", "killed")])
def test_a_job_ends_if_the_other_can_no_longer_reach_its_goal(cell, ann, machine, goal, how) -> None:
    load = submitted(ann, cell, "load")
    job = submitted(ann, cell, "report", after={"load": goal})
    end(load, how)
    Master(cell.id).tick()
    job.refresh_from_db()
    assert (job.state, job.outcome) == ("dead", "failed")
    detail = f"dependency: job load has ended ({how}), so it can no longer be {goal}, for which this job waits"
    assert set(Task.objects.filter(job=job).values_list("state", "outcome", "detail")) == {("dead", "failed", detail)}
    assert QuotaUse.objects.get().used[0] == 0
    assert validate(cell.id) == []


def test_a_running_goal_is_reached_when_all_live_tasks_are_up(cell, ann, machine) -> None:
    server = submitted(ann, cell, "server")
    job = submitted(ann, cell, "client", after={"server": "running"})
    other = submitted(ann, cell, "both", after={"server": "running", "client": "ended"})
    world.place(server, machine, 0, 1, 2)
    world.report(server, 0, 1)
    assert dependencies_settle(cell.id) == 0
    world.report(server, 2)
    assert dependencies_settle(cell.id) == 1
    assert (waiting(job), waiting(other)) == (False, True)
    world.report(server, 0, up=False)  # a goal stays reached
    end(server, "failed")
    end(job, "killed")
    assert dependencies_settle(cell.id) == 1
    assert not waiting(other)


def test_a_goal_that_is_reached_at_the_submission_does_not_wait(cell, ann, machine) -> None:
    load, server = submitted(ann, cell, "load"), submitted(ann, cell, "server")
    world.bring_up(server, machine)
    end(load)
    job = submitted(ann, cell, "report", after={"load": "succeeded", "server": "running"})
    assert not job.waiting
    assert JobDependency.objects.filter(job=job, reached_at__isnull=False).count() == 2


def test_a_name_means_the_live_job_or_else_the_last_one(cell, ann) -> None:
    first = submitted(ann, cell, "load")
    end(first, "failed")
    second = submitted(ann, cell, "load")
    job = submitted(ann, cell, "report", after={"load": "succeeded"})
    assert JobDependency.objects.get(job=job).on_id == second.id
    end(second)
    third = submitted(ann, cell, "load")
    assert dependencies_settle(cell.id) == 1
    later = submitted(ann, cell, "later", after={"load": "ended"})
    assert JobDependency.objects.get(job=later).on_id == third.id


def test_names_that_cannot_be_bound_are_rejected(cell, ann, machine) -> None:
    load = submitted(ann, cell, "load")
    end(load, "killed")
    before = Job.objects.count()
    with pytest.raises(Rejected) as refused:
        submitted(ann, cell, "report", after={"none": "ended", "load": "succeeded"})
    assert set(refused.value.fields) == {"after.none", "after.load"}
    assert "submit job none first" in refused.value.fields["after.none"]
    assert "has ended (killed)" in refused.value.fields["after.load"]
    assert (Job.objects.count(), QuotaUse.objects.get().used[0]) == (before, 0)


def test_other_tenants_and_cells_have_other_jobs(cell, ann, machine) -> None:
    other = rows.a_tenant("other")
    rows.grant(other, cell, "production")
    bob = world.principal("bob", tenant=other)
    world.submit(bob, cell, world.a_file("load"), tenant="other")
    with pytest.raises(Rejected, match="the tenant has no live job load in this cell"):
        submitted(ann, cell, "report", after={"load": "ended"})


@pytest.mark.parametrize("bad", [{"tasks": 0}, {"tasks": 10_000}, {"after": {"none": "ended"}}])
def test_an_older_job_does_not_replace_a_rejected_job_of_the_request(cell, ann, bad) -> None:
    """Submit a new `load` and a job that waits for it. `load` is rejected, and yesterday's `load` has succeeded."""
    end(submitted(ann, cell, "load"))
    files = [world.a_file("load", **bad), world.a_file("report", after={"load": "succeeded"})]
    done = submit_and_kill.jobs_submit_bulk(principal=ann, cell=cell, files=files, tenant="ubar")
    assert [one.outcome for one in done] == ["refused", "refused"]
    problem = done[1].problem
    assert problem is not None
    assert "job load of this request was rejected" in problem.fields["after.load"]


def test_a_rejected_job_of_an_earlier_batch_counts_too(cell, ann, monkeypatch) -> None:
    monkeypatch.setattr(submit_and_kill, "JOBS_AT_ONCE", 1)
    end(submitted(ann, cell, "load"))
    files = [world.a_file("load", tasks=10_000), world.a_file("report", after={"load": "succeeded"})]
    done = submit_and_kill.jobs_submit_bulk(principal=ann, cell=cell, files=files, tenant="ubar")
    assert [one.outcome for one in done] == ["refused", "refused"]


@pytest.mark.parametrize(("who", "tasks"), [("ann", 10_000), ("eve", 1)])
def test_an_older_job_does_not_replace_a_rejected_job_of_several_principals(cell, ann, who, tasks) -> None:
    """The first job is rejected for lack of quota, or because its principal may not submit jobs."""
    end(submitted(ann, cell, "load"))
    load = world.read(cell, world.a_file("load", tasks=tasks))
    report = world.read(cell, world.a_file("report", after={"load": "succeeded"}))
    with transaction.atomic():
        done = submit_and_kill.jobs_submit_for(cell=cell, asked=[(world.principal(who), load), (ann, report)])
    assert [one.outcome for one in done] == ["refused", "refused"]


def test_a_batch_that_lost_its_turn_counts_as_rejected(cell, ann, monkeypatch) -> None:
    """The first batch has more tasks than one transaction may have, so the second one has a turn of its own."""
    end(submitted(ann, cell, "load"))
    turns = iter([True])

    @contextmanager
    def lost_once(cell_id: int) -> Iterator[None]:
        if next(turns, False):
            raise group_commit.TurnLost
        yield

    monkeypatch.setattr(submit_and_kill.group_commit, "bulk_turn", lost_once)
    files = [
        world.a_file("load", tasks=journal.CHUNK - 4, priority=0),
        world.a_file("other", priority=0),
        world.a_file("report", after={"load": "succeeded"}),
        world.a_file("last"),
    ]
    done = submit_and_kill.jobs_submit_bulk(principal=ann, cell=cell, files=files, tenant="ubar")
    assert [one.outcome for one in done] == ["refused", "refused", "refused", "submitted"]


def test_an_equal_live_job_of_the_request_is_the_one_that_is_meant(cell, ann) -> None:
    load = submitted(ann, cell, "load")
    files = [world.a_file("load"), world.a_file("report", after={"load": "succeeded"})]
    done = submit_and_kill.jobs_submit_bulk(principal=ann, cell=cell, files=files, tenant="ubar")
    assert [one.outcome for one in done] == ["unchanged", "submitted"]
    assert JobDependency.objects.get().on_id == load.id


def test_many_waiting_jobs_on_a_server_that_is_partly_up_cost_no_rows(cell, ann, machine) -> None:
    server = submitted(ann, cell, "server")
    files = [world.a_file(f"c{number}", after={"server": "running"}) for number in range(200)]
    submit_and_kill.jobs_submit_bulk(principal=ann, cell=cell, files=files, tenant="ubar")
    world.place(server, machine, 0, 1, 2)
    world.report(server, 0, 1)
    assert query(turn._DECIDED, {"cell": cell.id, "ids": None, "most": 10}) == []
    world.report(server, 2)
    assert len(query(turn._DECIDED, {"cell": cell.id, "ids": None, "most": 10})) == 10
    assert dependencies_settle(cell.id) == 200


def test_an_alloc_set_cannot_be_named(cell, ann) -> None:
    pad = {"kind": "AllocSet", "name": "pad", "tasks": 1, "task": {"limit": {"cpu": "1", "ram": "64Mi"}}}
    world.submit(ann, cell, pad)
    with pytest.raises(Rejected, match="pad is an alloc set"):
        submitted(ann, cell, "report", after={"pad": "ended"})


def test_an_update_of_a_waiting_job_has_no_gates(cell, ann, machine) -> None:
    submitted(ann, cell, "load")
    rules = {"update": {"rollback": True, "deadline_s": 60, "canary": 1}}
    job = submitted(ann, cell, "report", after={"load": "succeeded"}, **rules)
    changed = {"task": world.with_task(command=["serve", "--fast"])["task"], "after": {"load": "succeeded"}}
    update(ann, job, **changed, **rules)
    assert set(world.versions(job)) == {2}
    assert Update.objects.get(job=job).state == Update.DONE


def test_jobs_that_end_while_they_wait_leave_no_open_dependency(cell, ann) -> None:
    submitted(ann, cell, "load")
    job = submitted(ann, cell, "report", after={"load": "succeeded"})
    submit_and_kill.job_kill(principal=ann, job=Job.objects.select_related("cell", "tenant").get(pk=job.pk))
    assert not JobDependency.objects.get().open
    client = world.bearer(world.a_user("ann"))
    assert client.get(f"/api/v1/cells/{cell.name}/jobs/ubar/report/").json()["waiting"] is False


def test_validate_finds_a_job_that_would_wait_for_ever(cell, ann) -> None:
    submitted(ann, cell, "load")
    job = submitted(ann, cell, "report", after={"load": "succeeded"})
    JobDependency.objects.update(open=False)
    assert [problem for problem in validate(cell.id) if "has no open dependency" in problem]
    JobDependency.objects.update(open=True)
    assert waiting(job)


def test_a_job_may_name_an_earlier_job_of_the_same_request(cell, ann) -> None:
    files = [
        world.a_file("a"),
        world.a_file("b", after={"a": "succeeded"}),
        world.a_file("c", after={"b": "succeeded", "d": "ended"}),
        world.a_file("d"),
        world.a_file("large", tasks=10_000),
        world.a_file("e", after={"large": "ended"}),
    ]
    done = submit_and_kill.jobs_submit_bulk(principal=ann, cell=cell, files=files, tenant="ubar")
    assert [one.outcome for one in done] == ["submitted", "submitted", "refused", "submitted", "refused", "refused"]
    (one,) = JobDependency.objects.all()
    assert (one.job.name, one.on.name, one.on_uid) == ("b", "a", one.on.uid)
    assert QuotaUse.objects.get().used[0] == 900  # the rejected jobs use none


def test_the_number_of_queries_depends_on_no_number_of_jobs(cell, ann) -> None:
    def queries(names: list[str]) -> int:
        files = [
            world.a_file("load-" + names[0]),
            *(world.a_file(n, after={"load-" + names[0]: "ended"}) for n in names),
        ]
        with CaptureQueriesContext(connection) as seen:
            done = submit_and_kill.jobs_submit_bulk(principal=ann, cell=cell, files=files, tenant="ubar")
        assert {one.outcome for one in done} == {"submitted"}
        return len(seen)

    submitted(ann, cell, "first")  # makes the row of the quota in use
    assert queries(["a", "b"]) == queries([f"c{number}" for number in range(20)])
    for load in Job.objects.filter(name__startswith="load-"):
        end(load)
    with CaptureQueriesContext(connection) as seen:
        assert dependencies_settle(cell.id) == 22
    assert len(seen) <= 12
    with CaptureQueriesContext(connection) as seen:
        assert dependencies_settle(cell.id) == 0
    assert len(seen) == 1


def test_a_job_with_many_tasks_ends_in_parts(cell, ann) -> None:
    load = submitted(ann, cell, "load")
    job = submitted(ann, cell, "report", after={"load": "succeeded"}, tasks=5)
    Update.objects.create(job=job, from_version=1, to_version=1, actor="ann")
    end(load, "failed")
    assert [dependencies_settle(cell.id, most=2) for _ in range(4)] == [1, 1, 1, 0]
    job.refresh_from_db()
    assert (job.state, Update.objects.get().state) == ("dead", "superseded")


def test_the_explanations_name_the_jobs(cell, ann, machine) -> None:
    submitted(ann, cell, "load"), submitted(ann, cell, "copy")
    file = world.a_file("report", after={"load": "succeeded", "copy": "running"})
    plan = plans.job_plan(principal=ann, cell=cell, job_spec=world.read(cell, file))
    job = world.submit(ann, cell, file)
    Master(cell.id).tick()
    seen = job_named(ann, cell, "ubar", "report")
    told = "The tasks wait until all tasks of job copy are up, and until job load has succeeded (after)."
    assert plan.notes == (told,)
    assert told in job_sentences(seen)
    assert told in explain_job(seen, ann).sentences
    assert told in explain_task(seen, Task.objects.get(job=job, index=0), ann).sentences


def test_rest_shows_the_dependencies(cell, ann, tenant) -> None:
    load = submitted(ann, cell, "load")
    submitted(ann, cell, "report", after={"load": "succeeded"})
    client = world.bearer(world.a_user("ann"), tenant=tenant)
    answer = client.get(f"/api/v1/cells/{cell.name}/jobs/ubar/report/").json()
    assert answer["waiting"] is True
    assert answer["after"] == [
        {"name": "load", "uid": str(load.uid), "goal": "succeeded", "open": True, "reached_at": None}
    ]
    assert client.get(f"/api/v1/cells/{cell.name}/jobs/ubar/load/").json()["after"] == []


def test_an_update_can_only_remove_names(cell, ann, machine) -> None:
    submitted(ann, cell, "load"), submitted(ann, cell, "copy")
    job = submitted(ann, cell, "report", after={"load": "succeeded", "copy": "ended"})
    for after in ({"load": "ended"}, {"load": "succeeded", "copy": "ended", "other": "ended"}):
        with pytest.raises(Rejected) as refused:
            update(ann, job, after=after)
        assert "kill this job and submit it again" in next(iter(refused.value.fields.values()))
    assert update(ann, job, after={"load": "succeeded", "copy": "ended"}, labels={"a": "b"}).outcome == "updated"
    update(ann, job, after={"load": "succeeded"})
    assert (waiting(job), JobDependency.objects.get(job=job, open=True).name) == (True, "load")
    update(ann, job)
    assert not waiting(job)
    Master(cell.id).tick()
    assert running(job) == 3
    with pytest.raises(Rejected, match="this job no longer waits for others"):
        update(ann, job, after={"load": "succeeded"})


def test_an_undo_does_not_let_a_job_wait_again(cell, ann, machine) -> None:
    submitted(ann, cell, "load")
    job = submitted(ann, cell, "report", after={"load": "succeeded"})
    update(ann, job)
    job = Job.objects.select_related("cell", "tenant").get(pk=job.pk)
    assert not updates.job_undo(principal=ann, job=job).job.waiting


def test_a_retry_waits_again_only_if_the_job_never_started(cell, ann, machine) -> None:
    load = submitted(ann, cell, "load")
    started = submitted(ann, cell, "started", after={"load": "ended"})
    never = submitted(ann, cell, "never", after={"load": "succeeded"})
    end(load, "failed")
    dependencies_settle(cell.id)
    end(started, "failed")
    known = Job.objects.select_related("cell", "tenant")
    assert not job_retry(principal=ann, job=known.get(pk=started.pk)).job.waiting
    with pytest.raises(Rejected, match=r"job load has ended \(failed\)"):
        job_retry(principal=ann, job=known.get(pk=never.pk))
    submitted(ann, cell, "load")
    assert job_retry(principal=ann, job=known.get(pk=never.pk)).job.waiting


def test_a_job_that_others_wait_for_stays_in_postgresql(cell, ann, machine) -> None:
    """The archive takes a job only after the master has seen its end, so that no waiting job is stranded."""
    load = submitted(ann, cell, "load")
    job = submitted(ann, cell, "report", after={"load": "succeeded"})
    end(load)
    now = timezone.now() + dt.timedelta(days=100)
    assert ended_jobs.next_jobs(cell, now=now) is None
    dependencies_settle(cell.id)
    found = ended_jobs.next_jobs(cell, now=now)
    assert found is not None
    assert found.jobs == (load.id,)
    delete_rows(load)
    one = JobDependency.objects.get(job=job)
    assert (one.on_id, one.on_uid) == (None, load.uid)


def test_a_deleted_job_strands_no_waiting_job(cell, ann, machine) -> None:
    load = submitted(ann, cell, "load")
    jobs = [submitted(ann, cell, goal, after={"load": goal}) for goal in ("ended", "succeeded")]
    end(load)
    delete_rows(load)
    assert dependencies_settle(cell.id) == 2
    assert [Job.objects.get(pk=job.pk).state for job in jobs] == ["pending", "dead"]
    assert not waiting(jobs[0])
