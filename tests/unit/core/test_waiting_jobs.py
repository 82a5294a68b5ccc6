"""Tests of jobs that wait for other jobs: no pass places their tasks before the event `job.released`."""

from __future__ import annotations

import math

from scheduling.core.placing.pass_cache import PassCache
from scheduling.core.placing.waking_events import may_let_place
from scheduling.core.vocabulary import events
from tests.builders import World


def world() -> World:
    return World().machine("m1", cpu=1000).job("report", waiting=True, priority=300).job("now", priority=200)


def test_a_task_that_waits_for_another_job_leaves_the_machine_to_others() -> None:
    one = world()
    plan = one.plan(now=1e12)
    assert (plan.stats.pending, [why.tasks for why in plan.unplaced]) == (1, [])
    assert one.where(plan, "now") == {0: "m1"}
    assert one.state.tasks.next_start(0.0) == math.inf


def test_a_released_task_is_placed_by_its_priority() -> None:
    one, memory = world(), PassCache()
    assert one.where(one.plan(memory=memory), "report") == {}
    one.release("report")
    assert one.where(one.plan(memory=memory), "report") == {0: "m1"}
    assert may_let_place(events.JobReleased(job_id=1), ())
    assert one.from_rows().diff(one.state) == []


def test_a_change_of_the_job_does_not_release_it() -> None:
    one = world()
    one.change("report", priority=400, start_after=50.0)
    assert one.where(one.plan(now=100.0), "report") == {}
    assert one.from_rows().diff(one.state) == []
    one.release("report")
    assert one.where(one.plan(now=49.0), "report") == {}
    assert one.where(one.plan(now=100.0), "report") == {0: "m1"}


def test_a_released_job_keeps_its_state_when_it_is_read_from_rows() -> None:
    one = world().release("report")
    assert one.from_rows().diff(one.state) == []
    assert world().from_rows().diff(one.state) != []
