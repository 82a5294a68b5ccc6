"""Tests of the rate of disruptions: which evictions count, what waits for the rate, and what shows it."""

from __future__ import annotations

import datetime as dt
import random
from types import SimpleNamespace

import pytest
from django.contrib.admin import site
from django.utils import timezone

from scheduling.admin.drains_and_brakes import DrainAdmin
from scheduling.core.vocabulary.plan import Assignment, Plan
from scheduling.core.vocabulary.requirement import task_id
from scheduling.core.vocabulary.states import EvictionCause, Observation
from scheduling.core.vocabulary.task_events import Eviction
from scheduling.jobs import plans, submit_and_kill, updates
from scheduling.jobs.why import rate_sentences
from scheduling.journal import journal
from scheduling.machines import evacuation, machines
from scheduling.machines.drain_progress import drains_of, progress_of
from scheduling.master.commit import commit
from scheduling.master.loop import Master
from scheduling.models import DisruptionCount, Drain, Job, Repacking, Task
from scheduling.policy.cell_settings import CellSettings
from scheduling.repacking import limits, repackings
from scheduling.tasks import disruption_rates, reported_states, transitions
from scheduling.tasks.budget_sentences import rate_sentence
from scheduling.tasks.disruption_budgets import budgets_of_cell
from tests.integration import repack_rows, rows, world

pytestmark = pytest.mark.django_db(transaction=True)

SETTINGS = CellSettings()
RATE = {"max_down": 10, "max_disruptions": 3, "window_s": 3600}


def drain(cell) -> int:
    """Evict tasks as the master does in one second, and return how many."""
    return evacuation.tasks_leave(cell.id, SETTINGS, seconds=1.0)


def draining(machine) -> None:
    machines.machines_drain(principal=rows.ME, cell=machine.cell, machines=[machine], reason="new disk")


def later(seconds: float) -> None:
    """Move all disruptions `seconds` seconds into the past."""
    for row in DisruptionCount.objects.all():
        row.began_at -= dt.timedelta(seconds=seconds)
        row.at -= dt.timedelta(seconds=seconds)
        row.save()


def counted(job: Job) -> int:
    return disruption_rates.rates_of_jobs([job.id])[job.id].counted


def disrupt(job: Job, *indexes: int, cause: EvictionCause = EvictionCause.PREEMPTION) -> None:
    """Evict tasks of the first incarnation."""
    with journal.write(job.cell_id, rows.ME) as entry:
        gone = [Eviction(task_id(job.id, index), 1, cause.value, gone=True) for index in indexes]
        transitions.tasks_evict(entry, gone)


@pytest.fixture
def job(cell, machine, ann) -> Job:
    job = world.submit(ann, cell, world.a_file(tasks=8, disruption_budget=RATE))
    world.bring_up(job, machine)
    return job


def up_again(job: Job, machine) -> None:
    waiting = Task.objects.filter(job=job, state="pending").values_list("index", flat=True)
    world.place(job, machine, *waiting)
    world.report(job, *waiting)


def test_a_drain_waits_for_the_rate_although_all_tasks_are_up_again(cell, machine, job) -> None:
    draining(machine)
    assert drain(cell) == 3
    up_again(job, rows.a_machine(cell, "m2"))
    assert drain(cell) == 0
    (progress,) = progress_of(rows.ME, cell, list(drains_of(cell)))
    (waiting,) = progress.waiting
    assert (waiting.may, waiting.down, waiting.rate.most, waiting.rate.counted, waiting.rate.left) == (10, 0, 3, 3, 0)
    assert (progress.left, progress.leaving) == (5, 0)
    shown = DrainAdmin(Drain, site).waiting_shown(SimpleNamespace(progress=progress))
    assert "ubar/web: No disruption is left: 3 tasks were disrupted within 1 hour" in shown
    later(3601)
    assert drain(cell) == 3


def test_a_disruption_counts_for_the_window_to_the_end(cell, machine, job) -> None:
    draining(machine)
    assert drain(cell) == 3
    up_again(job, rows.a_machine(cell, "m2"))
    later(3400)
    assert drain(cell) == 0
    assert 0 < (disruption_rates.rates_of_jobs([job.id])[job.id].next_at - timezone.now()).total_seconds() < 201
    later(201)
    assert drain(cell) == 3
    assert DisruptionCount.objects.count() == 1, "rows that have left the window are deleted"


