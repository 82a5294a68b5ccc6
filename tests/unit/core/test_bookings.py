"""Tests of bookings: the capacity that is kept free for a gang, and the tasks that may use it before the gang starts.

The clock of a `World` advances by a second with each event, so the tests compute times from `since`.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pytest

from scheduling.core.booking.bookings import machines_booked
from scheduling.core.booking.run_ends import MARGIN_S, OVERRUN_S, latest_ends
from scheduling.core.cell.state import CellState
from scheduling.core.explaining.explain import ADVICE_SLACK_S, Explainer
from scheduling.core.explaining.forecast import Ends
from scheduling.core.explaining.unplaced_tasks import of_job
from scheduling.core.explaining.wording import sentence
from scheduling.core.pass_ import schedule_pass
from scheduling.core.placing.pass_cache import PassCache
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Booking, Plan
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.reasons import Basis, ReasonCode, Why
from scheduling.core.vocabulary.requirement import Group
from tests.builders import World, must, needs

BATCH = 110


def world(*, limit_s: float = 600.0) -> World:
    """Return a cell with two machines. On the first one runs a task of 6 cores with a time limit, and 2 cores are free.
    The second one is empty. A gang of two tasks with 5 cores each waits.
    """
    one = World().machine("m1").machine("m2")
    one.job("long", cpu=6000, priority=BATCH, max_run_s=limit_s).place("long", 0, on="m1")
    return one.job("gang", cpu=5000, tasks=2, priority=BATCH, gang=True)


def booking(one: World, **options: float) -> Booking:
    (found,) = one.plan(**options).bookings  # type: ignore[arg-type]
    return found


def booking_of(state: CellState, *, now: float) -> Booking:
    (found,) = schedule_pass(state, Policy(), now=now, rng=np.random.default_rng(0)).bookings
    return found


def end(one: World, job: str, run_s: float = 600.0) -> float:
    tasks = one.state.tasks
    return float(tasks.since[tasks.jobs[one.jobs[job].job_id].tasks[0]]) + run_s


def placed(one: World, plan: Plan, job: str) -> list[str]:
    return sorted(one.where(plan, job).values())


def test_a_gang_books_the_machines_on_which_it_fits_first() -> None:
    one = world()
    ids = {name: machine.machine_id for name, machine in one.machines.items()}
    assert booking(one) == Booking(one.jobs["gang"].job_id, end(one, "long"), ((ids["m1"], 1), (ids["m2"], 1)))


def test_a_booking_ends_with_its_gang() -> None:
    one = world()
    bookings = one.plan().bookings
    assert machines_booked(one.state, bookings) == {machine.machine_id for machine in one.machines.values()}
    one.end("long", 0, gone=True).place("gang", 0, on="m1").place("gang", 1, on="m2")
    assert machines_booked(one.state, bookings) == frozenset(), "no further pass has run"
    killed = world()
    bookings = killed.plan().bookings
    killed.end("gang", 0).end("gang", 1)
    assert machines_booked(killed.state, bookings) == frozenset()


def test_a_task_that_ends_before_the_gang_starts_uses_booked_capacity() -> None:
    one = world().job("short", cpu=6000, priority=BATCH, max_run_s=300.0)
    plan = one.plan()
    assert placed(one, plan, "short") == ["m2"]
    assert [made.at for made in plan.bookings] == [end(one, "long")]


@pytest.mark.parametrize("priority", [0, BATCH])
@pytest.mark.parametrize("max_run_s", [0.0, 600.0, 86_400.0])
def test_a_task_without_a_short_time_limit_leaves_booked_capacity_free(priority: int, max_run_s: float) -> None:
    one = world().job("other", cpu=6000, priority=priority, max_run_s=max_run_s, tenant=0)
    assert placed(one, one.plan(), "other") == []


def test_the_limit_must_end_by_the_margin_before_the_gang_starts() -> None:
    one = world()
    left_s = end(one, "long") - one.time - 2.0 - MARGIN_S  # each of the two jobs takes a second
    one.job("fits", cpu=3500, priority=BATCH, max_run_s=left_s)
    one.job("too-long", cpu=3500, priority=BATCH, max_run_s=left_s + 1.0)
    plan = one.plan()
    assert (placed(one, plan, "fits"), placed(one, plan, "too-long")) == (["m2"], [])


def test_what_the_gang_does_not_need_is_free_for_all() -> None:
    """The gang needs 5 of the 8 cores of each machine. Tasks of one core without a limit may use the other 3."""
    one = world().job("small", cpu=1000, tasks=9, priority=BATCH)
    assert placed(one, one.plan(), "small") == ["m1", "m1", "m2", "m2", "m2"]
    one.schedule()
    assert [made.at for made in one.plan().bookings] == [end(one, "long")], "the gang starts no later"


def test_higher_priorities_are_not_bound() -> None:
    one = world().job("urgent", cpu=8000, priority=BATCH + 1)
    plan = one.plan()
    assert placed(one, plan, "urgent") == ["m2"]
    assert plan.bookings == (), "the urgent task has no time limit"


def test_an_urgent_task_with_a_time_limit_leaves_the_booking() -> None:
    one = world().job("urgent", cpu=8000, priority=BATCH + 1, max_run_s=60.0).job("other", cpu=1000, priority=BATCH)
    plan = one.plan()
    assert placed(one, plan, "urgent") == ["m2"]
    assert [made.at for made in plan.bookings] == [end(one, "long")]
    one = world(limit_s=60.0).job("urgent", cpu=8000, priority=BATCH + 1, max_run_s=600.0)
    assert booking(one).at == one.time + 600.0 + MARGIN_S, "the gang waits for the urgent task"


def test_a_gang_waits_for_no_task_that_it_may_preempt() -> None:
    one = World().machine("m1").machine("m2")
    one.job("low", cpu=8000, tasks=2, priority=0).schedule()
    one.job("gang", cpu=5000, tasks=2, priority=BATCH, gang=True)
    assert placed(one, one.plan(), "gang") == ["m1", "m2"]


@pytest.mark.parametrize("limit_s", [0.0, 90_000.0])
def test_without_a_time_limit_that_ends_within_a_day_nothing_is_booked(limit_s: float) -> None:
    one = world(limit_s=limit_s).job("other", cpu=6000, priority=BATCH)
    plan = one.plan()
    assert plan.bookings == ()
    assert placed(one, plan, "other") == ["m2"]


def test_a_gang_that_is_too_large_for_the_cell_books_nothing() -> None:
    one = world()
    one.job("huge", cpu=5000, tasks=3, priority=BATCH + 1, gang=True).job("other", cpu=6000, priority=BATCH)
    plan = one.plan()
    assert [made.job_id for made in plan.bookings] == [one.jobs["gang"].job_id]
    assert placed(one, plan, "other") == []


def test_constraints_of_the_gang_decide_what_is_booked() -> None:
    one = World().machine("m1", flash="yes").machine("m2").machine("m3", flash="yes")
    one.job("long", cpu=6000, priority=BATCH, max_run_s=600.0).place("long", 0, on="m1")
    one.job("gang", cpu=5000, tasks=2, priority=BATCH, gang=True, constraints=(must("flash", "present"),))
    one.job("other", cpu=6000, tasks=2, priority=BATCH)
    plan = one.plan()
    assert {machine for machine, _ in plan.bookings[0].on} == {one.id_of("m1"), one.id_of("m3")}
    assert placed(one, plan, "other") == ["m2"]


def test_the_maximum_per_machine_and_rack_holds_for_bookings() -> None:
    one = World().machine("m1", rack="r1").machine("m2", rack="r1").machine("m3", rack="r2")
    one.job("long", cpu=6000, priority=BATCH, max_run_s=600.0).place("long", 0, on="m3")
    one.job("gang", cpu=3000, tasks=2, priority=BATCH, gang=True, max_per_rack=1)
    assert sum(number for machine, number in booking(one).on if machine == one.id_of("m3")) == 1
    one.job("own", cpu=3000, tasks=5, priority=BATCH + 1, gang=True, max_per_machine=1)
    assert all(made.job_id != one.jobs["own"].job_id for made in one.plan().bookings), "there are only three machines"


def test_accelerators_of_a_booked_machine_stay_whole() -> None:
    one = World().machine("m1", accelerators=2000)
    one.job("long", cpu=1000, accelerators=1000, priority=BATCH, max_run_s=600.0)
    one.place("long", 0, on="m1", devices=(0,))
    one.job("gang", cpu=1000, accelerators=1000, tasks=2, priority=BATCH, gang=True)
    one.job("part", cpu=1000, accelerators=300, priority=BATCH).job("none", cpu=1000, priority=BATCH)
    plan = one.plan()
    assert booking(one).at == end(one, "long")
    assert (placed(one, plan, "part"), placed(one, plan, "none")) == ([], ["m1"])


def test_one_device_that_ends_is_not_enough_for_two_parts() -> None:
    one = World().machine("m1", accelerators=1000)
    one.job("long", cpu=1000, accelerators=1000, priority=BATCH, max_run_s=600.0)
    one.place("long", 0, on="m1", devices=(0,))
    one.job("gang", cpu=1000, accelerators=600, tasks=2, priority=BATCH, gang=True)
    assert one.plan().bookings == ()


def test_whole_cores_count_for_a_booking() -> None:
    one = World().machine("m1", cpu=4000)
    one.job("long", cpu=1000, priority=200, max_run_s=600.0, whole_cores=1).place("long", 0, on="m1")
    one.job("gang", cpu=1000, tasks=2, priority=200, gang=True, whole_cores=2)
    assert booking(one).at == end(one, "long")


def test_a_drained_machine_is_not_booked() -> None:
    one = world().machine("m3").job("other", cpu=8000, priority=BATCH + 1).place("other", 0, on="m3")
    assert booking(one).at == end(one, "long")
    one.machine_state("m2", "draining")
    assert one.plan().bookings == ()
    one.end("other", 0, gone=True)
    assert {machine for machine, _ in booking(one).on} == {one.id_of("m1"), one.id_of("m3")}


def test_bookings_follow_what_happens_to_the_cell() -> None:
    one = world()
    one.end("long", 0, gone=True)
    assert placed(one, one.plan(), "gang") == ["m1", "m2"]
    one = world()
    one.change("long", max_run_s=900.0)
    assert booking(one).at == end(one, "long", 900.0), "the limit was extended"
    one.change("long", max_run_s=0.0)
    assert one.plan().bookings == ()
    one = world().job("other", cpu=6000, priority=BATCH)
    one.end("gang", 0).end("gang", 1)
    plan = one.plan()
    assert (plan.bookings, placed(one, plan, "other")) == ((), ["m2"])


def test_the_gang_starts_when_the_booked_tasks_have_ended_although_others_wait() -> None:
    """Submit tasks of the same priority for a tenant whose turn is before the gang's. They may not start instead."""
    one = world().job("others", cpu=6000, tasks=4, priority=BATCH, tenant=0)
    one.end("long", 0, gone=True)
    plan = one.plan()
    assert (placed(one, plan, "gang"), placed(one, plan, "others")) == (["m1", "m2"], [])


