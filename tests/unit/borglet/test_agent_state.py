"""Tests of the Borglet's decisions, event by event, without I/O."""

from __future__ import annotations

import msgspec
import pytest

from borglet.messages import EndCause, Exit, Health, Phase, Removal, RunTask, opened
from borglet.runtimes.base.runtime import Presence
from borglet.state.agent_state import AgentState
from borglet.state.events import (
    Adopted,
    MemoryPressure,
    Polled,
    RemovalsWanted,
    SaveFailed,
    Started,
    StartRefused,
    StopRefused,
)
from borglet.state.instructions import Probe, Remembered, Remove, Resize, Save, Terminate
from tests.unit.borglet.builders import (
    Machine,
    check,
    desired,
    exited,
    key,
    killed,
    policy,
    run_task,
    starts,
    stop_task,
)


def running(task: RunTask, run: int = 1) -> Presence:
    return Presence(task, run, 900.0, None)


def ended(task: RunTask, exit_: Exit, run: int = 1) -> Presence:
    return Presence(task, run, 900.0, exit_)


def serving(*tasks: RunTask, revision: int = 1) -> Machine:
    machine = Machine()
    machine.wants(desired(revision, list(tasks)))
    for task in tasks:
        machine.up(task.key)
    return machine


# -- starting


def test_a_desired_task_is_saved_then_started_then_up() -> None:
    state = AgentState()
    state.handle(Adopted(Remembered(), ()), now=1.0)
    wanted = desired(1, [run_task()])
    assert state.handle(Polled(1, 1, wanted), now=1.0) == [Save(Remembered(wanted))]
    assert opened(state.wire_report(session=1, sequence=1)).generation == ""
    machine = Machine()
    assert starts(machine.wants(wanted)) == [(key(), 1)]
    assert machine.phase(key()) is Phase.STARTING
    machine.up(key())
    assert (machine.phase(key()), machine.report().generation) == (Phase.UP, wanted.generation)


def test_the_same_desired_state_again_starts_nothing() -> None:
    machine = serving(run_task())
    assert machine.wants(desired(1, [run_task()])) == []
    assert machine.wants(desired(2, [run_task()])) == []


def test_what_could_not_be_saved_is_refused_and_not_acted_upon() -> None:
    state = AgentState()
    state.handle(Adopted(Remembered(), ()), now=1.0)
    wanted = desired(1, [run_task()])
    state.handle(Polled(1, 1, wanted), now=1.0)
    assert state.handle(SaveFailed(wanted.generation, "No space left"), now=1.0) == []
    report = opened(state.wire_report(session=1, sequence=1))
    assert report.refused is not None
    assert (report.refused.code, report.generation, report.tasks) == ("not-saved", "", [])
    assert "No space left" in report.refused.detail
    state.validate()


def test_a_newer_incarnation_waits_until_the_older_is_gone() -> None:
    machine = serving(run_task())
    wanted = desired(2, [run_task(incarnation=2)], [stop_task()])
    found = machine.wants(wanted)
    assert (starts(found), [type(item) for item in found]) == ([], [Terminate])
    assert machine.phase(key(incarnation=2)) is Phase.ASSIGNED
    assert starts(machine.ends(key(), killed(EndCause.STOPPED))) == [(key(incarnation=2), 1)]


def test_of_two_wanted_incarnations_only_the_newest_starts() -> None:
    machine = Machine()
    assert starts(machine.wants(desired(1, [run_task(), run_task(incarnation=2)]))) == [(key(incarnation=2), 1)]
    assert machine.up(key(incarnation=2)) == []
    assert machine.phase(key()) is Phase.ASSIGNED


def test_a_preemptor_waits_for_its_victims() -> None:
    machine = serving(run_task(1), run_task(2))
    preemptor = run_task(0, waits_for=[key(1), key(2)])
    assert starts(machine.wants(desired(2, [preemptor], [stop_task(1), stop_task(2)]))) == []
    assert starts(machine.ends(key(1), killed(EndCause.STOPPED))) == []
    assert starts(machine.ends(key(2), killed(EndCause.STOPPED))) == [(key(0), 1)]


# -- fencing


