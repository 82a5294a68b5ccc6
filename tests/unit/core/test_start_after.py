"""Tests of jobs that start after a time: no pass places their tasks before it, and the next pass at that time does."""

from __future__ import annotations

import math

from scheduling.core.placing.pass_cache import PassCache
from tests.builders import World


def world() -> World:
    return World().machine("m1", cpu=1000).job("later", start_after=100.0, priority=300).job("now", priority=200)


def test_a_task_that_waits_for_its_time_leaves_the_machine_to_others() -> None:
    plan = world().plan(now=99.9)
    assert (plan.stats.pending, [why.tasks for why in plan.unplaced]) == (1, [])
    assert world().where(plan, "now") == {0: "m1"}


def test_at_its_time_the_task_is_placed_by_its_priority() -> None:
    one = world()
    plan = one.plan(now=100.0)
    assert (one.where(plan, "later"), one.where(plan, "now")) == ({0: "m1"}, {})


def test_a_cached_decision_ends_at_the_next_start() -> None:
    """Run two passes with one cache and without events between them. The second is after the time of the start."""
    one = World().machine("m1", cpu=1000).job("later", start_after=100.0).job("large", cpu=2000)
    memory = PassCache()
    assert one.plan(now=50.0, memory=memory).assignments == ()
    assert one.plan(now=99.0, memory=memory).assignments == ()
    assert one.where(one.plan(now=100.0, memory=memory), "later") == {0: "m1"}


def test_the_next_start_is_that_of_pending_tasks_only() -> None:
    one = world().job("last", start_after=200.0)
    tasks = one.state.tasks
    assert [tasks.next_start(now) for now in (0.0, 100.0, 200.0)] == [100.0, 200.0, math.inf]
    one.end("later", 0)
    assert tasks.next_start(0.0) == 200.0


def test_a_change_of_the_time_counts_for_the_next_pass() -> None:
    one = world()
    one.change("later", start_after=0.0)
    assert one.where(one.plan(now=50.0), "later") == {0: "m1"}
    one.change("later", start_after=500.0)
    assert one.where(one.plan(now=400.0), "later") == {}
    assert one.from_rows().diff(one.state) == []