def test_of_two_gangs_in_one_band_the_older_one_books() -> None:
    one = world().job("second", cpu=5000, tasks=2, priority=BATCH, gang=True, tenant=0)
    assert [made.job_id for made in one.plan().bookings] == [one.jobs["gang"].job_id]
    one = world().change_priority("long", BATCH + 5)  # so that no task preempts it
    one.job("urgent", cpu=5000, tasks=2, priority=BATCH + 5, gang=True)
    assert [made.job_id for made in one.plan().bookings] == [one.jobs["urgent"].job_id]


def test_each_band_has_its_own_booking_on_other_machines() -> None:
    one = World().machine("m1").machine("m2").machine("m3").machine("m4")
    for number, machine in enumerate(("m1", "m3")):
        one.job(f"long{number}", cpu=6000, priority=200, max_run_s=600.0).place(f"long{number}", 0, on=machine)
    one.job("prod", cpu=5000, tasks=3, priority=210, gang=True)
    plan = one.plan()
    assert [made.job_id for made in plan.bookings] == [one.jobs["prod"].job_id]
    one.job("batch", cpu=3500, tasks=2, priority=BATCH, gang=True)
    first, second = one.plan().bookings
    assert not {machine for machine, _ in first.on} & {machine for machine, _ in second.on}