@pytest.mark.parametrize(
    ("late", "field"),
    [
        (desired(9, ordinal=2), "desired.revision"),
        (desired(10, ordinal=2, epoch=2), "desired.epoch"),
        (desired(99, ordinal=1), "desired.history_ordinal"),
        (desired(99, ordinal=2, history="h2"), "desired.history_id"),
    ],
)
def test_an_older_or_foreign_desired_state_is_refused_with_its_field(late: object, field: str) -> None:
    machine = Machine()
    machine.wants(desired(10, [run_task()], ordinal=2, epoch=3))
    machine.up(key())
    assert machine.wants(late) == []  # type: ignore[arg-type]
    report = machine.report()
    assert report.refused is not None
    assert (report.refused.field, report.generation) == (field, "h1-10-3")
    assert machine.report().refused is None, "a rejection is reported once"
    assert machine.phase(key()) is Phase.UP


def test_the_fence_survives_the_borglet() -> None:
    machine = Machine()
    machine.wants(desired(10))
    successor = machine.restarted()
    successor.wants(desired(9, [run_task()]))
    refused = successor.report().refused
    assert refused is not None
    assert refused.code == "older-desired-state"


def test_a_changed_history_is_adopted_and_what_it_does_not_know_is_quarantined() -> None:
    machine = serving(run_task(0), run_task(1))
    assert machine.wants(desired(1, [run_task(0)], history="h2", ordinal=2)) == []
    assert (machine.of(key(0)).expected, machine.of(key(0)).quarantined) == (True, False)
    found = machine.of(key(1))
    assert (found.phase, found.expected, found.quarantined) == (Phase.UP, False, True)
    successor = machine.restarted(running(run_task(0)), running(run_task(1)))
    assert successor.of(key(1)).quarantined
    successor.wants(desired(2, [run_task(0)], [stop_task(1)], history="h2", ordinal=2))
    assert not successor.of(key(1)).quarantined


def test_a_quarantined_end_stays_until_someone_lists_it() -> None:
    machine = serving(run_task())
    machine.wants(desired(1, history="h2", ordinal=2))
    machine.ends(key(), exited(3))
    for revision in (2, 3):
        machine.report()
        assert machine.wants(desired(revision, history="h2", ordinal=2)) == []
    machine.wants(desired(4, [], [stop_task()], history="h2", ordinal=2))
    machine.report()
    assert machine.wants(desired(5, history="h2", ordinal=2)) == [Remove(key())]


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        (desired(2, [run_task(command=["other"])]), "desired.run[0].command"),
        (desired(2, [run_task(env={"A": "b"})]), "desired.run[0].env"),
        (desired(2, [run_task(ports={"http": 1})]), "desired.run[0].ports"),
        (desired(2, [run_task(1), run_task(1)]), "desired.run[1].key"),
        (desired(2, [run_task()], [stop_task()]), "desired.stop[0].key"),
        (desired(2, [run_task(1, command=[])]), "desired.run[0].command"),
    ],
)
def test_a_contradiction_is_refused_whole(wanted: object, field: str) -> None:
    machine = serving(run_task())
    assert machine.wants(wanted) == []  # type: ignore[arg-type]
    report = machine.report()
    assert report.refused is not None
    assert (report.refused.field, report.revision, len(report.tasks)) == (field, 1, 1)


# -- changing in place


def test_limits_and_priority_change_without_a_restart() -> None:
    machine = serving(run_task())
    bigger = run_task(limit={"cpu": 200, "ram": 2**21}, priority=150, spec_version=2)
    assert machine.wants(desired(2, [bigger])) == [Resize(bigger)]
    assert (machine.of(key()).phase, machine.of(key()).spec_version) == (Phase.UP, 2)


def test_a_change_during_the_start_is_applied_after_it() -> None:
    machine = Machine()
    machine.wants(desired(1, [run_task()]))
    bigger = run_task(priority=150)
    assert machine.wants(desired(2, [bigger])) == []
    assert machine.up(key()) == [Resize(bigger)]


def test_what_a_task_waited_for_is_not_a_change() -> None:
    machine = serving(run_task(waits_for=[key(5)]))
    assert machine.wants(desired(2, [run_task()])) == []


def test_a_changed_check_asks_again() -> None:
    machine = serving(run_task())
    found = machine.wants(desired(2, [run_task(health=check())]))
    assert [type(item) for item in found] == [Resize, Probe]


# -- ends


