"""Tests of restart policies: delays, crash loops, and when failed health checks make a task unhealthy."""

from __future__ import annotations

import math

import pytest

from borglet.messages import EndCause, Exit, Health
from borglet.state import health_watch, local_restarts
from borglet.state.local_restarts import Again, Final
from tests.unit.borglet.builders import check, exited, killed, policy


@pytest.mark.parametrize(
    ("on", "exit_", "again"),
    [
        ("failure", exited(0), False),
        ("failure", exited(1), True),
        ("failure", killed(), True),
        ("failure", killed(EndCause.OUT_OF_MEMORY), True),
        ("failure", killed(EndCause.UNHEALTHY), True),
        ("failure", Exit(EndCause.UNHEALTHY, 0.0, status=0), True),
        ("failure", killed(EndCause.STOPPED), True),
        ("failure", Exit(EndCause.MACHINE_RESTARTED, 0.0), True),
        ("failure", Exit(EndCause.START_FAILED, 0.0), True),
        ("failure", killed(EndCause.TIME_LIMIT), False),
        ("failure", Exit(EndCause.TIME_LIMIT, 0.0, status=0), False),
        ("always", killed(EndCause.TIME_LIMIT), True),
        ("always", exited(0), True),
        ("always", exited(1), True),
        ("never", exited(0), False),
        ("never", exited(1), False),
        ("never", Exit(EndCause.MACHINE_RESTARTED, 0.0), False),
    ],
)
def test_the_policy_decides_which_ends_are_followed_by_a_start(on: str, exit_: Exit, again: bool) -> None:
    assert isinstance(local_restarts.decide(policy(on=on), exit_, (), now=10.0), Again) is again


def test_delays_double_up_to_the_most_and_the_crash_loop_is_reported_with_its_figures() -> None:
    rule = policy(max_failures=5, window_s=300.0, backoff_s=0.5, backoff_max_s=3.0)
    now, failures, delays = 100.0, (), []
    for _ in range(5):
        decision = local_restarts.decide(rule, exited(1), failures, now=now)
        assert isinstance(decision, Again)
        delays.append(decision.at - now)
        now, failures = decision.at, decision.failures
    assert delays == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert local_restarts.decide(rule, exited(1), failures, now=now) == Final(
        crash_loop=True, detail="crash loop: 6 failures within 300 s, more than the 5 allowed"
    )


def test_failures_outside_the_window_are_forgotten() -> None:
    rule = policy(max_failures=2, window_s=60.0)
    assert local_restarts.decide(rule, exited(1), (0.0, 1.0, 2.0), now=100.0) == Again(100.5, (100.0,))


def test_blameless_ends_count_for_nothing() -> None:
    assert local_restarts.decide(policy(), killed(EndCause.STOPPED), (99.0,), now=100.0) == Again(100.0, (99.0,))


def test_failures_within_grace_do_not_count_and_are_asked_about_fast() -> None:
    rule, now = check(grace_s=30.0, failures=2), 1000.0
    watch = health_watch.HealthWatch(since=now, due=now)
    asked = 0
    while now < 1029.0:
        watch = health_watch.answered(watch, rule, ok=False, detail="refused", holds_s=0, now=now)
        assert watch.health is Health.UNKNOWN
        now, asked = watch.due, asked + 1
        if asked == 10:
            assert now <= 1001.1
    assert 20 < asked < 60


def test_after_grace_the_failures_in_a_row_make_the_verdict() -> None:
    rule, watch = check(grace_s=5.0, failures=2, interval_s=3.0), health_watch.HealthWatch(since=0.0, due=0.0)
    watch = health_watch.answered(watch, rule, ok=False, detail="refused", holds_s=0, now=6.0)
    assert (watch.health, watch.due) == (Health.UNKNOWN, 9.0)
    watch = health_watch.answered(watch, rule, ok=False, detail="refused", holds_s=0, now=9.0)
    assert watch.health is Health.UNHEALTHY


def test_a_success_ends_grace_and_one_failure_after_it_is_forgiven() -> None:
    rule, watch = check(grace_s=100.0, failures=2), health_watch.HealthWatch(since=0.0, due=0.0)
    watch = health_watch.answered(watch, rule, ok=True, detail="", holds_s=0, now=1.0)
    assert (watch.health, watch.due) == (Health.HEALTHY, 6.0)
    watch = health_watch.answered(watch, rule, ok=False, detail="", holds_s=0, now=6.0)
    watch = health_watch.answered(watch, rule, ok=True, detail="", holds_s=0, now=11.0)
    watch = health_watch.answered(watch, rule, ok=False, detail="", holds_s=0, now=16.0)
    assert (watch.health, watch.failures) == (Health.HEALTHY, 1)
    watch = health_watch.answered(watch, rule, ok=False, detail="", holds_s=0, now=21.0)
    assert watch.health is Health.UNHEALTHY


def test_an_answer_that_holds_is_not_asked_for_again() -> None:
    watch = health_watch.answered(
        health_watch.HealthWatch(since=0.0, due=0.0), check(), ok=True, detail="", holds_s=math.inf, now=1.0
    )
    assert watch.due == math.inf