def test_a_cached_decision_ends_when_the_booked_gang_can_start() -> None:
    one, memory = world(), PassCache()
    at = end(one, "long")
    assert [made.at for made in one.plan(memory=memory).bookings] == [at]
    assert [made.at for made in one.plan(memory=memory, now=at - 1.0).bookings] == [at]
    # The task still runs, so the gang can start at any time.
    for late_s in (5.0, 20.0, OVERRUN_S):
        assert [made.at for made in one.plan(memory=memory, now=at + late_s).bookings] == [at + late_s]
    assert one.plan(memory=memory, now=at + OVERRUN_S + 1.0).bookings == ()


def test_a_task_that_is_late_to_end_lets_no_other_task_use_booked_capacity() -> None:
    one = world().job("short", cpu=6000, priority=BATCH, max_run_s=60.0)
    at = end(one, "long")
    assert placed(one, one.plan(now=at - 60.0 - MARGIN_S), "short") == ["m2"]
    for late_s in (0.0, 16.0, 200.0, OVERRUN_S):
        assert placed(one, one.plan(now=at + late_s), "short") == []


def test_a_task_that_is_being_stopped_keeps_the_end_of_its_run() -> None:
    """Stop a task at its limit. It ignores SIGTERM for a while, and short tasks wait."""
    one = world().report("long", 0, "up")
    up_at = one.time
    assert booking(one).at == up_at + 600.0
    one.time = up_at + 595.0
    one.report("long", 0, "stopping").job("short", cpu=6000, priority=BATCH, max_run_s=60.0)
    plan = one.plan()
    assert ([made.at for made in plan.bookings], placed(one, plan, "short")) == ([up_at + 600.0], [])
    assert one.from_rows().diff(one.state) == []
    assert booking(one) == booking_of(one.from_rows(), now=one.time)


