"""Tests of actions that change a job without a job file, on real PostgreSQL: scale, restart, pause and resume."""

from __future__ import annotations

import json

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from quota.models import QuotaUse
from quota.vocabulary.errors import Conflict, Rejected
from quota.vocabulary.permissions import Role
from quota.vocabulary.resources import CPU
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.task_events import Ending, Eviction
from scheduling.demotion.demotion import DemotionCause, jobs_demote
from scheduling.jobs import cell_fits, submit_and_kill, updates
from scheduling.jobs.actions.pause import update_pause, update_resume
from scheduling.jobs.actions.restart import job_restart
from scheduling.jobs.actions.retry import job_retry
from scheduling.jobs.actions.scale import job_scale
from scheduling.jobs.actions.task_selection import parse_ranges
from scheduling.journal import group_commit, journal
from scheduling.master.loop import Master
from scheduling.models import Job, JobSpec, Task, Update
from scheduling.tasks import transitions
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)

WEB = "/api/v1/cells/cc/jobs/ubar/web/"


@pytest.fixture
def job(cell, ann, machine):
    """Return a job with three tasks that are up."""
    job = world.submit(ann, cell, world.a_file())
    world.bring_up(job, machine)
    return read(job)


@pytest.fixture
def client(tenant):
    return world.bearer(world.a_user("cora", tenant=tenant, role=Role.OPERATOR))


def read(job: Job) -> Job:
    return Job.objects.select_related("cell", "tenant").get(pk=job.pk)


def post(client, path: str, body=None, **headers):
    given = json.dumps(body if body is not None else {})
    return client.post(WEB + path, given, content_type="application/json", headers=headers)


def states(job: Job) -> list[str]:
    return list(Task.objects.filter(job=job).order_by("index").values_list("state", flat=True))


def test_scaling_changes_only_the_number_of_tasks_and_the_quota(client, tenant, job) -> None:
    answer = post(client, "scale/?dry_run=1", {"tasks": 5}).json()
    assert (answer["outcome"], answer["tasks"]["added"], states(job)) == ("updated", 2, ["running"] * 3)
    answer = post(client, "scale/", {"tasks": 5}).json()
    assert (answer["tasks"]["added"], answer["tasks"]["kept"], answer["job"]["spec_version"]) == (2, 3, 2)
    assert states(job) == ["running"] * 3 + ["pending"] * 2
    assert QuotaUse.objects.get(tenant=tenant, band__name="production").used[CPU] == 500
    assert post(client, "scale/", {"tasks": 1}).json()["tasks"]["removed"] == 4
    assert states(job) == ["running"] + ["dead"] * 4
    assert QuotaUse.objects.get(tenant=tenant, band__name="production").used[CPU] == 100
    assert Task.objects.filter(job=job, up=True, incarnation=1).count() == 1
    assert post(client, "scale/", {"tasks": 1}).json()["outcome"] == "unchanged"


@pytest.mark.parametrize("tasks, status, field", [(0, 422, "tasks"), (10**6, 422, "tasks"), (900, 403, None)])
def test_an_impossible_number_of_tasks_names_the_cure_and_changes_nothing(cell, client, job, tasks, status, field):
    revision = journal.newest(cell.id)
    answer = post(client, "scale/?dry_run=1", {"tasks": tasks})
    assert answer.status_code == status, answer.content
    assert field is None or field in answer.json()["fields"]
    assert (journal.newest(cell.id), states(job)) == (revision, ["running"] * 3)


def test_scaling_never_drops_settings_of_single_tasks(cell, ann, job) -> None:
    file = world.a_file(overrides={"2": {"weight": 0}})
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, file))
    with pytest.raises(Rejected, match=r"settings for task 2 \(overrides\.2\); give at least 3"):
        job_scale(principal=ann, job=read(job), tasks=2)
    assert job_scale(principal=ann, job=read(job), tasks=4).version == 3


def test_scaling_does_not_undo_an_update_that_came_in_between(cell, ann, job) -> None:
    stale = read(job)
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, world.with_task(command=["new"])))
    with pytest.raises(Rejected, match="look at the plan again") as rejected:
        job_scale(principal=ann, job=stale, tasks=4)
    assert (rejected.value.status, states(job)) == (412, ["pending", "running", "running"])


