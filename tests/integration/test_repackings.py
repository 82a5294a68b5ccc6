"""Tests of re-packings: the master plans and runs them, people start, stop and return them."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db.models import F

from quota.vocabulary.errors import Conflict, Forbidden, NotFound, Rejected
from scheduling.core.vocabulary import events
from scheduling.jobs import updates
from scheduling.journal import journal
from scheduling.machines import machines
from scheduling.machines.drain_progress import drains_of, progress_of
from scheduling.master.loop import Master
from scheduling.models import Drain, Machine, Repacking, RepackingStep, Task
from scheduling.repacking import repackings, run
from tests.integration import repack_rows, rows, world
from tests.integration.repack_rows import answer, on, scattered

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def master(cell) -> Master:
    return Master(cell.id)


def planned(cell, master, **goal) -> Repacking:
    row = repack_rows.plan(cell, **goal)
    assert row.state == Repacking.PLANNING
    master.run(0.0)
    row.refresh_from_db()
    return row


def start(cell, row: Repacking) -> Repacking:
    return repackings.repacking_start(principal=rows.ME, cell=cell, number=row.pk)


def run_to_the_end(cell, master, row: Repacking, *, turns: int = 40) -> Repacking:
    for _ in range(turns):
        master.run(0.0)
        answer(cell)
        row.refresh_from_db()
        if row.state != Repacking.RUNNING:
            return row
    raise AssertionError(f"the re-packing is still running: {list(row.steps.values_list('state', 'detail'))}")


def test_machines_become_free_one_task_after_the_other_and_stay_free(cell, ann, master) -> None:
    job, _ = scattered(ann, cell, machines=6)
    row = planned(cell, master, machines=2, job_share=1.0)
    assert (row.state, row.reached, row.moves, row.already_free) == ("planned", True, 4, 0)
    assert row.jobs == [{"job": job.id, "name": "ubar/web", "moves": 4, "spare": 2, "tasks": 12, "may": 1, "down": 0}]
    assert not Drain.objects.exists(), "a plan moves nothing"
    start(cell, row)
    freeing = [step.machine for step in row.steps.filter(state=RepackingStep.WAITING)]
    assert {drain.only == [] for drain in Drain.objects.all()} == {True}
    other = world.submit(ann, cell, world.a_file("other", tasks=3))
    run_to_the_end(cell, master, row)
    assert (row.state, row.detail) == ("done", "2 machines are free")
    assert [on(machine) for machine in freeing] == [0, 0]
    assert {Machine.objects.get(pk=machine.pk).state for machine in freeing} == {"draining"}
    assert repack_rows.most_down(cell, job) == 1, "the budget of the job"
    assert set(repack_rows.evictions(cell).values()) == {1}
    assert set(repack_rows.evictions(cell)) == repack_rows.planned(row)
    assert Task.objects.filter(job=other, state="running").exclude(machine__in=freeing).count() == 3
    kinds = [
        r.event.step or r.event.state
        for r in journal.tail(cell.id, after=0)
        if isinstance(r.event, events.RepackingSet)
    ]
    assert kinds == ["planning", "planned", "running", "moving", "moving", "freed", "freed", "done"]
    with pytest.raises(Conflict, match="nothing to stop"):
        repackings.repacking_stop(principal=rows.ME, cell=cell, number=row.pk)
    repackings.repacking_release(principal=rows.ME, cell=cell, number=row.pk)
    assert {machine.state for machine in Machine.objects.all()} == {"up"}
    with pytest.raises(Conflict, match="keeps no machine empty now"):
        repackings.repacking_release(principal=rows.ME, cell=cell, number=row.pk)


def test_a_pending_task_gets_the_capacity_that_others_leave(cell, ann, master) -> None:
    job, _fleet = scattered(ann, cell)
    wide = {"cpu": "3500m", "ram": "64Mi", "disk": "64Mi"}
    large = world.submit(ann, cell, world.with_task("large", tasks=1, limit=wide))
    master.run(0.0)
    assert Task.objects.get(job=large).state == "pending"
    row = planned(cell, master, job=large, job_share=1.0)
    assert (row.reached, row.moves) == (True, 2)
    start(cell, row)
    run_to_the_end(cell, master, row)
    assert row.state == "done"
    for _ in range(2):
        master.run(0.0)
    freed = row.steps.get().machine
    task = Task.objects.get(job=large)
    assert (task.state, task.machine_id) == ("running", freed.pk)
    assert Machine.objects.get(pk=freed.pk).state == "up"
    assert not Drain.objects.exists()
    assert repack_rows.most_down(cell, job) == 1


def test_only_the_tasks_of_the_plan_leave_a_machine(cell, ann, master) -> None:
    scattered(ann, cell)
    wide = {"cpu": "2500m", "ram": "64Mi", "disk": "64Mi"}
    large = world.submit(ann, cell, world.with_task("large", tasks=1, limit=wide))
    row = planned(cell, master, job=large, job_share=1.0)
    start(cell, row)
    machine = row.steps.get().machine
    for _ in range(2):
        master.run(0.0)
    (progress,) = progress_of(rows.ME, cell, list(drains_of(cell)))
    assert (progress.left, progress.staying, progress.leaving, progress.done) == (1, 1, 0, False)
    run_to_the_end(cell, master, row)
    master.run(0.0)
    assert on(machine) == 2, "one of web stayed, and the task of large came"


def test_what_changed_since_the_plan_is_skipped_with_the_reason(cell, ann, master) -> None:
    scattered(ann, cell, machines=8)
    row = planned(cell, master, machines=3, job_share=1.0)
    other = world.submit(ann, cell, world.a_file("other", tasks=1))
    first, second, third, spare = [step.machine for step in row.steps.order_by("position")]
    world.place(other, second, 0)
    world.report(other, 0)
    start(cell, row)
    machines.machine_undrain(principal=rows.ME, machine=first)
    run_to_the_end(cell, master, row)
    details = list(row.steps.order_by("position").values_list("state", "detail"))
    assert details == [
        ("skipped", run.CHANGED_DRAIN),
        ("skipped", "task ubar/other/0 was placed there after the plan"),
        ("freed", ""),
        ("freed", ""),
    ]
    assert row.detail == "2 machines are free; 2 skipped"
    assert Machine.objects.get(pk=second.pk).state == "up"
    kept = set(Drain.objects.values_list("machine_id", flat=True))
    assert kept == {third.pk, spare.pk}, "the spare machine took the place of a skipped one"


def test_a_machine_that_goes_down_is_skipped(cell, ann, master) -> None:
    scattered(ann, cell)
    row = planned(cell, master, machines=1, job_share=1.0)
    start(cell, row)
    machine = row.steps.get(position=0).machine
    rows.machine_down(machine)
    master.run(0.0)
    assert (row.steps.get(position=0).state, row.steps.get(position=0).detail) == ("skipped", "the machine is down")
    assert not Drain.objects.filter(machine=machine).exists()
    assert Machine.objects.get(pk=machine.pk).state == "down"


def test_jobs_that_are_updated_and_used_up_budgets_stay(cell, ann, master) -> None:
    job, _fleet = scattered(ann, cell)
    with_label = world.with_task("web", tasks=8, limit={"cpu": 1, "ram": "64Mi", "disk": "64Mi"}, env={"A": "2"})
    read = world.read(cell, with_label | {"disruption_budget": 1})
    ready = planned(cell, master, machines=1, job_share=1.0)
    start(cell, ready)
    updates.job_update(principal=ann, job=job, job_spec=read)
    row = run_to_the_end(cell, master, ready)
    assert {step.state for step in row.steps.all()} == {"skipped"}, "the spare machine too"
    assert row.steps.get(position=0).detail.endswith("must not move now: the job is being updated")
    blocked = planned(cell, master, machines=1, job_share=1.0)
    assert (blocked.state, blocked.reached, blocked.moves) == ("planned", False, 0)
    assert "on 4 machines a task must not move" in blocked.detail


def test_a_step_that_budgets_hold_up_is_skipped_after_a_while(cell, ann, master) -> None:
    scattered(ann, cell)
    row = planned(cell, master, machines=1, job_share=1.0)
    start(cell, row)
    master.run(0.0)  # the first task leaves, and its successor never comes up
    master.run(0.0)
    assert row.steps.get(position=0).state == RepackingStep.MOVING
    row.steps.filter(position=0).update(began_at=F("began_at") - dt.timedelta(hours=1))
    master.run(0.0)
    step = row.steps.get(position=0)
    assert step.state == RepackingStep.SKIPPED
    assert "disruption budgets" in step.detail
    assert Machine.objects.get(pk=step.machine_id).state == "up"


def test_a_re_packing_stops_if_a_moved_task_finds_no_machine(cell, ann, master) -> None:
    """The machines for which the plan was made are gone when its tasks have left."""
    _job, fleet = scattered(ann, cell, machines=2)
    row = planned(cell, master, machines=1, job_share=1.0)
    step = row.steps.get()
    (other,) = [machine for machine in fleet if machine.pk != step.machine_id]
    start(cell, row)
    master.run(0.0)
    machines.machines_drain(principal=rows.ME, cell=cell, machines=[other], reason="no power")
    for _ in range(2):
        master.run(0.0)
        answer(cell)
    waiting = Task.objects.filter(pk__in=step.tasks, state="pending")
    assert waiting.exists()
    waiting.update(since=F("since") - dt.timedelta(hours=1))
    master.run(0.0)
    row.refresh_from_db()
    assert row.state == "stopped"
    assert "has found no other one" in row.detail
    assert Machine.objects.get(pk=step.machine_id).state == "up", "so the tasks may return"


def test_a_stopped_re_packing_returns_the_machines_that_are_not_free(cell, ann, master) -> None:
    scattered(ann, cell, machines=6)
    row = planned(cell, master, machines=2, job_share=1.0, at_once=2)
    start(cell, row)
    while not row.steps.filter(state=RepackingStep.FREED).exists():
        master.run(0.0)
        answer(cell)
    repackings.repacking_stop(principal=rows.ME, cell=cell, number=row.pk, reason="enough")
    row.refresh_from_db()
    assert (row.state, row.detail) == ("stopped", "stopped by system:test: enough")
    states = {step.state: Machine.objects.get(pk=step.machine_id).state for step in row.steps.all()}
    assert states == {"freed": "draining", "skipped": "up", "spare": "up"}
    master.run(0.0)
    assert sorted(row.steps.values_list("state", flat=True)) == ["freed", "skipped", "spare"]


def test_wrong_requests_are_rejected_and_change_nothing(cell, ann, master, monkeypatch) -> None:
    job, _fleet = scattered(ann, cell)
    for goal, field in (
        ({}, "machines"),
        ({"machines": 1, "share": 0.1}, "share"),
        ({"machines": 0}, "machines"),
        ({"machines": 5}, "machines"),
        ({"share": 1.5}, "share"),
        ({"machines": 1, "job_share": -1.0}, "job_share"),
        ({"machines": 1, "at_once": 0}, "at_once"),
        ({"machines": 1, "most_moves": -1}, "most_moves"),
    ):
        with pytest.raises(Rejected) as caught:
            repack_rows.plan(cell, **goal)
        assert field in caught.value.fields
    monkeypatch.setattr(repackings, "MOST_MACHINES", 2)
    for goal in ({"machines": 3}, {"share": 0.75}):
        with pytest.raises(Rejected, match="give at most"):
            repack_rows.plan(cell, **goal)
    with pytest.raises(Forbidden):
        repackings.repacking_plan(principal=ann, cell=cell, reason="x", machines=1)
    with pytest.raises(NotFound):
        repackings.repacking_start(principal=rows.ME, cell=cell, number=999)
    assert not Repacking.objects.exists()
    fits = planned(cell, master, job=job)
    assert (fits.state, "nothing has to move" in fits.detail) == ("failed", True)
    old = planned(cell, master, machines=1, job_share=1.0)
    Repacking.objects.filter(pk=old.pk).update(planned_at=F("planned_at") - dt.timedelta(hours=2))
    with pytest.raises(Conflict, match="older than 60 minutes"):
        start(cell, old)
    newer = planned(cell, master, machines=1, job_share=1.0)
    assert Repacking.objects.get(pk=old.pk).state == "replaced"
    start(cell, newer)
    with pytest.raises(Conflict, match="is running"):
        repack_rows.plan(cell, machines=1)
    with pytest.raises(Conflict, match="stop it first"):
        repackings.repacking_release(principal=rows.ME, cell=cell, number=newer.pk)