def test_a_task_whose_run_has_no_known_end_uses_no_booked_capacity() -> None:
    """A task that may start again in place has a time limit, but `ends_within_s` is 0."""
    one = world().job("restarts", cpu=6000, priority=BATCH, max_run_s=60.0, ends_within_s=0.0)
    assert placed(one, one.plan(), "restarts") == []
    one.change("long", ends_within_s=0.0)
    assert one.plan().bookings == ()


def test_a_gang_that_can_never_start_leaves_the_booking_to_the_next() -> None:
    one = World().machine("m1").machine("m2")
    one.job("long", cpu=6000, priority=BATCH, max_run_s=600.0).place("long", 0, on="m1")
    one.job("huge", cpu=5000, tasks=3, priority=BATCH, gang=True).job(
        "huger", cpu=5000, tasks=4, priority=BATCH, gang=True
    )
    one.job("gang", cpu=5000, tasks=2, priority=BATCH, gang=True).job("other", cpu=6000, priority=BATCH, tenant=0)
    plan = one.plan()
    assert [made.job_id for made in plan.bookings] == [one.jobs["gang"].job_id]
    assert placed(one, plan, "other") == []


def test_impossible_gangs_of_a_higher_priority_leave_tries_to_lower_ones() -> None:
    one = world()
    for number in range(4):
        one.job(f"huge{number}", cpu=5000, tasks=3, priority=BATCH + 1, gang=True)
    assert booking(one).job_id == one.jobs["gang"].job_id