def test_a_failed_task_is_started_again_after_its_delay() -> None:
    machine = serving(run_task())
    assert machine.ends(key(), killed()) == []
    found = machine.of(key())
    assert (found.phase, found.exit) == (Phase.BACKOFF, killed())
    assert machine.state.next_wake() == machine.now + 0.5
    assert machine.after(0.4) == []
    assert starts(machine.after(0.1)) == [(key(), 2)]
    machine.up(key(), 2)
    found = machine.of(key())
    assert (found.phase, found.restarts, found.exit) == (Phase.UP, 1, killed())


def test_a_start_that_fails_is_a_failure_with_its_reason() -> None:
    machine = Machine()
    machine.wants(desired(1, [run_task()]))
    machine.take(StartRefused(key(), 1, "command: no such file"))
    found = machine.of(key())
    assert found.exit is not None
    assert (found.phase, found.exit.cause, found.exit.detail) == (
        Phase.BACKOFF,
        EndCause.START_FAILED,
        "command: no such file",
    )


def test_success_ends_a_task_and_its_end_is_reported_until_acknowledged() -> None:
    machine = serving(run_task())
    machine.ends(key(), exited(0))
    assert (machine.of(key()).phase, machine.of(key()).exit) == (Phase.ENDED, exited(0))
    assert machine.wants() == []
    assert machine.wants(desired(2, [run_task()])) == [], "an ended incarnation never starts again"
    assert machine.wants(desired(3)) == [Remove(key())]
    assert machine.report().tasks == []


def test_an_unreported_end_survives_a_desired_state_without_it() -> None:
    machine = serving(run_task())
    machine.ends(key(), exited(0))
    assert machine.wants(desired(2)) == []
    found = machine.of(key())
    assert (found.phase, found.expected) == (Phase.ENDED, False)
    assert machine.wants() == [Remove(key())], "the shard asked again after the report that told of it"


def test_an_end_sent_on_a_lost_connection_is_reported_again() -> None:
    machine = serving(run_task())
    machine.ends(key(), exited(0))
    machine.report()
    machine.session, machine.sequence = 2, 0
    assert machine.wants(desired(2)) == []
    assert machine.of(key()).exit == exited(0)
    assert machine.wants() == [Remove(key())]


def test_an_end_that_is_listed_again_in_the_same_breath_is_kept_and_does_not_start_again() -> None:
    machine = serving(run_task())
    machine.ends(key(), exited(0))
    machine.wants(desired(2))
    machine.report()
    assert machine.wants(desired(3, [run_task()])) == []
    assert machine.of(key()).exit == exited(0)


def test_a_desired_state_from_before_the_end_forgets_nothing() -> None:
    machine = serving(run_task())
    machine.wants(desired(2))
    machine.ends(key(), exited(0))
    for _ in range(3):
        assert machine.of(key()).phase is Phase.ENDED
        assert machine.wants() == []
    assert machine.wants(desired(3)) == [Remove(key())]


def test_a_crash_loop_ends_the_task_for_good_and_is_remembered() -> None:
    machine = serving(run_task(restart=policy(max_failures=1)))
    machine.ends(key(), exited(1))
    assert starts(machine.after(1)) == [(key(), 2)]
    machine.up(key(), 2)
    machine.ends(key(), exited(1), 2)
    found = machine.of(key())
    assert found.exit is not None
    assert found.phase is Phase.ENDED
    assert "crash loop: 2 failures" in found.exit.detail
    task = run_task(restart=policy(max_failures=1))
    for left in ((ended(task, exited(1), 2),), ()):
        successor = machine.restarted(*left)
        assert successor.first == []
        assert (successor.phase(key()), successor.of(key()).exit) == (Phase.ENDED, found.exit)


def test_late_and_repeated_events_change_nothing() -> None:
    machine = serving(run_task())
    machine.ends(key(), exited(1))
    machine.ends(key(), exited(1))
    machine.up(key())
    assert machine.phase(key()) is Phase.BACKOFF
    machine.after(1)
    assert machine.ends(key(), exited(1), run=1) == []
    assert machine.phase(key()) is Phase.STARTING
    assert machine.take(Started(key(9), 1)) == []


# -- stopping


@pytest.mark.parametrize(("own", "asked", "given"), [(10.0, None, 10.0), (10.0, 2.0, 2.0), (1.0, 5.0, 1.0)])
def test_the_shorter_notice_counts(own: float, asked: float | None, given: float) -> None:
    machine = serving(run_task(notice_s=own))
    assert machine.wants(desired(2, [], [stop_task(notice_s=asked)])) == [
        Terminate(key(), given, EndCause.STOPPED, "kill")
    ]


