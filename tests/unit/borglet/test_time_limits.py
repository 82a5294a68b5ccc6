"""Tests of time limits: the Borglet stops a run that lasts for `max_run_s`, also if another Borglet started it."""

from __future__ import annotations

import math

from borglet.messages import EndCause, Phase
from borglet.runtimes.base.runtime import Presence
from borglet.state.instructions import Resize, Terminate
from tests.unit.borglet.builders import Machine, desired, killed, policy, run_task, starts, stop_task
from tests.unit.borglet.builders import key as task_key

KEY = task_key()
LIMIT = Terminate(KEY, 10.0, EndCause.TIME_LIMIT, "the task ran for 60 s, which is its max_run_s")


def running(**changes: object) -> Machine:
    """Return a machine with a task that is up and may run for 60 s."""
    machine = Machine()
    machine.wants(desired(1, [run_task(**{"max_run_s": 60.0, **changes})]))
    machine.up(KEY)
    return machine


def test_a_task_is_stopped_with_its_notice_when_it_has_run_for_its_limit() -> None:
    machine = running()
    assert machine.state.next_wake() == machine.now + 60.0
    assert machine.after(59.9) == []
    version = machine.state.version
    assert machine.after(0.1) == [LIMIT]
    assert (machine.phase(KEY), machine.state.version > version) == (Phase.STOPPING, True)
    assert (machine.after(60), machine.state.next_wake()) == ([], math.inf)


def test_names_stop_resolving_to_the_task_before_sigterm() -> None:
    machine = running(leave_s=6.0)
    assert machine.after(60) == []
    assert machine.phase(KEY) is Phase.STOPPING
    assert machine.after(6) == [LIMIT]


def test_a_task_at_its_limit_has_failed_and_does_not_run_again() -> None:
    machine = running()
    machine.after(60)
    assert machine.ends(KEY, killed(EndCause.TIME_LIMIT)) == []
    assert machine.phase(KEY) is Phase.ENDED
    assert machine.after(3600) == []


def test_a_task_that_always_restarts_gets_its_whole_time_again() -> None:
    machine = running(restart=policy(on="always", backoff_s=5.0))
    machine.after(60)
    machine.ends(KEY, killed(EndCause.TIME_LIMIT))
    assert starts(machine.after(5)) == [(KEY, 2)]
    machine.up(KEY, 2)
    assert machine.after(59) == []
    assert machine.after(1) == [LIMIT]


def test_the_next_borglet_counts_from_the_start_of_the_task() -> None:
    task = run_task(max_run_s=60.0)
    machine = running()
    machine.after(50)
    next_one = machine.restarted(Presence(task, 1, 1000.0, None))
    assert next_one.first == []
    assert next_one.after(9) == []
    assert next_one.after(1) == [LIMIT]


def test_a_limit_that_passed_without_a_borglet_is_enforced_at_once() -> None:
    machine = running()
    machine.now += 70
    assert machine.restarted(Presence(run_task(max_run_s=60.0), 1, 1000.0, None)).first == [LIMIT]


def test_a_changed_limit_counts_from_the_same_start() -> None:
    machine = running()
    machine.after(30)
    longer = run_task(max_run_s=100.0)
    assert machine.wants(desired(2, [longer])) == [Resize(longer)]
    assert machine.after(69) == []
    shorter = run_task(max_run_s=20.0)
    assert [type(found) for found in machine.wants(desired(3, [shorter]))] == [Resize, Terminate]


def test_a_task_that_the_master_does_not_list_is_not_stopped() -> None:
    machine = running()
    machine.wants(desired(2, []))
    assert machine.state.next_wake() == math.inf
    assert machine.after(3600) == []


def test_a_stop_of_the_master_during_the_notice_can_only_make_it_shorter() -> None:
    machine = running()
    machine.after(60)
    assert machine.wants(desired(2, [], [stop_task()])) == []
    assert machine.wants(desired(3, [], [stop_task(notice_s=1.0)])) == [Terminate(KEY, 1.0, EndCause.STOPPED, "kill")]