def test_a_change_is_rejected_if_the_job_is_not_the_one_of_the_plan(client, job) -> None:
    file = world.a_file(tasks=4)
    revision = post(client, "plan/", file).json()["job_revision"]
    for path, body in (("update/", file), ("scale/", {"tasks": 4})):
        answer = post(client, path, body, **{"if-match": '"123-1"'})
        assert (answer.status_code, answer.json()["code"]) == (412, "revision-changed")
        assert answer.json()["figures"] == {"revision": revision}
    assert post(client, "update/", file, **{"if-match": f'"{revision}"'}).json()["outcome"] == "updated"
    for body in (file, world.a_file(tasks=5)):
        answer = client.put(WEB, json.dumps(body), content_type="application/json", headers={"if-match": revision})
        assert answer.status_code == 412
    assert read(job).spec_version == 2
    assert post(client, "update/", file, **{"if-match": '""'}).status_code == 422


def test_a_submission_can_insist_that_the_name_is_free(client, cell) -> None:
    def submit(revision: str, key: str):
        headers = {"if-match": revision, "idempotency-key": key}
        path = "/api/v1/cells/cc/jobs/"
        return client.post(path, json.dumps(world.a_file()), content_type="application/json", headers=headers)

    assert post(client, "plan/", world.a_file()).json()["job_revision"] == "new"
    assert submit("0123-1", "a").status_code == 412
    assert submit("new", "a").status_code == 201
    assert submit("new", "a").status_code == 201, "a repetition of the same request has the same answer"
    assert submit("new", "b").status_code == 412


def advance(job: Job, machine) -> None:
    """Bring up the pending tasks of the job and continue its update, as the master does."""
    world.bring_up(job, machine)
    updates.updates_advance(job.cell_id)


def incarnations(job: Job) -> list[int]:
    return list(Task.objects.filter(job=job).order_by("index").values_list("incarnation", flat=True))


def test_a_restart_replaces_each_task_once_and_one_at_a_time(cell, ann, machine, job) -> None:
    done = job_restart(principal=ann, job=job)
    assert (done.tasks, done.max_down) == (3, 1)
    for following in ([2, 1, 1], [2, 2, 1], [2, 2, 2]):
        assert Task.objects.filter(job=job, up=True).count() == 2
        assert not updates.updates_advance(cell.id), "no further task restarts while one is down"
        advance(job, machine)
        assert incarnations(job) == following
    update = Update.objects.get(job=job)
    assert (update.state, update.disruptions, read(job).spec_version) == (Update.DONE, 3, 1)
    evicted = [r for r in journal.tail(cell.id, after=0) if isinstance(r.event, events.TaskEvicted)]
    started = next(r for r in journal.tail(cell.id, after=0) if isinstance(r.event, events.UpdateStarted))
    assert {(e.event.detail, e.caused_by) for e in evicted} == {
        ("restart by ann", journal.Cause(started.revision, started.seq))
    }
    assert started.event.restarted == 3


def test_a_restart_of_some_tasks_skips_a_task_that_has_moved_since(cell, ann, machine, job) -> None:
    assert job_restart(principal=ann, job=job, ranges=parse_ranges("2,0")).tasks == 2
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_evict(entry, [Eviction(task_id(job.id, 2), 1, "machine-failure", gone=True)])
    advance(job, machine)
    assert incarnations(job) == [2, 1, 2]
    assert Update.objects.get(job=job).state == Update.DONE


def test_a_restart_keeps_the_disruption_budget_and_the_versions_of_tasks(cell, ann, machine, job) -> None:
    """An update stopped after its first task. A restart does not change the versions of the tasks."""
    file = world.with_task(tasks=3, command=["new"]) | {"update": {"max_down": 3, "max_disruptions": 1}}
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, file))
    advance(job, machine)
    assert Update.objects.get(job=job).state == Update.STOPPED
    with pytest.raises(Conflict, match="allows 1 disruptions per update") as rejected:
        job_restart(principal=ann, job=job)
    assert rejected.value.figures == {"tasks": 3, "most": 1}
    file |= {"update": {"max_down": 3}, "disruption_budget": 2}
    Update.objects.all().delete()
    JobSpec.objects.filter(job=job, version=2).update(spec=world.read(cell, file).to_json())
    assert job_restart(principal=ann, job=job).max_down == 2
    assert Task.objects.filter(job=job, up=True).count() == 1
    assert world.versions(job) == [2, 1, 1]