def test_a_notice_can_be_shortened_never_lengthened() -> None:
    machine = serving(run_task())
    machine.wants(desired(2, [], [stop_task(notice_s=5.0)]))
    assert machine.wants(desired(3, [], [stop_task(notice_s=8.0)])) == []
    assert machine.wants(desired(4, [], [stop_task(notice_s=1.0)])) == [Terminate(key(), 1.0, EndCause.STOPPED, "kill")]


def test_a_stopped_task_stays_stopped() -> None:
    machine = serving(run_task())
    machine.wants(desired(2, [], [stop_task()]))
    assert machine.phase(key()) is Phase.STOPPING
    machine.ends(key(), killed(EndCause.STOPPED))
    assert (machine.phase(key()), machine.after(60)) == (Phase.ENDED, [])


def test_a_stop_during_the_start_is_reported_again_once_it_runs() -> None:
    machine = Machine()
    machine.wants(desired(1, [run_task()]))
    stop = Terminate(key(), 10.0, EndCause.STOPPED, "kill")
    assert machine.wants(desired(2, [], [stop_task()])) == [stop]
    assert machine.up(key()) == [stop]


def test_a_stop_the_runtime_could_not_deliver_is_tried_again() -> None:
    machine = serving(run_task())
    machine.wants(desired(2, [], [stop_task()]))
    assert machine.take(StopRefused(key(), "no descriptor left")) == []
    assert machine.after(1.0) == [Terminate(key(), 10.0, EndCause.STOPPED, "kill")]


def test_what_never_started_is_stopped_without_the_runtime() -> None:
    machine = serving(run_task(1))
    machine.wants(desired(2, [run_task(0, waits_for=[key(1)])], []))
    assert machine.wants(desired(3, [], [stop_task(0)])) == []
    found = machine.of(key(0))
    assert found.exit is not None
    assert (found.phase, found.exit.cause, found.exit.status) == (Phase.ENDED, EndCause.STOPPED, None)


def test_a_task_in_neither_list_is_left_alone_and_told() -> None:
    machine = serving(run_task())
    assert machine.wants(desired(2)) == []
    assert (machine.of(key()).phase, machine.of(key()).expected) == (Phase.UP, False)
    machine.ends(key(), exited(1))
    assert (machine.phase(key()), machine.after(60)) == (Phase.ENDED, [])


def test_what_was_stopped_by_someone_else_and_is_wanted_starts_again_without_blame() -> None:
    machine = serving(run_task(restart=policy(max_failures=0)))
    assert starts(machine.ends(key(), killed(EndCause.STOPPED))) == [(key(), 2)]


# -- health


def test_an_unhealthy_task_is_stopped_with_notice_and_started_again() -> None:
    task = run_task(health=check(failures=2, grace_s=0, interval_s=1), notice_s=3.0)
    machine = Machine()
    machine.wants(desired(1, [task]))
    assert machine.up(key()) == [Probe(key(), 1, task.health, 20000)]  # type: ignore[arg-type]
    assert machine.state.probing
    machine.probed(key(), ok=True)
    assert (machine.of(key()).health, machine.state.probing) == (Health.HEALTHY, False)
    assert len(machine.after(1)) == 1
    assert machine.probed(key(), ok=False) == []
    machine.after(1)
    assert machine.probed(key(), ok=False) == [
        Terminate(key(), 3.0, EndCause.UNHEALTHY, "2 health checks in a row failed; the last error was: refused")
    ]
    assert machine.of(key()).health is Health.UNHEALTHY
    machine.ends(key(), killed(EndCause.UNHEALTHY))
    assert machine.phase(key()) is Phase.BACKOFF
    assert starts(machine.after(1)) == [(key(), 2)]
    machine.up(key(), 2)
    assert machine.of(key()).health is Health.UNKNOWN
    assert machine.probed(key(), ok=True, run=1) == [], "an answer of the former run"
    assert machine.of(key()).health is Health.UNKNOWN