def test_reports_change_the_state_for_passes_only_while_a_gang_is_pending() -> None:
    one = World().machine("m1").job("long", cpu=6000, priority=BATCH, max_run_s=600.0).place("long", 0, on="m1")
    changes = one.state.changes
    assert one.report("long", 0, "up").report("long", 0, "starting").state.changes == changes
    one.job("gang", cpu=5000, tasks=2, priority=BATCH, gang=True)
    changes = one.state.changes
    assert one.report("long", 0, "up").state.changes == changes + 1


def test_the_clock_may_jump() -> None:
    one = world()
    assert booking(one, now=one.time - 500.0).at == end(one, "long")
    assert one.plan(now=one.time + 50_000.0).bookings == (), "nobody knows when the task ends"


def test_a_run_ends_at_its_limit_or_now_or_at_an_unknown_time() -> None:
    now = 1000.0
    since, run_s = np.array([900.0, 900.0, 900.0, 400.0]), np.array([0.0, 300.0, 95.0, 299.0])
    assert latest_ends(since, run_s, now).tolist() == [np.inf, 1200.0, 1000.0, np.inf]


def test_equal_states_make_equal_bookings_whatever_the_random_numbers() -> None:
    one = world()
    assert booking(one) == booking(one, seed=7)
    assert one.from_rows().diff(one.state) == []


@pytest.mark.parametrize(("machines", "books"), [(2, False), (3, True)])
def test_unequal_tasks_of_a_gang_count_as_large_as_the_largest(machines: int, books: bool) -> None:
    """Submit a gang of a task with 5 cores and two with 3. Three machines can hold a task of 5 cores each."""
    one = World()
    for number in range(machines):
        one.machine(f"m{number}")
    one.job("long", cpu=6000, priority=BATCH, max_run_s=600.0).place("long", 0, on="m0")
    one.job("fill", cpu=3000, tasks=2, priority=BATCH, max_run_s=600.0)
    one.place("fill", 0, on="m1").place("fill", 1, on="m1")
    one.job("gang", cpu=5000, priority=BATCH, gang=True)
    groups = (Group(needs(cpu=3000), ((1, 2),)),)
    one.send(events.TasksAdded(job_id=one.jobs["gang"].job_id, groups=groups, spec_version=1))
    assert [made.at for made in one.plan().bookings] == ([end(one, "fill")] if books else [])


def test_many_time_limits_are_rounded_up() -> None:
    one = world(limit_s=1000.0)
    for number in range(40):
        one.job(f"j{number}", cpu=100, priority=BATCH, max_run_s=10.0 + number)
    plan = one.plan()
    assert len(plan.assignments) == 40
    assert plan.stats.classes < 20


# --- explanations


def why_of(one: World, job: str, **options: Any) -> Why:
    job_id = one.jobs[job].job_id
    return next(of_job(why, job_id) for why in one.plan(**options).unplaced if job_id in dict(why.tasks))


def test_the_expected_start_of_a_booked_gang_is_the_time_of_the_booking() -> None:
    one = world()
    why = why_of(one, "gang")
    assert why.expected is not None
    assert (why.expected.basis, why.expected.at, why.expected.machines) == (Basis.BOOKED, end(one, "long"), 2)
    assert why.code == ReasonCode.GANG
    at = dt.datetime.fromtimestamp(end(one, "long"), dt.UTC)
    assert f"expected to start together at {at:%Y-%m-%d %H:%M:%S} UTC or earlier" in sentence(why)


def test_why_says_which_limit_lets_a_task_use_booked_capacity() -> None:
    one = world().job("other", cpu=6000, priority=BATCH)
    why = why_of(one, "other")
    assert why.expected is not None
    fills_s = int(end(one, "long") - one.time - MARGIN_S - ADVICE_SLACK_S)
    assert (why.code, why.expected.basis, why.expected.fills_s) == (ReasonCode.BOOKED, Basis.BOOKED_FOR_A_GANG, fills_s)
    text = sentence(why)
    assert "1 machine whose free capacity is booked for a gang" in text
    assert f"its max_run_s, notice_s and leave_s add up to at most {fills_s} seconds." in text
    one.change("other", max_run_s=float(fills_s))
    assert placed(one, one.plan(), "other") == ["m2"]