def test_a_restart_stops_if_its_tasks_do_not_come_up(cell, ann, machine, job) -> None:
    job_restart(principal=ann, job=job)
    world.place(job, machine, 0)
    world.report(job, 0, up=False, restarts=3)
    updates.updates_advance(cell.id)
    update = Update.objects.get(job=job)
    assert (update.state, incarnations(job)) == (Update.STOPPED, [2, 1, 1])
    assert "look at their logs" in update.detail


@pytest.mark.parametrize(
    "tasks, status, code",
    [("3", 404, "not-found"), ("x", 422, "invalid"), ("2-1", 422, "invalid"), ("1,,2", 422, "invalid")],
)
def test_a_restart_of_tasks_that_the_job_does_not_have_is_rejected(client, cell, job, tasks, status, code) -> None:
    revision = journal.newest(cell.id)
    answer = post(client, "restart/", {"tasks": tasks})
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert journal.newest(cell.id) == revision


def test_restarts_wait_for_open_updates_and_need_running_tasks(client, cell, ann, machine, job) -> None:
    assert post(client, "restart/?dry_run=1", {"tasks": "1-2"}).json() == {
        "restarted": 2,
        "max_down": 1,
        "dry_run": True,
    }
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, world.with_task(command=["new"])))
    assert post(client, "restart/").json()["code"] == "update-open"
    submit_and_kill.job_kill(principal=ann, job=job, indexes=[2])
    Update.objects.all().delete()
    assert post(client, "restart/", {"tasks": "2"}).json()["code"] == "nothing-to-restart"
    submit_and_kill.job_kill(principal=ann, job=job)
    assert post(client, "restart/").json()["code"] == "job-ended"


def test_a_paused_update_changes_no_further_task_until_it_is_resumed(client, cell, ann, machine, job) -> None:
    assert post(client, "pause/").json()["code"] == "no-open-update"
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, world.with_task(command=["new"])))
    assert post(client, "pause/?dry_run=1").json()["paused_at"] is None
    assert post(client, "pause/").json()["paused_at"] is not None
    revision = journal.newest(cell.id)
    assert post(client, "pause/").json()["paused_at"] is not None, "a repetition changes nothing"
    assert journal.newest(cell.id) == revision
    advance(job, machine)
    updates.update_advance_job(job)
    assert (world.versions(job), states(job)) == ([2, 1, 1], ["running"] * 3)
    assert "is paused; `borgctl resume` continues it" in " ".join(client.get(WEB).json()["why"])
    assert post(client, "scale/", {"tasks": 4}).json()["code"] == "update-paused"
    assert post(client, "resume/").json()["paused_at"] is None
    assert world.versions(job) == [2, 2, 1]
    advance(job, machine)
    advance(job, machine)
    assert Update.objects.get(job=job).state == Update.DONE
    paused = [r.event.paused for r in journal.tail(cell.id, after=0) if isinstance(r.event, events.UpdatePaused)]
    assert paused == [True, False]


def test_a_paused_update_stays_paused_under_a_new_master(cell, ann, job) -> None:
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, world.with_task(command=["new"])))
    update_pause(principal=ann, job=job)
    for _ in range(2):
        Master(cell.id).tick()  # it places the task that is down
        world.report(job, 0)
    assert (world.versions(job), states(job)) == ([2, 1, 1], ["running"] * 3)
    update_resume(principal=ann, job=job)
    for index in (1, 2):
        Master(cell.id).tick()
        world.report(job, index)
    assert world.versions(job) == [2, 2, 2]


def test_undo_replaces_a_paused_update(cell, ann, machine, job) -> None:
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, world.with_task(command=["new"])))
    update_pause(principal=ann, job=job)
    updates.job_undo(principal=ann, job=read(job))
    assert world.versions(job) == [3, 3, 3]
    assert incarnations(job)[1:] == [1, 1]


def test_a_restart_takes_the_same_queries_for_any_number_of_tasks(cell, ann, tenant) -> None:
    numbers = []
    for name, tasks in (("few", 4), ("many", 40)):
        job = world.submit(ann, cell, world.a_file(name, tasks=tasks))
        world.bring_up(job, rows.a_machine(cell, name))
        with CaptureQueriesContext(connection) as queries:
            job_restart(principal=ann, job=read(job))
        numbers.append(len(queries))
    assert numbers[0] == numbers[1]


def end(job: Job, *indexes: int, how: str = "failed") -> None:
    """End tasks of a job as their machine would report it."""
    with journal.write(job.cell_id, rows.ME) as entry:
        transitions.tasks_end(entry, [Ending(task_id(job.id, index), how, gone=True) for index in indexes])


