"""Tests of rolling updates on real PostgreSQL: how many tasks may be down, undo, and stops with a reason."""

from __future__ import annotations

import pytest

from quota.models import QuotaUse
from quota.vocabulary.errors import Conflict, Forbidden, Rejected
from quota.vocabulary.permissions import Role
from quota.vocabulary.resources import CPU, RAM
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.task_events import Ending, Eviction
from scheduling.jobs import plans, submit_and_kill, updates
from scheduling.journal import journal
from scheduling.master.invariants import validate
from scheduling.models import Departure, Job, JobSpec, Task, Update
from scheduling.spec import parser
from scheduling.tasks import transitions
from tests.integration import rows, world

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def job(cell, ann, machine):
    """Return a job with three tasks that are up."""
    job = world.submit(ann, cell, world.a_file())
    world.bring_up(job, machine)
    return job


def update(who, job: Job, file, **options) -> updates.JobChange:
    job = Job.objects.select_related("cell", "tenant").get(pk=job.pk)
    return updates.job_update(principal=who, job=job, job_spec=world.read(job.cell, file), **options)


def used(tenant, band: str = "production") -> int:
    row = QuotaUse.objects.filter(tenant=tenant, band__name=band).first()
    return row.used[CPU] if row else 0


def reported(cell, after: int = 0) -> list[str]:
    return [record.event.__struct_config__.tag for record in journal.tail(cell.id, after=after)]


def test_a_job_raised_into_production_moves_where_its_limits_do_not_fit(cell, ann) -> None:
    """A job is moved into production, where limits count instead of reservations (§5.5). One task has to move."""
    small = rows.a_machine(cell, "small", capacity=(250, 2**30, 2**30, 0, 0, 10_000))
    job = world.submit(ann, cell, world.a_file(priority="batch", appclass="latency-sensitive"))
    world.bring_up(job, small)  # three tasks of 100m, one of them in reclaimed resources
    update(ann, job, world.a_file(priority="production", appclass="latency-sensitive"))
    assert Task.objects.filter(job=job, state="running", spec_version=2).count() == 2
    (moved,) = Task.objects.filter(job=job, state="pending")
    assert moved.detail == "update to version 2"
    large = rows.a_machine(cell, "large")
    world.bring_up(job, large)
    updates.updates_advance(cell.id)
    assert Update.objects.get(job=job).state == Update.DONE


def test_a_job_raised_into_production_stays_where_its_limits_fit(machine, ann, cell) -> None:
    job = world.submit(ann, cell, world.a_file(priority="batch", appclass="latency-sensitive"))
    world.bring_up(job, machine)
    update(ann, job, world.a_file(priority="production", appclass="latency-sensitive"))
    assert Task.objects.filter(job=job, state="running", spec_version=2, incarnation=1).count() == 3


def test_a_new_command_rolls_through_one_task_at_a_time(cell, machine, ann, job) -> None:
    done = update(ann, job, world.with_task(command=["serve", "--fast"]))
    assert (done.outcome, done.version, done.update.state) == ("updated", 2, Update.OPEN)
    for following in ([2, 1, 1], [2, 2, 1], [2, 2, 2]):
        assert world.versions(job) == following
        assert not updates.updates_advance(cell.id)
        assert Task.objects.filter(job=job, up=True).count() == 2
        world.bring_up(job, machine)
        updates.updates_advance(cell.id)
    done.update.refresh_from_db()
    assert (done.update.state, done.update.disruptions) == (Update.DONE, 3)
    evictions = [r for r in journal.tail(cell.id, after=0) if isinstance(r.event, events.TaskEvicted)]
    started = next(r for r in journal.tail(cell.id, after=0) if isinstance(r.event, events.UpdateStarted))
    assert {e.event.cause for e in evictions} == {"update"}
    assert {e.caused_by for e in evictions} == {journal.Cause(started.revision, started.seq)}


def test_max_down_counts_tasks_that_are_down_for_other_reasons(cell, machine, ann, job) -> None:
    world.report(job, 2, up=False)
    update(ann, job, world.with_task(command=["other"]) | {"update": {"max_down": 2}})
    assert world.versions(job) == [2, 1, 2]
    assert Task.objects.filter(job=job, up=True).count() == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"priority": 200},
        {"labels": {"tier": "1"}},
        {"task": {"notice_s": 3}},
        {"task": {"limit": {"cpu": 1}}},
        {"task": {"weight": 7}},
        {"overrides": {"1": {"weight": 0}}},
        {"names": {"ttl_s": 30, "leave_s": 2}},
    ],
)
def test_changes_in_place_reach_all_tasks_at_once_where_they_are(cell, machine, ann, job, changes) -> None:
    file = world.a_file()
    merged = file | changes | {"task": file["task"] | changes.get("task", {})}
    done = update(ann, job, merged)
    assert (done.update.state, done.update.disruptions) == (Update.DONE, 0)
    assert world.versions(job) == [2, 2, 2]
    assert Task.objects.filter(job=job, up=True, machine=machine).count() == 3
    assert not Departure.objects.exists()


