"""Tests of stopping a task: DNS drops its address first, and SIGTERM follows once clients have forgotten it."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from borglet.messages import EndCause, Exit, Health, Phase, RunTask, StopTask
from borglet.runtimes.base.runtime import Presence
from borglet.state.events import MemoryPressure, Started, StopRefused
from borglet.state.instructions import HoldAllocs, Instruction, Probe, Resize, Terminate
from scheduling.core.vocabulary.states import EvictionCause
from tests.examples import examples
from tests.unit.borglet import messages_1
from tests.unit.borglet.builders import Machine, check, desired, exited, key, killed, run_task, starts, stop_task

KILL = Terminate(key(), 10.0, EndCause.STOPPED, "kill")


def serving(**changes: object) -> Machine:
    """Return a machine with a running task. A stop waits 6 s for DNS before SIGTERM, and 10 s before SIGKILL."""
    machine = Machine()
    machine.wants(desired(1, [run_task(**{"leave_s": 6.0, **changes})]))
    machine.up(key())
    return machine


def test_sigterm_comes_when_clients_have_forgotten_the_task() -> None:
    machine = serving()
    version = machine.state.version
    assert machine.wants(desired(2, [], [stop_task()])) == []
    assert (machine.phase(key()), machine.state.version > version) == (Phase.STOPPING, True)
    assert machine.state.next_wake() == machine.now + 6.0
    assert machine.after(5.9) == []
    assert machine.wants() == machine.wants(desired(3, [], [stop_task()])) == []
    machine.now += 0.1
    assert machine.after(0.0) == [KILL]
    assert machine.state.next_wake() == math.inf
    assert machine.after(60) == []


def test_a_stop_that_is_still_listed_changes_nothing() -> None:
    machine = serving()
    machine.now = 1_780_000_000.1  # at this time, sums of seconds are not exact
    machine.wants(desired(2, [], [stop_task(notice_s=14.7)]))
    version = machine.state.version
    for _ in range(5):
        machine.wants()
        machine.after(0.3)
    assert machine.state.version == version


@pytest.mark.parametrize("cause", ["machine-failure", "quarantine", "superseded", EvictionCause.OUT_OF_RESOURCES.value])
def test_nobody_waits_for_what_nobody_asks_for_or_a_short_machine_is_to_lose(cause: str) -> None:
    machine = serving()
    (told,) = machine.wants(desired(2, [], [stop_task(cause=cause)]))
    assert told == Terminate(key(), 10.0, EndCause.STOPPED, cause)
    leaving = serving()
    assert leaving.wants(desired(2, [], [stop_task()])) == []
    assert leaving.wants(desired(3, [], [stop_task(cause=cause)])) == [told]


def test_what_was_not_up_does_not_leave() -> None:
    starting = Machine()
    starting.wants(desired(1, [run_task(leave_s=6.0)]))
    assert starting.wants(desired(2, [], [stop_task()])) == [KILL]
    assert starting.up(key()) == [KILL]

    sick = serving(health=check(failures=5))
    assert sick.wants(desired(2, [], [stop_task()])) == [KILL]
    well = serving(health=check(failures=5))
    well.probed(key(), ok=True)
    assert well.wants(desired(2, [], [stop_task()])) == []

    again = serving()
    again.ends(key(), exited(1))
    again.after(1.0)
    assert again.phase(key()) is Phase.STARTING
    assert again.wants(desired(2, [], [stop_task()])) == [KILL]


def test_a_task_that_lost_the_health_that_it_had_may_be_asked_for_still() -> None:
    machine = serving(health=check(failures=9, grace_s=0))
    machine.probed(key(), ok=True)
    machine.after(5)
    machine.probed(key(), ok=False)
    assert machine.of(key()).health is Health.HEALTHY
    unchecked = run_task(leave_s=6.0)
    machine.wants(desired(2, [unchecked]))
    assert machine.wants(desired(3, [], [stop_task()])) == []


def test_a_check_that_is_dropped_makes_a_task_one_that_serves() -> None:
    machine = serving(health=check())
    machine.wants(desired(2, [run_task(leave_s=6.0)]))
    assert machine.wants(desired(3, [], [stop_task()])) == []


def test_the_unhealthy_and_the_squeezed_are_reported_at_once() -> None:
    sick = serving(health=check(failures=1, grace_s=0))
    sick.probed(key(), ok=True)
    sick.after(5)
    (told,) = sick.probed(key(), ok=False)
    assert isinstance(told, Terminate)
    assert (told.cause, told.notice_s) == (EndCause.UNHEALTHY, 10.0)
    assert sick.wants(desired(2, [], [stop_task()])) == []  # SIGTERM was sent already

    for notice_s in (10.0, 0.0):
        machine = serving(notice_s=notice_s)
        machine.wants(desired(2, [], [stop_task()]))
        assert machine.take(MemoryPressure(key(), "short")) == [Terminate(key(), 0.0, EndCause.MACHINE_SHORT, "short")]
        assert machine.after(60) == []


@pytest.mark.parametrize(
    ("bound", "leaves", "notice"),
    [
        (None, 6.0, 10.0),
        (30.0, 6.0, 10.0),
        (16.0, 6.0, 10.0),
        (12.0, 2.0, 10.0),
        (10.0, 0.0, 10.0),
        (3.0, 0.0, 3.0),
        (0.0, 0.0, 0.0),
    ],
)
def test_the_notice_comes_first_and_leaving_has_what_is_left(bound: float | None, leaves: float, notice: float) -> None:
    machine = serving()
    told = machine.wants(desired(2, [], [stop_task(notice_s=bound)]))
    assert bool(told) == (leaves == 0.0)
    if leaves:
        machine.after(leaves - 0.01)
        assert machine.phase(key()) is Phase.STOPPING
        told = machine.after(0.01 + 1e-9)
    assert told == [Terminate(key(), notice, EndCause.STOPPED, "kill")]


def test_a_later_stop_makes_it_shorter_never_longer() -> None:
    machine = serving()
    machine.wants(desired(2, [], [stop_task(notice_s=14.0)]))
    machine.after(1)
    assert machine.wants(desired(3, [], [stop_task()])) == []
    assert machine.state.next_wake() == machine.now + 3.0
    assert machine.wants(desired(4, [], [stop_task(notice_s=11.0)])) == []
    assert machine.state.next_wake() == machine.now + 1.0
    assert machine.wants(desired(5, [], [stop_task(notice_s=2.0)])) == [Terminate(key(), 2.0, EndCause.STOPPED, "kill")]


def test_a_task_that_ends_while_it_leaves_has_ended() -> None:
    machine = serving()
    machine.wants(desired(2, [], [stop_task()]))
    machine.after(1)
    assert machine.ends(key(), exited(0, machine.now)) == []
    found = machine.of(key())
    assert (found.phase, found.exit) == (Phase.ENDED, Exit(EndCause.EXITED, machine.now, status=0, notice="full"))
    assert machine.after(60) == []


def test_the_next_incarnation_and_who_waits_for_room_start_when_it_is_gone() -> None:
    machine = serving()
    preemptor = run_task(1, waits_for=[key()])
    machine.wants(desired(2, [run_task(incarnation=2, leave_s=6.0), preemptor], [stop_task()]))
    assert starts(machine.after(6)) == []
    assert starts(machine.ends(key(), killed(EndCause.STOPPED))) == [(key(1), 1), (key(0, 2), 1)]


def test_late_news_do_not_cut_it_short() -> None:
    machine = serving()
    machine.wants(desired(2, [], [stop_task()]))
    assert machine.take(Started(key(), 1)) == machine.take(StopRefused(key(), "late")) == []
    assert machine.state.next_wake() == machine.now + 6.0
    assert machine.after(6) == [KILL]
    machine.take(StopRefused(key(), "no descriptor left"))
    assert machine.after(1) == [KILL]


def test_a_successor_lets_it_leave_once_more_and_tells_so_from_its_first_report() -> None:
    machine = serving()
    machine.wants(desired(2, [], [stop_task()]))
    machine.after(5)
    successor = machine.restarted(Presence(run_task(leave_s=6.0), 1, 1000.0, None))
    assert (successor.first, successor.phase(key())) == ([], Phase.STOPPING)
    assert successor.after(6) == [KILL]


def test_a_change_of_the_time_to_leave_is_kept_with_the_task() -> None:
    machine = serving()
    longer = run_task(leave_s=60.0)
    assert machine.wants(desired(2, [longer])) == [Resize(longer)]
    machine.wants(desired(3, [], [stop_task()]))
    assert machine.state.next_wake() == machine.now + 60.0


def test_older_borglets_and_shards_know_nothing_of_leaving() -> None:
    older = msgspec.json.decode(msgspec.json.encode(run_task(leave_s=6.0)), type=messages_1.RunTask)
    assert (older.notice_s, hasattr(older, "leave_s")) == (10.0, False)
    assert msgspec.json.decode(msgspec.json.encode(older), type=RunTask) == run_task(leave_s=0.0)


def termination(found: list[Instruction]) -> Terminate | None:
    told = [item for item in found if not isinstance(item, Probe | Resize | HoldAllocs)]
    assert len(told) <= 1
    return told[0] if told else None  # type: ignore[return-value]


STOPS = st.builds(
    StopTask,
    st.just(key()),
    st.sampled_from(["kill", "update", "preemption", "superseded"]),
    st.one_of(st.none(), st.integers(0, 40).map(float)),
)


@settings(max_examples=examples(300), deadline=None)
@given(
    task=st.builds(
        lambda notice_s, leave_s: run_task(notice_s=float(notice_s), leave_s=float(leave_s)),
        st.integers(0, 20),
        st.integers(0, 20),
    ),
    up=st.booleans(),
    stops=st.lists(st.tuples(st.integers(0, 12), STOPS), min_size=1, max_size=5),
)
def test_no_stop_is_reported_too_early_or_too_late(task: RunTask, up: bool, stops: list[tuple[int, StopTask]]) -> None:
    """Stop a task with any sequence of stops. SIGTERM must be sent exactly when due, and SIGKILL within the bound."""
    machine = Machine()
    machine.wants(desired(1, [task]))
    if up:
        machine.up(key())
    due, kill_by, told_at = math.inf, math.inf, math.inf
    killed_at = math.inf
    for number, (wait_s, stop) in enumerate(stops):
        # The notice has priority. The time to leave DNS is what remains of the bound.
        room_s = math.inf if stop.notice_s is None else max(0.0, stop.notice_s - task.notice_s)
        may_wait = up and stop.cause != "superseded"
        due = min(due, machine.now + (min(task.leave_s, room_s) if may_wait else 0.0))
        if stop.notice_s is not None:
            kill_by = min(kill_by, machine.now + stop.notice_s)
        found = termination(machine.wants(desired(number + 2, [], [stop])))
        for step in range(wait_s + 1):
            if found is not None:
                assert machine.now == due or told_at < math.inf, "told early, or late"
                told_at = min(told_at, machine.now)
                killed_at = min(killed_at, machine.now + found.notice_s)
            assert (told_at < math.inf) == (machine.now >= due)
            found = termination(machine.after(1.0)) if step < wait_s else None
    while told_at == math.inf:
        if (found := termination(machine.after(1.0))) is not None:
            assert machine.now == due
            told_at, killed_at = machine.now, machine.now + found.notice_s
        assert machine.now < due + 1
    assert killed_at <= kill_by, "killed later than the bound"
    shortest_s = min(task.notice_s, *(stop.notice_s for _, stop in stops if stop.notice_s is not None), math.inf)
    assert killed_at >= told_at + shortest_s or killed_at == kill_by, "killed before its notice was over"