def test_retry_runs_failed_tasks_of_a_live_job_again(client, tenant, machine, job) -> None:
    assert post(client, "retry/").json()["code"] == "nothing-to-retry"
    end(job, 0)
    end(job, 1, how="finished")
    assert post(client, "retry/?dry_run=1").json()["retried"] == 1
    assert states(job) == ["dead", "dead", "running"]
    assert post(client, "retry/").json() == {"retried": 1, "uid": str(job.uid), "dry_run": False}
    assert states(job) == ["pending", "dead", "running"], "a task that finished runs only if it is named"
    assert post(client, "retry/", {"tasks": "0-1"}).json()["retried"] == 1
    world.bring_up(job, machine)
    assert (states(job), read(job).tasks_up) == (["running"] * 3, 3)
    assert QuotaUse.objects.get(tenant=tenant, band__name="production").used[CPU] == 300
    assert post(client, "retry/", {"tasks": "2"}).json()["code"] == "nothing-to-retry"


def test_retry_does_not_bring_back_tasks_that_an_update_removed(client, job) -> None:
    assert post(client, "scale/", {"tasks": 2}).status_code == 200
    assert post(client, "retry/", {"tasks": "2"}).json()["code"] == "nothing-to-retry"


def test_retry_of_an_ended_job_runs_only_its_failed_tasks(client, cell, tenant, machine, job) -> None:
    end(job, 0, 2, how="finished")
    end(job, 1)
    assert (read(job).state, read(job).outcome) == ("dead", "failed")
    assert post(client, "retry/?dry_run=1").json() == {"retried": 1, "uid": str(job.uid), "dry_run": True}
    assert Job.objects.count() == 1
    answer = post(client, "retry/").json()
    new = Job.objects.get(uid=answer["uid"])
    assert (answer["retried"], new.name, states(new)) == (1, "web", ["dead", "pending", "dead"])
    assert QuotaUse.objects.get(tenant=tenant, band__name="production").used[CPU] == 300
    world.bring_up(new, machine)
    end(new, 1, how="finished")
    assert (read(new).state, read(new).outcome) == ("dead", "finished")


def test_retry_of_an_ended_job_needs_quota_and_its_name(client, cell, ann, tenant, job) -> None:
    end(job, 0, 1, 2)
    other = world.submit(ann, cell, world.with_task("other", limit={"cpu": "21300m"}))
    answer = post(client, "retry/")
    assert (answer.status_code, answer.json()["code"], Job.objects.count()) == (403, "quota-exceeded", 2)
    assert journal.tail(cell.id, after=0)[-1].event.name == "web", "the journal records the rejection"
    submit_and_kill.job_kill(principal=ann, job=read(other))
    assert post(client, "retry/", {"tasks": "1"}).json()["retried"] == 1
    with pytest.raises(Conflict, match="a live job has its name"):
        job_retry(principal=ann, job=read(job))
    assert states(Job.objects.get(name="web", state="pending")) == ["dead", "pending", "dead"]


def test_retry_of_a_large_ended_job_is_rejected(ann, monkeypatch, job) -> None:
    end(job, 0, 1, 2)
    monkeypatch.setattr(journal, "CHUNK", 2)
    with pytest.raises(Conflict, match="submit the job again"):
        job_retry(principal=ann, job=read(job))


def test_retry_revives_many_tasks_in_chunks(ann, monkeypatch, job) -> None:
    submit_and_kill.job_kill(principal=ann, job=job, indexes=[0, 1])
    monkeypatch.setattr(journal, "CHUNK", 1)
    assert job_retry(principal=ann, job=read(job), ranges=[(0, 1)]).tasks == 2
    assert states(job) == ["pending", "pending", "running"]


def demote(job: Job) -> None:
    """Demote the job to the free priority, as at the end of its quota."""
    assert jobs_demote(job.cell, job.tenant, DemotionCause("quota.dropped", "test", "Demoted", lambda live: live[:1]))


def test_a_demotion_does_not_resume_a_paused_update(cell, ann, machine, job) -> None:
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, world.with_task(command=["new"])))
    update_pause(principal=ann, job=job)
    demote(job)
    advance(job, machine)
    update = Update.objects.get(job=job, state=Update.OPEN)
    assert (update.paused_at is not None, update.from_version, update.to_version) == (True, 1, 3)
    assert (read(job).priority, world.versions(job), incarnations(job)) == (0, [2, 1, 1], [2, 1, 1])
    updates.job_undo(principal=ann, job=read(job))
    advance(job, machine)
    assert (read(job).priority, world.versions(job)) == (120, [2, 1, 1]), "the undo of a demotion resumes nothing"
    update_resume(principal=ann, job=job)
    advance(job, machine)
    assert world.versions(job) == [4, 4, 4]