def test_limits_that_do_not_fit_where_the_task_is_move_it(cell, ann, tenant) -> None:
    small = rows.a_machine(cell, "small", capacity=(400, 2**38, 2**42, 0, 0, 10_000))
    job = world.submit(ann, cell, world.a_file())
    world.bring_up(job, small)
    done = update(ann, job, world.with_task(limit={"cpu": "150m", "ram": "64Mi", "disk": "64Mi"}))
    assert [(t.machine_id, t.limit[CPU]) for t in Task.objects.filter(job=job)] == [
        (small.id, 150),
        (small.id, 150),
        (None, 150),
    ]
    assert done.update.disruptions == 1


def test_a_plan_shows_quota_before_and_after(cell, ann, job) -> None:
    def quota(file) -> tuple[str, ...]:
        return plans.job_plan(principal=ann, cell=cell, job_spec=world.read(cell, file)).quota

    (line,) = quota(world.a_file(tasks=5))
    assert line.startswith("Quota of band production: cpu: 0.3 cores used now, 0.5 cores afterwards, of ")
    assert "ram: 192 MiB used now, 320 MiB afterwards, of " in line
    (new,) = quota(world.a_file("other"))
    assert "cpu: 0.3 cores used now, 0.6 cores afterwards" in new
    assert quota(world.a_file(labels={"a": "b"})) == ()
    assert quota(world.a_file("free", priority=0)) == ()
    old, lower = quota(world.a_file(priority="batch"))
    assert "cpu: 0.3 cores used now, 0 cores afterwards" in old
    assert lower.startswith("Quota of band batch: cpu: 0 cores used now, 0.3 cores afterwards")


def test_pending_tasks_follow_at_once(cell, ann, tenant) -> None:
    job = world.submit(ann, cell, world.a_file())
    done = update(ann, job, world.with_task(command=["other"], limit={"ram": "1Gi"}))
    assert (world.versions(job), done.update.state) == ([2, 2, 2], Update.DONE)
    assert {t.limit[RAM] for t in Task.objects.filter(job=job)} == {2**30}


def test_growing_adds_tasks_and_shrinking_ends_the_last_and_both_move_quota(cell, machine, tenant, ann, job) -> None:
    assert used(tenant) == 300
    update(ann, job, world.a_file(tasks=5))
    job.refresh_from_db()
    assert (job.tasks_total, job.tasks_pending, used(tenant)) == (5, 2, 500)
    update(ann, job, world.a_file(tasks=2))
    job.refresh_from_db()
    assert (job.tasks_up, job.tasks_dead, used(tenant)) == (2, 3, 200)
    update(ann, job, world.a_file(tasks=4))
    job.refresh_from_db()
    assert [t.state for t in Task.objects.filter(job=job)] == ["running", "running", "pending", "pending", "dead"]
    assert (job.tasks_total, used(tenant)) == (5, 400)


def test_a_killed_task_stays_dead_and_a_failed_one_lives_again(cell, machine, ann, job) -> None:
    submit_and_kill.job_kill(principal=ann, job=job, indexes=[0])
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_end(entry, [Ending(task_id(job.id, 1), "failed", gone=True)])
    update(ann, job, world.with_task(command=["other"]))
    assert [t.state for t in Task.objects.filter(job=job)] == ["dead", "pending", "running"]
    assert world.versions(job) == [2, 2, 1]


def test_an_update_beyond_the_quota_is_refused_and_changes_nothing(cell, tenant, ann, job) -> None:
    with pytest.raises(Rejected, match="quota"):
        update(ann, job, world.with_task(limit={"cpu": 30}))
    job.refresh_from_db()
    assert (job.spec_version, JobSpec.objects.count(), used(tenant)) == (1, 1, 300)
    assert reported(cell)[-1] == "job.rejected"


def test_a_change_of_band_moves_the_charge(cell, tenant, ann, job) -> None:
    update(ann, job, world.a_file(priority="batch", appclass="latency-sensitive"))
    assert (used(tenant), used(tenant, "batch")) == (0, 300)
    update(ann, job, world.a_file(priority=0, appclass="latency-sensitive"))
    assert (used(tenant), used(tenant, "batch")) == (0, 0)
    submit_and_kill.job_kill(principal=ann, job=Job.objects.select_related("cell", "tenant").get(pk=job.pk))
    assert (used(tenant), used(tenant, "batch")) == (0, 0)


