"""Tests of the rules by which a master runs a re-packing, with rows made by hand and without passes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from django.contrib import admin
from django.db import OperationalError, transaction
from django.utils import timezone
from pytest_django import DjangoDbBlocker

from scheduling.admin.drains_and_brakes import DrainAdmin
from scheduling.brakes import confirmation
from scheduling.core.cell.state import CellState
from scheduling.core.repacking.fitting_job import why_not_needed
from scheduling.core.repacking.relocation import Relocation
from scheduling.core.repacking.repack_plan import RepackRules
from scheduling.core.vocabulary.plan import Assignment, Booking
from scheduling.core.vocabulary.policy import Policy
from scheduling.journal import journal
from scheduling.machines import machines
from scheduling.machines.cordons import machines_cordon
from scheduling.machines.drain_progress import progress_of
from scheduling.master import snapshot
from scheduling.master.loop import Master
from scheduling.models import Cell, Drain, Job, JobSpec, Machine, Repacking, RepackingStep, Task
from scheduling.repacking import planning, repacker, repackings, run
from scheduling.repacking.moving_steps import Decisions, first_part, look_at_moving, unplaced
from scheduling.repacking.planning import MOST_TRIES
from scheduling.repacking.repacker import Repacker
from scheduling.tasks import transitions
from tests.builders import World
from tests.integration import rows, world
from tests.integration.test_allocs import envelope, inside, put


def test_a_master_re_packs_only_after_it_has_found_out_what_is_booked(monkeypatch) -> None:
    one = World().machine("m1").job("gang", cpu=5000, tasks=2, gang=True)
    booked: list[frozenset[int]] = []
    monkeypatch.setattr(Repacker, "turn", lambda *_, **given: booked.append(given["booked"]))
    master = Master(1, state=one.state, _policy=Policy())
    master._repack()
    assert booked == [], "a gang may have booked what this master has not computed yet"
    master._bookings = (Booking(one.jobs["gang"].job_id, 1.0, ((one.id_of("m1"), 1),)),)
    master._repack()
    one.end("gang", 0).end("gang", 1)
    master._repack()
    assert booked == [{one.id_of("m1")}, frozenset()]


@pytest.fixture(scope="module")
def packed(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Packed]:
    """Yield a cell with four machines. The first has two tasks of a job, and an alloc with three tasks inside."""
    with django_db_blocker.unblock(), transaction.atomic():
        cell, tenant = rows.a_cell(), rows.a_tenant("ubar")
        rows.grant(tenant, cell, "production")
        fleet = [rows.a_machine(cell, f"m{number}") for number in range(4)]
        ann = world.principal("ann", tenant=tenant)
        web = world.submit(ann, cell, world.a_file("web", tasks=2))
        shelf = world.submit(ann, cell, envelope(tasks=1))
        inner = world.submit(ann, cell, inside("inner", tasks=3))
        world.place(web, fleet[0], 0, 1)
        with journal.write(cell.id, rows.ME) as entry:
            transitions.tasks_place(entry, [Assignment(shelf.id, 0, fleet[0].id)])
        put(inner, shelf, fleet[0], 0, 1, 2)
        for job, tasks in ((web, 2), (shelf, 1), (inner, 3)):
            world.report(job, *range(tasks))
        yield Packed(cell, fleet, web, shelf, inner)
        transaction.set_rollback(True)


@dataclass
class Packed:
    cell: Cell
    fleet: list[Machine]
    web: Job
    shelf: Job
    inner: Job

    def ids(self, job: Job) -> list[int]:
        return list(Task.objects.filter(job=job).order_by("id").values_list("id", flat=True))

    def outer(self) -> list[int]:
        return sorted(self.ids(self.web) + self.ids(self.shelf))

    def moving(self, tasks: list[int], **changes: object) -> RepackingStep:
        """Return the step of a re-packing that lets the tasks (ids) leave the first machine."""
        facts = {
            "goal": "machines",
            "number": 1,
            "most_moves": 9,
            "job_share": 1.0,
            "most_priority": 359,
            "at_once": 9,
            "state": "running",
        }
        now = timezone.now()
        row = Repacking.objects.create(cell=self.cell, created_at=now, started_at=now, **facts | changes)
        step = RepackingStep.objects.create(repacking=row, position=0, machine=self.fleet[0], tasks=tasks)
        with journal.write(self.cell.id, rows.ME) as entry:
            machines_cordon(entry, [self.fleet[0].id], row, "re-packing")
        run._apply(row, Decisions(begun=[(step, tasks)]), last=False)
        return RepackingStep.objects.select_related("machine", "repacking").get(pk=step.pk)


def look(step: RepackingStep) -> Decisions:
    decisions = Decisions()
    row = step.repacking
    look_at_moving(row, [step], unplaced(row), decisions, 600.0)
    return decisions


def leave(*tasks: int, **changes: object) -> None:
    """Let tasks leave their machine. By default they wait for another one."""
    gone = {"machine": None, "alloc": None, "up": False, "state": "pending", "since": timezone.now()}
    Task.objects.filter(pk__in=tasks).update(**gone | changes)


def outcome(decisions: Decisions) -> list[tuple[str, str]]:
    return [(state, detail) for _, state, detail in decisions.ended]


@pytest.mark.django_db
def test_a_step_lasts_until_the_tasks_inside_allocs_are_up_too(packed: Packed) -> None:
    outer, inner = packed.outer(), packed.ids(packed.inner)
    step = packed.moving(outer)
    assert (step.moves, sorted(step.tasks), Drain.objects.get().only) == (6, sorted(outer + inner), None)
    elsewhere = {"machine": packed.fleet[1], "state": "running"}
    leave(*inner)
    leave(*outer, **elsewhere, up=True)
    assert outcome(look(step)) == []
    assert set(unplaced(step.repacking)) == set(inner), "no other step begins"
    leave(*inner, **elsewhere)
    assert outcome(look(step)) == []
    leave(*inner, **elsewhere, up=True)
    assert outcome(look(step)) == [("freed", "")]


@pytest.mark.django_db
def test_a_step_does_not_wait_for_tasks_that_were_not_up_before(packed: Packed) -> None:
    outer, first = packed.ids(packed.web), packed.ids(packed.web)[0]
    Task.objects.filter(pk=first).update(up=False)
    step = packed.moving(outer)
    Task.objects.filter(job=packed.shelf).update(machine=packed.fleet[2])
    leave(*outer, machine=packed.fleet[1], state="running")
    assert outcome(look(step)) == []
    leave(*outer[1:], machine=packed.fleet[1], state="running", up=True)
    assert outcome(look(step)) == [("freed", "")]


@pytest.mark.django_db
def test_the_tasks_of_a_large_step_leave_in_parts(packed: Packed) -> None:
    """An alloc leaves with all its tasks at once."""
    outer = packed.outer()
    step = packed.moving(outer, at_once=1)
    opened = []
    for _ in range(2):
        (only,) = Drain.objects.values_list("only", flat=True)
        opened.append(only)
        (task,) = set(only) - set(opened[0] if len(opened) > 1 else [])
        assert (outcome(look(step)), look(step).opened) == ([], []), "the task has not left"
        leave(task, machine=packed.fleet[1], state="running")
        assert look(step).opened == [], "the task is not up"
        leave(task, machine=packed.fleet[1], state="running", up=True)
        run._apply(step.repacking, look(step), last=False)
    assert [len(only) for only in opened] == [1, 2]
    assert Drain.objects.get().only is None, "the last part"


def test_a_part_has_at_most_so_many_tasks() -> None:
    assert first_part([1, 2, 3], {}, 2) == [1, 2]
    assert first_part([1, 2, 3], {2: 3}, 4) == [1]
    assert first_part([2, 3], {2: 3}, 3) == [2], "an alloc leaves as a whole"
    assert first_part([1, 2, 3], {2: 3}, 6) == [1, 2, 3]


@pytest.mark.django_db
def test_a_task_whose_job_was_updated_meanwhile_delays_a_re_packing_and_does_not_stop_it(packed: Packed) -> None:
    web = packed.ids(packed.web)
    step = packed.moving(web)
    Task.objects.filter(job=packed.shelf).update(machine=packed.fleet[2])
    leave(*web, since=timezone.now() - dt.timedelta(hours=1))
    assert look(step).stop == f"task 0 of job {packed.web.id} left its machine and has found no other one"
    last = packed.web.specs.get()
    JobSpec.objects.create(job=packed.web, version=last.version + 1, spec=last.spec, digest="", actor="ann")
    decisions = look(step)
    assert (decisions.stop, unplaced(step.repacking), outcome(decisions)) == ("", {}, [])


@pytest.mark.django_db
def test_no_step_begins_before_the_master_has_read_the_cordons(packed: Packed, monkeypatch) -> None:
    monkeypatch.setattr(snapshot, "execute", lambda _: None)  # the transaction of the test has begun already
    before = snapshot.load_state(packed.cell.id)
    step = packed.moving(packed.outer())
    RepackingStep.objects.filter(pk=step.pk).update(state="waiting")
    for state, begins in ((before, False), (snapshot.load_state(packed.cell.id), True)):
        relocation = Relocation(state, Policy(), now=0.0)
        run.run_advance(step.repacking, state, relocation, patience_s=600.0, booked=frozenset())
        step.refresh_from_db()
        assert (step.state == "moving") == begins, step.detail


@pytest.mark.django_db
def test_a_cordon_is_shown_as_held_and_a_drain_that_replaces_it_counts_its_tasks(packed: Packed) -> None:
    step = packed.moving([])
    Drain.objects.update(only=[])
    (drain,) = Drain.objects.select_related("machine__cell")
    (drain.progress,) = progress_of(rows.ME, packed.cell, [drain])
    shown = DrainAdmin(Drain, admin.site).state_shown(drain)
    assert shown == ("held", f"held for re-packing {step.repacking_id}")
    machines.machines_drain(principal=rows.ME, cell=packed.cell, machines=[packed.fleet[0]], reason="repair", confirm=6)
    drain.refresh_from_db()
    assert (drain.tasks, drain.only, drain.repacking) == (6, None, None)


def test_a_task_may_no_longer_need_the_capacity_that_others_would_leave() -> None:
    one = World().machine("m1", cpu=4000).machine("m2", cpu=1000)
    one.job("web", cpu=2000, priority=250).place("web", 0, on="m1").job("old", cpu=2000, priority=250)
    one.place("old", 0, on="m1").job("first", cpu=2000, priority=300, tenant=1)
    one.job("large", cpu=2000, priority=200, tenant=2)
    rules = RepackRules(most_moves=9, most_priority=359, job_moves={row.job_id: 9 for row in one.jobs.values()})
    leaving = np.array([one.state.tasks.jobs[one.jobs["web"].job_id].tasks[0]])

    def why(job: str, leaving: np.ndarray) -> str:
        relocation = Relocation(one.state, Policy(), now=one.time)
        facts = {"job_id": one.jobs[job].job_id, "machine_id": one.id_of("m1"), "leaving": leaving}
        return why_not_needed(one.state, relocation, rules, **facts)

    assert why("first", leaving) == ""
    assert why("first", leaving[:0]) == "a task of the job would not fit there after these moves"
    assert why("large", leaving) == "tasks that come earlier in the queue would take the capacity"
    one.end("old", 0, gone=True)
    assert why("first", leaving) == "a task of the job fits without these moves now"
    one.place("first", 0, on="m1")
    assert why("first", leaving) == "no task of the job waits for a machine any more"


@pytest.mark.django_db
@pytest.mark.parametrize(("at_once", "moving"), [(5, 1), (6, 2)])
def test_steps_begin_as_long_as_the_moving_tasks_are_few_enough(packed: Packed, monkeypatch, at_once, moving) -> None:
    monkeypatch.setattr(snapshot, "execute", lambda _: None)
    web = packed.ids(packed.web)
    Task.objects.filter(pk=web[1]).update(machine=packed.fleet[1])
    step = packed.moving([web[0], *packed.ids(packed.shelf)], at_once=at_once)
    row = step.repacking
    RepackingStep.objects.create(repacking=row, position=1, machine=packed.fleet[1], tasks=[web[1]], moves=1)
    with journal.write(packed.cell.id, rows.ME) as entry:
        machines_cordon(entry, [packed.fleet[1].id], row, "re-packing")
    state = snapshot.load_state(packed.cell.id)
    run.run_advance(row, state, Relocation(state, Policy(), now=0.0), patience_s=600.0, booked=frozenset())
    assert row.steps.filter(state="moving").count() == moving


@pytest.mark.django_db
@pytest.mark.parametrize("booked", [True, False])
def test_a_step_is_skipped_if_files_or_a_booking_came_after_the_plan(packed: Packed, monkeypatch, booked) -> None:
    monkeypatch.setattr(snapshot, "execute", lambda _: None)
    step = packed.moving(packed.outer())
    RepackingStep.objects.filter(pk=step.pk).update(state="waiting")
    if not booked:
        Machine.objects.filter(pk=packed.fleet[0].pk).update(kept=packed.ids(packed.shelf))
    state, places = snapshot.load_state(packed.cell.id), frozenset({packed.fleet[0].pk} if booked else ())
    run.run_advance(step.repacking, state, Relocation(state, Policy(), now=0.0), patience_s=600.0, booked=places)
    step.refresh_from_db()
    assert (step.state, step.detail[:27]) == ("skipped", "the machine has files of en")


@pytest.mark.django_db
def test_a_machine_returns_if_its_step_is_skipped_in_the_turn_in_which_all_stops(packed: Packed) -> None:
    step = packed.moving(packed.outer())
    run._apply(step.repacking, Decisions(ended=[(step, "skipped", "late")], stop="lost"), last=False)
    step.refresh_from_db()
    assert (step.state, step.detail, step.repacking.__class__.objects.get().state) == ("skipped", "late", "stopped")
    assert (Machine.objects.get(pk=packed.fleet[0].pk).state, Drain.objects.count()) == ("up", 0)


@pytest.mark.django_db
def test_a_master_that_lost_the_lease_changes_no_step_of_the_next_one(packed: Packed) -> None:
    step = packed.moving(packed.outer())
    RepackingStep.objects.filter(pk=step.pk).update(state="freed")
    run._apply(step.repacking, Decisions(ended=[(step, "skipped", "late")]), last=False)
    run._apply(step.repacking, Decisions(begun=[(step, [])]), last=False)
    assert (RepackingStep.objects.get().state, Drain.objects.count()) == ("freed", 1)


@pytest.mark.django_db
def test_tasks_of_skipped_steps_count_for_some_time(packed: Packed) -> None:
    web = packed.ids(packed.web)
    step = packed.moving(web)
    leave(*web)
    run._apply(step.repacking, Decisions(ended=[(step, "skipped", "late")]), last=False)
    assert set(unplaced(step.repacking)) == set(web)
    RepackingStep.objects.update(ended_at=timezone.now() - dt.timedelta(hours=1))
    assert unplaced(step.repacking) == {}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("tries", "error", "detail"),
    [
        (MOST_TRIES, None, "attempts to make the plan ended"),
        (0, ValueError("x"), "an unexpected error"),
        (0, LookupError("no"), "no"),
    ],
)
def test_a_plan_that_cannot_be_made_has_failed(packed: Packed, monkeypatch, tries, error, detail) -> None:
    def raising(*_: object, **__: object) -> None:
        raise error or AssertionError("it is not made")

    monkeypatch.setattr(planning, "plan_free_machines", raising)
    row = repackings.repacking_plan(principal=rows.ME, cell=packed.cell, reason="x", machines=1)
    Repacking.objects.update(tries=tries)
    planning.plan_make(row, CellState(), Policy(), patience_s=600.0, booked=frozenset())
    row.refresh_from_db()
    assert (row.state, detail in row.detail) == ("failed", True), row.detail


@pytest.mark.django_db
def test_a_run_that_raises_stops_and_a_lost_database_does_not_stop_it(packed: Packed, monkeypatch) -> None:
    step = packed.moving(packed.outer())
    errors = [OperationalError("away"), ValueError("x")]
    monkeypatch.setattr(repacker, "run_advance", lambda *_, **__: (_ for _ in ()).throw(errors.pop(0)))
    one = Repacker(packed.cell.id)
    with pytest.raises(OperationalError):
        one.turn(CellState(), Policy(), patience_s=600.0, booked=frozenset())
    assert Repacking.objects.get().state == "running"
    assert one.turn(CellState(), Policy(), patience_s=600.0, booked=frozenset())
    step.repacking.refresh_from_db()
    assert (step.repacking.state, step.repacking.detail[:19]) == ("stopped", "an unexpected error")


@pytest.mark.django_db
def test_a_confirmation_counts_spare_machines_and_no_tasks_that_stay(packed: Packed, monkeypatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(confirmation, "require", lambda _cell, tasks, _confirm, *, what: asked.append(tasks))
    step = packed.moving(packed.outer())
    Drain.objects.update(only=[packed.ids(packed.shelf)[0]])
    machines.machines_drain(principal=rows.ME, cell=packed.cell, machines=[packed.fleet[1]], reason="x")
    assert asked == [4], "the alloc, and the tasks inside it"
    row = step.repacking
    Repacking.objects.update(state="planned", planned_at=timezone.now(), moves=7)
    RepackingStep.objects.update(state="waiting")
    RepackingStep.objects.create(repacking=row, position=1, machine=packed.fleet[2], state="spare", moves=5)
    repackings.repacking_start(principal=rows.ME, cell=packed.cell, number=row.pk)
    assert asked == [4, 12]


@pytest.mark.django_db
def test_old_re_packings_are_deleted_unless_they_keep_machines_free(packed: Packed, monkeypatch) -> None:
    monkeypatch.setattr(repackings, "KEPT", 1)
    holding = packed.moving(packed.outer()).repacking
    Repacking.objects.update(state="done", ended_at=timezone.now())
    made = [repackings.repacking_plan(principal=rows.ME, cell=packed.cell, reason="x", machines=1) for _ in range(4)]
    assert set(Repacking.objects.values_list("pk", flat=True)) == {holding.pk, made[2].pk, made[3].pk}