def test_an_unhealthy_task_in_neither_list_is_left_alone() -> None:
    machine = serving(run_task(health=check(failures=1, grace_s=0)))
    machine.wants(desired(2))
    assert machine.probed(key(), ok=False) == []
    assert machine.of(key()).health is Health.UNHEALTHY


def test_a_check_of_an_unknown_port_fails_and_says_so() -> None:
    machine = Machine()
    machine.wants(desired(1, [run_task(health=check(port="grpc", failures=1, grace_s=0))]))
    (stop,) = machine.up(key())
    assert isinstance(stop, Terminate)
    assert "no port 'grpc'; use one of its ports: http" in stop.detail


# -- adopting


def test_a_restarted_borglet_adopts_without_a_word_of_the_master() -> None:
    tasks = [run_task(index) for index in range(5)]
    machine = Machine()
    machine.wants(desired(7, tasks, [stop_task(9)]))
    successor = machine.restarted(
        running(tasks[0], run=3),
        ended(tasks[1], exited(0)),
        ended(tasks[2], killed()),
        ended(tasks[3], Exit(EndCause.MACHINE_RESTARTED, 950.0)),
        running(run_task(8)),
        running(run_task(9)),
    )
    assert starts(successor.first) == [(key(4), 1), (key(3), 2)]
    assert Terminate(key(9), 10.0, EndCause.STOPPED, "kill") in successor.first
    report = successor.report()
    assert report.revision == 7
    assert {task.key.index: (task.phase, task.expected) for task in report.tasks} == {
        0: (Phase.UP, True),
        1: (Phase.ENDED, True),
        2: (Phase.BACKOFF, True),
        3: (Phase.STARTING, True),
        4: (Phase.STARTING, True),
        8: (Phase.UP, False),
        9: (Phase.STOPPING, True),
    }
    assert successor.of(key(0)).restarts == 2
    assert starts(successor.after(1)) == [(key(2), 2)]


def test_a_change_that_the_dead_borglet_did_not_apply_is_applied() -> None:
    machine = serving(run_task())
    bigger = run_task(priority=150)
    machine.wants(desired(2, [bigger]))
    assert machine.restarted(running(run_task())).first == [Resize(bigger)]


def test_an_adopted_healthy_task_is_asked_at_once() -> None:
    task = run_task(health=check())
    machine = serving(task)
    successor = machine.restarted(running(task))
    assert [type(item) for item in successor.first] == [Probe]
    assert successor.state.probing


def test_reports_read_back() -> None:
    machine = serving(run_task())
    report = machine.report()
    assert msgspec.json.decode(msgspec.json.encode(report), type=type(report)) == report


def test_a_task_that_the_machine_can_not_hold_ends_at_once_and_for_good() -> None:
    machine = Machine()
    machine.wants(desired(1, [run_task()]))
    machine.up(key())
    (stop,) = machine.take(MemoryPressure(key(), "the machine ran out of memory"))
    assert stop == Terminate(key(), 0.0, EndCause.MACHINE_SHORT, "the machine ran out of memory")
    assert machine.take(MemoryPressure(key(), "again")) == []
    assert starts(machine.ends(key(), killed(EndCause.MACHINE_SHORT))) == []
    assert starts(machine.after(1000.0)) == []
    report = machine.of(key())
    assert report.phase is Phase.ENDED
    assert report.exit is not None
    assert report.exit.cause is EndCause.MACHINE_SHORT
    assert machine.take(MemoryPressure(key(5), "unknown")) == []


def test_a_task_in_its_notice_loses_the_rest_of_it_when_the_machine_is_short() -> None:
    machine = Machine()
    machine.wants(desired(1, [run_task(notice_s=600.0)]))
    machine.up(key())
    machine.wants(desired(2, stop=[stop_task()]))
    (stop,) = machine.take(MemoryPressure(key(), "short"))
    assert isinstance(stop, Terminate)
    assert stop.notice_s == 0.0


def test_removals_are_in_every_report_until_they_are_wanted_no_more() -> None:
    machine = Machine()
    machine.wants(desired(1, [run_task()]))
    machine.up(key())
    before = machine.state.version
    wanted = Removal(key(), "cpu-starved", "figures")
    machine.take(RemovalsWanted((wanted, Removal(key(9), "cpu-starved", "long gone"))))
    assert machine.state.version > before
    assert machine.report().removals == machine.report().removals == [wanted]
    machine.take(RemovalsWanted(()))
    assert machine.report().removals == []