def test_undo_brings_the_earlier_version_back_and_spares_who_never_left_it(cell, machine, ann, job) -> None:
    update(ann, job, world.with_task(command=["broken"]))
    assert world.versions(job) == [2, 1, 1]
    job = Job.objects.select_related("cell", "tenant").get(pk=job.pk)
    done = updates.job_undo(principal=ann, job=job)
    assert (done.version, done.update.undo) == (3, True)
    assert world.versions(job) == [3, 3, 3]
    assert Task.objects.filter(job=job, incarnation=1, up=True).count() == 2
    assert JobSpec.objects.get(job=job, version=3).digest == JobSpec.objects.get(job=job, version=1).digest
    assert [u.state for u in Update.objects.filter(job=job).order_by("id")] == [Update.SUPERSEDED, Update.DONE]


def test_there_is_nothing_to_undo_in_a_new_job(ann, job) -> None:
    with pytest.raises(Conflict, match="never been updated"):
        updates.job_undo(principal=ann, job=job)


def test_an_equal_spec_changes_nothing(cell, ann, job) -> None:
    revision = journal.newest(cell.id)
    done = update(ann, job, world.a_file(priority=120))
    assert (done.outcome, done.version, journal.newest(cell.id)) == ("unchanged", 1, revision)


def test_a_dry_run_of_an_update_changes_nothing(cell, tenant, ann, job) -> None:
    revision = journal.newest(cell.id)
    assert update(ann, job, world.a_file(tasks=9), dry_run=True).outcome == "updated"
    assert (journal.newest(cell.id), used(tenant), JobSpec.objects.count()) == (revision, 300, 1)


def test_an_update_stops_when_its_tasks_do_not_come_up(cell, machine, ann, job) -> None:
    done = update(ann, job, world.with_task(command=["broken"]))
    world.place(job, machine, 0)
    world.report(job, 0, up=False, restarts=3)
    updates.updates_advance(cell.id)
    done.update.refresh_from_db()
    assert done.update.state == Update.STOPPED
    assert "crash again and again" in done.update.detail
    assert world.versions(job) == [2, 1, 1]
    assert not updates.updates_advance(cell.id)


def test_a_crash_on_a_machine_counts_as_not_coming_up(cell, machine, ann, job) -> None:
    done = update(ann, job, world.with_task(command=["broken"]))
    world.place(job, machine, 0)
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_evict(entry, [Eviction(task_id(job.id, 0), 2, "failure", gone=True, avoid=True)])
    updates.updates_advance(cell.id)
    done.update.refresh_from_db()
    assert done.update.state == Update.STOPPED


def test_no_more_tasks_are_disrupted_than_the_job_allows(cell, machine, ann, job) -> None:
    done = update(ann, job, world.with_task(command=["other"]) | {"update": {"max_disruptions": 2, "max_down": 1}})
    for _ in range(3):
        world.bring_up(job, machine)
        updates.updates_advance(cell.id)
    done.update.refresh_from_db()
    assert (done.update.state, done.update.disruptions) == (Update.STOPPED, 2)
    assert "1 tasks keep their old version" in done.update.detail
    assert world.versions(job) == [2, 2, 1]


def test_killing_ends_the_update(cell, ann, job) -> None:
    done = update(ann, job, world.with_task(command=["other"]))
    submit_and_kill.job_kill(principal=ann, job=job)
    done.update.refresh_from_db()
    assert done.update.state == Update.SUPERSEDED
    assert not updates.updates_advance(cell.id)
    with pytest.raises(Conflict, match="has ended"):
        update(ann, job, world.a_file(tasks=1))


def test_a_long_update_goes_in_chunks(cell, machine, ann, monkeypatch) -> None:
    job = world.submit(ann, cell, world.a_file(tasks=10, priority=0))
    world.bring_up(job, machine)
    before = journal.newest(cell.id)
    monkeypatch.setattr(journal, "CHUNK", 4)
    done = update(ann, job, world.a_file(tasks=15, priority=0, labels={"a": "b"}))
    assert done.update.state == Update.DONE
    assert set(world.versions(job)) == {2}
    sizes: dict[int, int] = {}
    for record in journal.tail(cell.id, after=before):
        sizes[record.revision] = sizes.get(record.revision, 0) + 1
    assert max(sizes.values()) <= 4


@pytest.mark.parametrize("role", [Role.VIEWER, Role.BUYER])
def test_others_may_not_update(tenant, job, role) -> None:
    with pytest.raises(Forbidden):
        update(world.principal("bob", tenant=tenant, role=role), job, world.a_file(tasks=1))