def test_the_advice_about_a_limit_holds_if_limits_are_rounded() -> None:
    one = world(limit_s=1000.0)
    for number in range(40):
        one.job(f"j{number}", cpu=8000, priority=BATCH, max_run_s=2000.0 + number)
    why = why_of(one.job("other", cpu=6000, priority=BATCH), "other")
    assert why.expected is not None
    assert why.expected.fills_s is not None
    assert why.expected.fills_s > 600.0
    one.change("other", max_run_s=why.expected.fills_s)
    assert placed(one, one.plan(), "other") == ["m2"]


def test_a_gang_and_another_job_with_equal_tasks_have_their_own_explanations() -> None:
    one = world().job("other", cpu=5000, tasks=2, priority=BATCH)
    gang, other = why_of(one, "gang"), why_of(one, "other")
    assert gang.expected is not None
    assert other.expected is not None
    assert (gang.code, gang.expected.basis) == (ReasonCode.GANG, Basis.BOOKED)
    assert (other.code, other.expected.basis) == (ReasonCode.BOOKED, Basis.BOOKED_FOR_A_GANG)


def test_a_gang_that_waits_for_tasks_without_limits_has_no_known_start() -> None:
    why = why_of(world(limit_s=0.0), "gang")
    assert why.expected is not None
    assert why.expected.basis is Basis.NO_TIME_LIMITS
    assert "The start time cannot be known: no end is known of tasks that use the capacity" in sentence(why)


def test_measured_run_times_are_shown_and_book_nothing() -> None:
    one, seen = world(limit_s=0.0), Ends(6)
    job_id = one.jobs["long"].job_id
    for second in range(10):
        ended = events.TaskEnded(
            job_id=job_id, index=0, machine_id=one.id_of("m1"), incarnation=1, how="finished", gone=True
        )
        seen.observe(one.state, ended, end(one, "long", 100.0 + second))
    now = end(one, "long", 50.0)
    one.job("other", cpu=6000, priority=BATCH)
    plan = one.plan(now=now, explainer=Explainer(seen=seen))
    assert (plan.bookings, placed(one, plan, "other")) == ((), ["m2"])
    (why,) = plan.unplaced
    assert why.expected is not None
    assert why.expected.at is None, "no end is known of the other task, which this pass placed"
    one.end("other", 0)
    why = why_of(one, "gang", now=now, explainer=Explainer(seen=seen))
    assert why.expected is not None
    assert why.expected.basis is Basis.RUN_TIMES
    assert why.expected.at == pytest.approx(end(one, "long", 108.55))
    assert "This is an estimate" in sentence(why)


def test_the_first_pending_task_is_expected_when_a_time_limit_ends() -> None:
    one = World().machine("m1").job("long", cpu=6000, priority=BATCH, max_run_s=600.0).place("long", 0, on="m1")
    one.job("first", cpu=7000, priority=BATCH)
    why = why_of(one, "first")
    assert why.expected is not None
    assert (why.expected.basis, why.expected.at) == (Basis.TIME_LIMITS, end(one, "long"))
    assert "This is an estimate, because no capacity is booked" in sentence(why)
    assert "at the latest" not in sentence(why)


def test_a_second_equal_gang_is_behind_the_first() -> None:
    one = world().job("second", cpu=5000, tasks=2, priority=BATCH, gang=True)
    why = why_of(one, "second")
    assert why.expected is not None
    assert why.expected.basis is Basis.BEHIND_OTHERS
    assert "other pending tasks come first" in sentence(why)
    one.job("third", cpu=5500, tasks=2, priority=BATCH, gang=True)
    why = why_of(one, "third")
    assert why.expected is not None
    assert why.expected.basis is Basis.BEHIND_OTHERS