def test_slots_bound_the_rows_and_give_the_time_of_the_next_disruption(cell, machine, job) -> None:
    """Two disruptions long ago and two now: with a limit of three, the next one is possible when the old ones leave."""
    now = timezone.now()
    for ago_s, number in ((1800, 2), (60, 2)):
        at = now - dt.timedelta(seconds=ago_s)
        DisruptionCount.objects.create(job=job, began_at=at, at=at, number=number)
    rate = disruption_rates.rates_of_jobs([job.id])[job.id]
    assert (rate.counted, rate.left) == (4, 0)
    assert abs((rate.next_at - now).total_seconds() - 1800) < 100
    DisruptionCount.objects.all().delete()
    disrupt(job, 0, 1, 2)
    assert (DisruptionCount.objects.count(), counted(job)) == (1, 3)


def test_a_drain_checks_its_budgets_again_before_it_evicts(cell, machine, job, monkeypatch) -> None:
    """Another process uses up the rate after the drain has chosen its tasks."""
    draining(machine)
    choose = evacuation.inside_allocs

    def meanwhile(tasks):
        disrupt(job, 5, 6)
        return choose(tasks)

    monkeypatch.setattr(evacuation, "inside_allocs", meanwhile)
    assert drain(cell) == 1
    assert counted(job) == 3


def test_failures_of_machines_count_but_are_never_held_back(cell, machine, job) -> None:
    rows.machine_down(machine)
    assert evacuation.tasks_evict_from(cell.id, 100) == 8
    assert counted(job) == 8
    other = rows.a_machine(cell, "m2")
    up_again(job, other)
    draining(other)
    assert drain(cell) == 0


def test_a_drain_after_its_deadline_exceeds_the_rate_and_counts(cell, machine, job) -> None:
    machines.machines_drain(
        principal=rows.ME, cell=cell, machines=[machine], reason="fire", deadline_s=0, break_budgets=True
    )
    assert drain(cell) == 8
    assert counted(job) == 8


@pytest.mark.parametrize(
    ("cause", "number"),
    [
        (EvictionCause.PREEMPTION, 1),
        (EvictionCause.OUT_OF_RESOURCES, 1),
        (EvictionCause.LOST, 1),
        (EvictionCause.UPDATE, 0),
        (EvictionCause.FAILURE, 0),
    ],
)
def test_what_the_cell_causes_counts_and_what_the_job_causes_does_not(cell, job, cause, number) -> None:
    disrupt(job, 0, cause=cause)
    assert counted(job) == number


def test_tasks_that_are_not_up_and_jobs_without_a_rate_do_not_count(cell, machine, ann, job) -> None:
    plain = world.submit(ann, cell, world.a_file("plain"))
    world.bring_up(plain, rows.a_machine(cell, "m2"))
    world.report(job, 0, up=False)
    disrupt(job, 0)
    disrupt(plain, 0)
    assert not DisruptionCount.objects.exists()
    assert rate_sentences(plain) == []


def test_an_update_of_the_job_neither_counts_nor_waits(cell, machine, ann, job) -> None:
    draining(machine)
    drain(cell)
    up_again(job, rows.a_machine(cell, "m2"))
    file = world.a_file(tasks=8, disruption_budget=RATE, update={"max_down": 8})
    file["task"] = file["task"] | {"command": ["serve", "--new"]}
    updates.job_update(principal=ann, job=job, job_spec=world.read(cell, file))
    updates.update_advance_job(job)
    assert Task.objects.filter(job=job, up=True).count() == 0
    assert counted(job) == 3


def test_a_re_packing_moves_no_more_tasks_than_the_rate_has_left(cell, machine, job) -> None:
    repacking = Repacking(cell=cell, most_moves=100, job_share=1.0, most_priority=999)

    def moves() -> dict[int, int]:
        jobs = limits.limits_of_jobs(cell.id, patience_s=600.0)
        return dict(limits.rules_for_plan(repacking, jobs, booked=frozenset()).job_moves)

    assert moves() == {job.id: 3}
    disrupt(job, 0, 1)
    assert moves() == {job.id: 1}
    disrupt(job, 2)
    assert moves() == {}
    assert budgets_of_cell(cell.id, 600.0)[job.id].used_up