@pytest.mark.parametrize(
    "file, field",
    [(world.a_file() | {"kind": "AllocSet", "task": {}}, "kind"), (world.a_file(alloc_set="pool"), "alloc_set")],
)
def test_what_a_job_is_never_changes(ann, job, file, field) -> None:
    with pytest.raises(Rejected) as caught:
        update(ann, job, file)
    assert field in caught.value.fields


def test_a_plan_tells_what_would_happen(cell, tenant, ann, job) -> None:
    revision = journal.newest(cell.id)

    def plan(file):
        return plans.job_plan(principal=ann, cell=cell, job_spec=world.read(cell, file))

    assert plan(world.a_file()).action == "none"
    submit = plan(world.a_file("fresh"))
    assert (submit.action, submit.tasks["added"].count, submit.problem) == ("submit", 3, None)
    change = plan(world.with_task(tasks=5) | {"overrides": {"1": {"command": ["other"]}, "2": {"limit": {"cpu": 1}}}})
    assert {kind: (t.count, t.ranges) for kind, t in change.tasks.items() if t.count} == {
        "in_place": (1, ((2, 2),)),
        "restarted": (1, ((1, 1),)),
        "added": (2, ((3, 4),)),
        "kept": (1, ((0, 0),)),
    }
    assert plan(world.a_file(tasks=1)).tasks["removed"].ranges == ((1, 2),)
    assert plan(world.with_task(limit={"cpu": 30})).problem.code == "quota-exceeded"
    assert journal.newest(cell.id) == revision


def with_more_to_come(cell, ann, machine) -> Job:
    """Return a job of three tasks of which only the first has been created and has finished."""
    job = world.submit(ann, cell, world.a_file("parts", tasks=1, priority=0))
    world.bring_up(job, machine)
    whole = world.read(cell, world.a_file("parts", tasks=3, priority=0))
    JobSpec.objects.filter(job=job).update(spec=whole.to_json(), digest=whole.digest())
    Job.objects.filter(pk=job.pk).update(requested=list(whole.total))
    with journal.write(cell.id, rows.ME) as entry:
        updates.update_open(entry, job, from_version=0, to_spec=whole, actor="ann")
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_end(entry, [Ending(task_id(job.id, 0), "finished", 1, gone=True)])
    job.refresh_from_db()
    return job


def test_a_job_goes_on_whose_first_tasks_end_before_the_others_are_made(cell, machine, ann) -> None:
    job = with_more_to_come(cell, ann, machine)
    assert job.state == "running"
    assert validate(cell.id) == []
    assert updates.updates_advance(cell.id)
    assert Update.objects.get(job=job).state == Update.OPEN, "growth takes turns with the master's other work"
    assert updates.updates_advance(cell.id)
    assert not updates.updates_advance(cell.id)
    job.refresh_from_db()
    assert (job.state, job.tasks_total, job.tasks_pending, job.tasks_dead) == ("running", 3, 2, 1)
    assert Update.objects.get(job=job).state == Update.DONE
    submit_and_kill.job_kill(principal=ann, job=job)
    job.refresh_from_db()
    assert job.state == "dead"


def test_a_job_that_shrinks_to_what_has_ended_has_ended(cell, machine, ann) -> None:
    job = with_more_to_come(cell, ann, machine)
    update(ann, job, world.a_file("parts", tasks=1, priority=0))
    job.refresh_from_db()
    assert (job.state, job.outcome) == ("dead", "finished")


def test_a_job_of_which_nothing_lives_is_killed_before_the_rest_is_made(cell, machine, ann) -> None:
    job = with_more_to_come(cell, ann, machine)
    submit_and_kill.job_kill(principal=ann, job=job)
    updates.updates_advance(cell.id)
    job.refresh_from_db()
    assert (job.state, job.tasks_total) == ("dead", 1)


def test_a_job_whose_stored_spec_names_an_undefined_variable_can_be_updated_and_undone(cell, ann, machine, job) -> None:
    """Update and undo work if the stored spec of a job names an undefined variable, as earlier versions accepted."""
    row = JobSpec.objects.get(job=job, version=1)
    row.spec["task"]["command"] = ["serve", "$(nope)"]
    stored = parser.load(row.spec)
    JobSpec.objects.filter(pk=row.pk).update(spec=stored.to_json(), digest=stored.digest())
    with pytest.raises(Rejected) as refused:
        update(ann, job, world.with_task(command=["serve", "$(nope)", "--fast"]))
    assert list(refused.value.fields) == ["task.command[1]"]
    assert update(ann, job, world.with_task(command=["serve", "--fast"])).version == 2
    live = Job.objects.select_related("cell", "tenant").get(pk=job.pk)
    assert updates.job_undo(principal=ann, job=live).version == 3
    assert updates.spec_of(live, 3).base.command == ("serve", "$(nope)")
    updates.updates_advance(cell.id)
