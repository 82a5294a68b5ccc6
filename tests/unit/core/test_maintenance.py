"""Tests of the maintenance calendar in a pass: which tasks start on machines that go into maintenance."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from scheduling.core.cell.state import CellState
from scheduling.core.explaining.explain import ADVICE_SLACK_S, Explainer
from scheduling.core.explaining.unplaced_tasks import of_job
from scheduling.core.explaining.wording import sentence
from scheduling.core.placing.closed_machines import START_S, crossing
from scheduling.core.placing.pass_cache import PassCache
from scheduling.core.repacking.relocation import Relocation
from scheduling.core.trials.trial import Trial
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Plan
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.reasons import Basis, ReasonCode, Why
from scheduling.core.vocabulary.trials import TrialGroup, TrialJob
from tests.builders import World, needs

BATCH = 110
HOUR = 3_600.0


def window(
    one: World, *machines: str, begin: float, length: float = HOUR, number: int = 1, state: str = "planned", **of: str
) -> World:
    """Write a window that begins `begin` seconds after the present time of the world."""
    starts = one.time + begin
    return one.send(
        events.MaintenanceSet(
            window=number, state=state, starts_at=starts, ends_at=starts + length, machines=machines, **of
        )
    )


def two() -> World:
    return World().machine("m1", rack="r1", power="p1").machine("m2", rack="r2", power="p1")


def on(one: World, plan: Plan, job: str) -> list[str]:
    return sorted(one.where(plan, job).values())


def why(one: World, job: str, **options: float) -> Why:
    plan = one.plan(explainer=Explainer(), **options)  # type: ignore[arg-type]
    (found,) = plan.unplaced
    return of_job(found, one.jobs[job].job_id)


def test_a_task_starts_before_a_window_only_if_its_time_limit_ends_before_it() -> None:
    one = window(World().machine("m1"), "m1", begin=HOUR)
    one.job("short", cpu=1000, priority=BATCH, max_run_s=HOUR - START_S - 10.0)
    one.job("long", cpu=1000, priority=BATCH, max_run_s=HOUR)
    plan = one.plan()
    assert (on(one, plan, "short"), on(one, plan, "long")) == (["m1"], [])
    assert on(one, one.plan(now=one.time + 60.0), "short") == [], "it would not end any more"


def test_a_time_limit_counts_also_if_the_task_may_start_again() -> None:
    one = window(World().machine("m1"), "m1", begin=HOUR)
    one.job("long", cpu=1000, priority=BATCH, max_run_s=HOUR, ends_within_s=0.0)
    assert on(one, one.plan(), "long") == []


@pytest.mark.parametrize(
    ("of", "closed"), [({"rack": "r1"}, ["m2"] * 2), ({"power_domain": "p1"}, []), ({"rack": "other"}, ["m1", "m2"])]
)
def test_a_window_covers_a_rack_or_a_power_domain(of: dict[str, str], closed: list[str]) -> None:
    one = window(two(), begin=60.0, **of)
    one.job("long", cpu=4000, tasks=2, priority=BATCH, max_run_s=HOUR)
    assert on(one, one.plan(), "long") == closed


def test_a_machine_that_joins_a_rack_belongs_to_its_window() -> None:
    one = window(two(), begin=60.0, rack="r3").job("long", cpu=1000, priority=BATCH, max_run_s=HOUR)
    one.machine("m1", rack="r3").machine("m2", rack="r3")
    assert on(one, one.plan(), "long") == []


def test_a_task_without_a_time_limit_prefers_other_machines() -> None:
    one = window(two(), "m1", begin=HOUR).job("web", cpu=7000, tasks=2)
    plan = one.plan()
    assert on(one, plan, "web") == ["m1", "m2"], "the last resort is the machine of the window"
    one = window(two(), "m1", begin=HOUR).job("filler", cpu=4000).place("filler", 0, on="m1")
    one.job("web", cpu=1000, tasks=3)
    assert on(one, one.plan(), "web") == ["m2"] * 3, "although m1 is packed more tightly"
    far = Policy(maintenance_horizon_s=60.0)
    assert on(one, one.plan(far), "web") != ["m2"] * 3, "beyond the horizon, windows do not count"


def test_after_the_start_of_a_window_nothing_starts_on_its_machines_even_if_no_master_has_drained_them() -> None:
    one = window(World().machine("m1"), "m1", begin=60.0).job("web", cpu=1000)
    planned = one.state.calendar.windows[1]
    assert on(one, one.plan(now=planned.starts_at - 1.0), "web") == ["m1"]
    assert on(one, one.plan(now=planned.starts_at), "web") == []
    assert on(one, one.plan(now=planned.ends_at), "web") == ["m1"], "the window has ended"


def test_beyond_the_horizon_a_long_task_only_avoids_the_machine() -> None:
    one = window(two(), "m1", begin=10 * HOUR)
    one.job("long", cpu=7000, priority=BATCH, tasks=2, max_run_s=12 * HOUR)
    near = Policy(maintenance_horizon_s=HOUR)
    assert on(one, one.plan(near), "long") == ["m1", "m2"]
    assert on(one, one.plan(), "long") == ["m2"], "within the horizon of a day, it does not start there"


def test_a_cancelled_window_and_one_that_ended_close_nothing() -> None:
    for state in ("cancelled", "ended"):
        one = window(World().machine("m1"), "m1", begin=60.0).job("long", cpu=1000, priority=BATCH, max_run_s=HOUR)
        window(one, "m1", begin=60.0, state=state)
        assert on(one, one.plan(), "long") == ["m1"]
        assert one.state.calendar.windows == {}


def test_no_task_preempts_others_on_a_machine_that_is_closed_to_it() -> None:
    one = window(World().machine("m1"), "m1", begin=60.0)
    one.job("low", cpu=8000, priority=0).place("low", 0, on="m1")
    one.job("long", cpu=4000, priority=BATCH, max_run_s=HOUR)
    assert one.plan().assignments == ()


def test_a_gang_does_not_start_before_a_window_that_interrupts_it() -> None:
    one = window(two(), "m1", begin=600.0)
    one.job("gang", cpu=7000, tasks=2, priority=BATCH, gang=True, max_run_s=HOUR)
    assert one.plan().assignments == ()
    short = window(two(), "m1", begin=600.0).job("gang", cpu=7000, tasks=2, priority=BATCH, gang=True, max_run_s=300.0)
    assert on(short, short.plan(), "gang") == ["m1", "m2"]


def test_a_gang_books_no_machine_that_is_in_maintenance_when_it_starts() -> None:
    def booked(one: World) -> list[int]:
        return [machine for booking in one.plan().bookings for machine, _ in booking.on]

    def busy() -> World:
        one = two().machine("m3")
        for name, run_s in (("m1", 600.0), ("m2", 600.0), ("m3", 900.0)):
            one.job(f"on-{name}", cpu=8000, priority=BATCH, max_run_s=run_s).place(f"on-{name}", 0, on=name)
        return one.job("gang", cpu=8000, tasks=2, priority=BATCH, gang=True, max_run_s=300.0)

    one = busy()
    assert booked(one) == [one.id_of("m1"), one.id_of("m2")]
    window(one, "m1", begin=700.0)
    assert booked(one) == [one.id_of("m2"), one.id_of("m3")], "m1 would be in maintenance before the gang ends"
    window(one, "m2", begin=700.0, number=2)
    assert booked(one) == []


def test_the_reason_names_the_window_and_its_end() -> None:
    one = window(World().machine("m1"), "m1", begin=1_000.0)
    one.job("long", cpu=1000, priority=BATCH, max_run_s=2_000.0)
    ends = one.state.calendar.windows[1].ends_at
    found = why(one, "long")
    (reason,) = found.ruled_out
    assert (found.code, reason.code, reason.machines, reason.until) == ("maintenance", "maintenance", 1, ends)
    assert found.expected is not None
    assert (found.expected.basis, found.expected.at) == (Basis.MAINTENANCE, ends)
    longest = math.floor(one.state.calendar.windows[1].starts_at - one.time - START_S - ADVICE_SLACK_S)
    assert found.expected.fills_s == longest
    text = sentence(found)
    assert "1 machine in maintenance, or that would go into maintenance before the task ends (until 1970-01-01" in text
    assert f"together at most {longest} would end before the maintenance" in text


def test_a_machine_that_is_drained_for_a_window_counts_as_maintenance_and_others_as_not_up() -> None:
    one = two().job("web", cpu=1000)
    window(one, "m1", begin=0.0, state="draining")
    one.machine_state("m1", "draining").machine_state("m2", "draining")
    reasons = {reason.code: reason.machines for reason in why(one, "web").ruled_out}
    assert reasons == {ReasonCode.MAINTENANCE: 1, ReasonCode.MACHINE_STATE: 1}
    one.machine_state("m1", "up")
    assert on(one, one.plan(), "web") == ["m1"], "a person has returned it early"


def test_the_advice_about_time_limits_leaves_out_machines_that_are_being_drained() -> None:
    one = World().machine("m1").job("web", cpu=1000)
    window(one, "m1", begin=0.0, state="draining")
    window(one, "m1", begin=10 * HOUR, number=2)
    one.machine_state("m1", "draining")
    found = why(one, "web")
    assert found.expected is not None
    assert found.expected.at == one.state.calendar.windows[1].ends_at
    assert found.expected.fills_s is None
    assert "The job waits until the maintenance has ended." in sentence(found)


def test_a_kept_decision_is_made_again_when_the_next_window_concerns_a_task() -> None:
    one = window(World().machine("m1"), "m1", begin=2 * HOUR)
    one.job("long", cpu=1000, priority=BATCH, max_run_s=HOUR)
    memory, begin = PassCache(), one.time
    assert on(one, one.plan(memory=memory), "long") == ["m1"]
    decision = memory.decision
    assert decision is not None
    starts = one.state.calendar.windows[1].starts_at
    assert decision.until == starts - HOUR - START_S
    assert on(one, one.plan(memory=memory, now=decision.until - 1.0), "long") == ["m1"]
    assert on(one, one.plan(memory=memory, now=decision.until + 1.0), "long") == []
    assert begin == one.time


def test_tasks_that_windows_do_not_tell_apart_share_a_group() -> None:
    one = window(World().machine("m1"), "m1", begin=HOUR)
    for number, run_s in enumerate((60.0, 120.0, 2 * HOUR, 3 * HOUR)):
        one.job(f"j{number}", cpu=1000, priority=BATCH, max_run_s=run_s)
    assert one.plan().stats.classes == 2
    window(one, "m1", begin=HOUR, state="cancelled")
    assert one.plan().stats.classes == 1


def test_a_pass_without_windows_equals_one_with_a_window_of_other_machines() -> None:
    def cell(*, other: bool) -> Plan:
        one = two()
        if other:
            window(one, "m9", begin=60.0)
        else:
            one.send(events.PackagesHeld())
        one.job("web", cpu=3000, tasks=3).job("long", cpu=1000, tasks=3, priority=BATCH, max_run_s=HOUR)
        return dataclasses.replace(one.plan(), stats=Plan(revision=0).stats)

    assert cell(other=True) == cell(other=False)


def test_a_moved_task_and_a_trial_avoid_the_window_too() -> None:
    one = window(two().machine("m3"), "m1", begin=60.0)
    one.job("long", cpu=4000, priority=BATCH, max_run_s=HOUR).place("long", 0, on="m3")
    slot = one.state.machines.slot
    task = one.state.tasks.jobs[one.jobs["long"].job_id].tasks[:1].astype(np.int64)
    relocation = Relocation(one.state, Policy(), now=one.time)
    closed = np.array([slot[one.id_of("m3")]], dtype=np.int64)
    assert relocation.places(task, closed).tolist() == [slot[one.id_of("m2")]]
    group = (TrialGroup(needs(cpu=5000), 3),)
    trial = Trial(one.state, Policy())
    placed = [trial.placed(TrialJob(group, BATCH, run_s=run_s), now=one.time).placed for run_s in (0.0, HOUR, 10.0)]
    assert placed == [2, 1, 2]


def test_the_state_from_rows_has_the_same_windows() -> None:
    one = window(two(), "m1", begin=60.0)
    other = two()
    assert any("window 1" in text for text in one.state.diff(other.state))
    copy = CellState()
    copy.load(((event, time) for event, time in one.journal), revision=one.state.revision)
    assert one.state.diff(copy) == []


def test_only_a_window_of_the_machine_interrupts_a_run() -> None:
    one = window(two(), "m1", begin=100.0, length=50.0)
    planned = one.state.calendar.planned(one.state.machines, one.time)
    assert planned is not None
    starts, slot = planned.starts[0], one.state.machines.slot[one.id_of("m1")]
    cases = ((-20.0, 10.0), (-5.0, 10.0), (60.0, 10.0), (-1.0, 0.0), (1.0, 0.0))
    hits = [bool(crossing(planned, starts + at, run_s)[slot]) for at, run_s in cases]
    assert hits == [False, True, False, False, True]