def test_a_plan_is_not_committed_after_others_have_disrupted_the_job(cell, machine, ann) -> None:
    job = world.submit(ann, cell, world.a_file(disruption_budget={"max_disruptions": 3}))
    world.bring_up(job, machine)
    high = world.submit(ann, cell, world.a_file("high", priority=300, tasks=1))
    decided = Plan(
        revision=journal.newest(cell.id),
        assignments=(Assignment(high.id, 0, machine.id, ports=(29_000,), victims=((job.id, 0),)),),
    )
    disrupt(job, 1)
    assert [a.job_id for a in commit(cell.id, decided, principal=rows.ME).refused] == [high.id]


def test_tasks_that_come_up_while_a_drain_waits_for_the_lock_count(cell, machine, job, monkeypatch) -> None:
    """The drain has chosen tasks that were not up, and so use no budget. They come up before it evicts them."""
    world.report(job, *range(8), up=False)
    Task.objects.filter(job=job).update(since=timezone.now() - dt.timedelta(days=1))
    draining(machine)
    choose, calls = evacuation.inside_allocs, []

    def meanwhile(tasks):
        calls.append(len(tasks))
        if len(calls) == 1:
            world.report(job, *range(8))
        return choose(tasks)

    monkeypatch.setattr(evacuation, "inside_allocs", meanwhile)
    assert drain(cell) == 3
    assert (calls, counted(job)) == ([8, 8], 3)


def test_an_alloc_that_waits_for_the_rate_is_shown_as_waiting(cell, machine, ann) -> None:
    shelf = {"name": "shelf", "kind": "AllocSet", "priority": 200, "tasks": 1, "task": {"limit": {"cpu": 1}}}
    shelf = world.submit(ann, cell, shelf)
    rate = {"max_down": 10, "max_disruptions": 3}
    web = world.submit(ann, cell, world.a_file("web", tasks=3, alloc_set="shelf", disruption_budget=rate))
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_place(entry, [Assignment(shelf.id, 0, machine.id)])
    world.report(shelf, 0)
    inner = [Assignment(web.id, i, machine.id, ports=(20_000 + i,), alloc=task_id(shelf.id, 0)) for i in range(3)]
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_place(entry, inner)
    world.report(web, 0, 1, 2)
    now = timezone.now()
    DisruptionCount.objects.create(job=web, began_at=now, at=now, number=1)
    draining(machine)
    assert drain(cell) == 0
    (progress,) = progress_of(rows.ME, cell, list(drains_of(cell)))
    (waiting,) = progress.waiting
    assert (waiting.job, waiting.needs, waiting.rate.left, waiting.waits_for_rate) == ("ubar/web", 3, 2, True)
    assert rate_sentence(waiting.rate, needs=3).startswith("3 tasks in an alloc leave together, and 2 of 3 disruptions")
    DisruptionCount.objects.all().delete()
    assert drain(cell) == 4


def test_a_task_that_its_machine_stops_for_lack_of_memory_is_disrupted(cell, job) -> None:
    """The machine reports that the task is stopping before it reports its end."""
    with journal.write(cell.id, rows.ME) as entry:
        reported_states.tasks_observe(entry, [Observation(task_id(job.id, 0), 1, "stopping", "unknown", up=False)])
    disrupt(job, 0, cause=EvictionCause.OUT_OF_RESOURCES)
    assert counted(job) == 1


def test_a_task_that_is_stopping_by_itself_is_not_disrupted_by_a_drain(cell, job) -> None:
    with journal.write(cell.id, rows.ME) as entry:
        reported_states.tasks_observe(entry, [Observation(task_id(job.id, 0), 1, "stopping", "unknown", up=False)])
    with journal.write(cell.id, rows.ME) as entry:
        transitions.tasks_evict(entry, [Eviction(task_id(job.id, 0), 1, EvictionCause.MACHINE_SHUTDOWN.value)])
    assert counted(job) == 0