def test_a_restart_goes_on_after_a_demotion(ann, machine, job) -> None:
    job_restart(principal=ann, job=job)
    demote(job)
    for _ in range(4):
        advance(job, machine)
    assert (read(job).priority, incarnations(job)) == (0, [2, 2, 2])
    assert Update.objects.filter(job=job).latest("id").state == Update.DONE


def test_scaling_does_not_end_a_restart_or_resume_an_update_paused_meanwhile(
    client, cell, ann, machine, monkeypatch, job
) -> None:
    job_restart(principal=ann, job=job)
    answer = post(client, "scale/", {"tasks": 4}).json()
    assert (answer["code"], "undo" in answer["detail"]) == ("restart-open", False)
    assert "Wait until the restart ends" in answer["detail"]
    update_pause(principal=ann, job=job)
    assert (
        "is paused. Resume it, and wait until the restart ends" in post(client, "scale/", {"tasks": 4}).json()["detail"]
    )
    file = world.with_task(tasks=4, command=["new"])
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, file))
    check = updates.check_revision

    def paused_under_the_lock(*given) -> None:
        Update.objects.filter(job=job, state=Update.OPEN).update(paused_at=timezone.now())
        check(*given)

    monkeypatch.setattr(updates, "check_revision", paused_under_the_lock)
    assert post(client, "scale/", {"tasks": 5}).json()["code"] == "update-paused"


def test_a_restart_replaces_a_restart_that_is_paused_or_cannot_go_on(client, ann, machine, job) -> None:
    job_restart(principal=ann, job=job)
    update_pause(principal=ann, job=job)
    assert "undo" not in " ".join(client.get(WEB).json()["why"])
    assert post(client, "restart/", {"tasks": "2"}).json()["restarted"] == 1
    assert states(job) == ["pending", "running", "running"], "task 0 is still down"
    assert post(client, "restart/", {"tasks": "1"}).json()["restarted"] == 1
    for _ in range(3):
        advance(job, machine)
    assert incarnations(job) == [2, 2, 1]
    ended = Update.objects.filter(job=job).order_by("id").values_list("state", flat=True)
    assert list(ended) == [Update.SUPERSEDED, Update.SUPERSEDED, Update.DONE]


def test_the_revision_of_a_submission_is_checked_under_the_lock(client, cell, ann, monkeypatch) -> None:
    """Another request submits a job of the same name after the request was read and before its transaction."""
    write = group_commit.of_cell(cell.id).write

    def later(item, function) -> None:
        monkeypatch.undo()
        world.submit(ann, cell, world.a_file())
        write(item, function)

    monkeypatch.setattr(group_commit.of_cell(cell.id), "write", later)
    body = json.dumps(world.a_file())
    answer = client.post("/api/v1/cells/cc/jobs/", body, content_type="application/json", headers={"if-match": "new"})
    assert (answer.status_code, answer.json()["code"]) == (412, "revision-changed")
    assert Job.objects.count() == 1


def test_the_creation_of_a_large_job_cannot_be_paused(cell, ann, job) -> None:
    with journal.write(cell.id, rows.ME) as entry:
        updates.update_open(entry, job, from_version=0, to_spec=updates.spec_of(job), actor="ann")
    with pytest.raises(Conflict, match="wait until all tasks exist, or kill the job") as rejected:
        update_pause(principal=ann, job=job)
    assert rejected.value.code == "creation-open"
    assert Update.objects.get(job=job).paused_at is None


def test_fit_says_how_many_cells_it_left_out(client, cell, monkeypatch) -> None:
    rows.a_cell("other")

    def fit() -> dict:
        body = json.dumps(world.a_file())
        return client.post("/api/v1/cells:fit", body, content_type="application/json").json()

    everything = fit()
    monkeypatch.setattr(cell_fits, "MOST_CELLS", len(everything["cells"]) - 1)
    fewer = fit()
    assert (everything["left_out"], fewer["left_out"]) == (0, 1)
    assert len(fewer["cells"]) == len(everything["cells"]) - 1