def test_a_changed_budget_takes_effect_at_once_and_the_count_goes_on(cell, machine, ann, job) -> None:
    draining(machine)
    assert drain(cell) == 3
    wider = world.a_file(tasks=8, disruption_budget={"max_down": "100%", "max_disruptions": 4, "window_s": 7200})
    plan = plans.job_plan(principal=ann, cell=cell, job_spec=world.read(cell, wider))
    assert plan.notes == (
        "Drains and re-packing keep to the disruption budget, and preemption prefers other victims: at most 8 tasks"
        " down at once (100%) and at most 4 disruptions within 2 hours.",
    )
    submit_and_kill.job_apply(principal=ann, cell=cell, job_spec=world.read(cell, wider))
    job.refresh_from_db()
    assert (job.disruption_budget, job.max_disruptions, job.disruption_window_s) == (8, 4, 7200.0)
    assert drain(cell) == 1
    up_again(job, rows.a_machine(cell, "m2"))
    assert drain(cell) == 0


def test_why_says_how_many_disruptions_are_left(cell, machine, ann, job) -> None:
    disrupt(job, 0)
    job = submit_and_kill.live_job(cell, world.read(cell, world.a_file()))
    told = "2 of 3 disruptions within 1 hour are left (disruption_budget.max_disruptions)."
    assert rate_sentences(job) == [told]
    disrupt(job, 1, 2, 3, 4)
    (told,) = rate_sentences(job)
    assert told.startswith("No disruption is left: 5 tasks were disrupted within 1 hour, and the job allows 3")


def test_the_window_is_right_for_any_times_and_numbers(cell, job) -> None:
    """Compare the count and the time of the next disruption with a list of all disruptions."""
    rng = random.Random(2011)
    now = timezone.now()
    for _ in range(12):
        window_s, most = rng.choice([60.0, 600.0, 5_000.0]), rng.randint(1, 6)
        Job.objects.filter(pk=job.pk).update(max_disruptions=most, disruption_window_s=window_s)
        ages = sorted({rng.uniform(0.1, 1.6) * window_s for _ in range(rng.randint(0, 8))})
        slots = [(now - dt.timedelta(seconds=age), rng.randint(1, 3)) for age in ages]
        DisruptionCount.objects.all().delete()
        DisruptionCount.objects.bulk_create(
            DisruptionCount(job=job, began_at=at, at=at, number=number) for at, number in slots
        )
        window = dt.timedelta(seconds=window_s)
        late = timezone.now() - window
        inside = [(at, number) for at, number in slots if at > late]
        rate = disruption_rates.rates_of_jobs([job.id])[job.id]
        if any(abs((at - late).total_seconds()) < 1.0 for at, _ in slots):
            continue  # it leaves the window while the test runs
        assert rate.counted == sum(number for _, number in inside)
        assert disruption_rates.left_in_cell(cell.id) == {job.id: rate.left}
        ends = sorted(at + window for at, _ in inside)
        free = (end for end in ends if sum(number for at, number in inside if at + window > end) < most)
        assert rate.next_at == (None if rate.left else next(free))
    Job.objects.filter(pk=job.pk).update(max_disruptions=3, disruption_window_s=3600.0)


def test_a_step_of_a_re_packing_beyond_the_rate_is_skipped(cell, ann) -> None:
    rate = {"max_down": 10, "max_disruptions": 4}
    job, _ = repack_rows.scattered(ann, cell, machines=4, disruption_budget=rate)
    master = Master(cell.id)
    row = repack_rows.plan(cell, machines=1, job_share=1.0)
    master.run(0.0)
    row.refresh_from_db()
    assert (row.state, row.moves) == ("planned", 2)
    now = timezone.now()
    DisruptionCount.objects.create(job=job, began_at=now, at=now, number=3)
    repackings.repacking_start(principal=rows.ME, cell=cell, number=row.pk)
    for _ in range(3):
        master.run(0.0)
    details = list(row.steps.filter(state="skipped").values_list("detail", flat=True))
    assert (
        "2 tasks of job ubar/web would move, but the number of disruptions that its budget still allows now is 1"
        in details
    )
    assert repack_rows.evictions(cell) == {}
