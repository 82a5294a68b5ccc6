"""Tests of the cache that scheduling passes share: it follows changes of the state."""

from __future__ import annotations

import numpy as np
import pytest

from scheduling.core.cell.state import CellState
from scheduling.core.placing.pass_cache import PassCache
from scheduling.core.placing.total_free_capacity import free_capacity
from scheduling.core.vocabulary.policy import Policy
from tests.builders import GIB, World, must, needs, wish

CHANGES = [
    ("a machine joins", lambda world: world.machine("m9")),
    ("a machine leaves", lambda world: world.remove("spare")),
    ("a machine grows", lambda world: world.machine("m1", cpu=64_000)),
    ("a machine moves to another rack", lambda world: world.machine("m1", rack="r9")),
    ("a machine gains an attribute", lambda world: world.machine("m1", flash="yes")),
    ("a machine gains accelerators", lambda world: world.machine("m1", accelerators=8000)),
    ("a machine drains", lambda world: world.machine_state("m2", "draining")),
    ("a task is evicted", lambda world: world.evict("run", 0)),
    ("a task ends", lambda world: world.end("run", 0, gone=True)),
    ("a task crashes", lambda world: world.evict("run", 0, gone=True, crashed=True)),
    ("a task is placed", lambda world: world.place("late", 0, on="m2")),
    ("a task shrinks", lambda world: world.update("run", 0, needs(cpu=100))),
    ("a reservation shrinks", lambda world: world.reserve("run", 0, cpu=10, ram=GIB)),
    ("a priority falls", lambda world: world.change_priority("run", 25)),
    ("a budget is given", lambda world: world.change("run", disruption_budget=1)),
    ("a departed process is gone", lambda world: world.gone("left", 0, 1)),
]


def cell() -> World:
    world = World().machine("m1", cpu=3000, ports=3).machine("m2", cpu=3000, ports=3).machine("spare", cpu=500)
    world.job("run", tasks=2, cpu=2000, priority=110).place("run", 0, on="m1").place("run", 1, on="m2")
    world.job("left", ports=3, cpu=1).place("left", 0, on="m1", ports=(20_000, 20_001, 20_002)).evict("left", 0)
    world.job("late", cpu=500, priority=110)
    world.job("flash", needs(constraints=(must("flash", "present"),)), tenant=2)
    world.job("ports", tasks=2, cpu=100, ports=2, tenant=3)
    return world.job("wish", needs(constraints=(wish("flash", "present"),)), priority=300)


@pytest.mark.parametrize("change", [change for _, change in CHANGES], ids=[name for name, _ in CHANGES])
def test_it_notices_that(change: object) -> None:
    world, memory = cell(), PassCache()
    before = world.plan(memory=memory)
    assert callable(change)
    change(world)
    plan = world.plan(memory=memory)
    assert plan == world.plan()
    assert before.revision < plan.revision
    for followed, counted in zip(memory.sums.follow(world.state), free_capacity(world.state), strict=True):
        assert np.array_equal(followed, counted)


def test_what_a_pass_took_is_free_for_the_next_unless_it_was_committed() -> None:
    world, memory = World().machine("m1", cpu=4000).job("low", priority=0, cpu=4000), PassCache()
    world.place("low", 0, on="m1").job("high", tasks=3)
    plan = world.plan(memory=memory)
    assert len(plan.assignments) == 3
    assert world.plan(memory=memory) == plan
    world.commit(plan.assignments[:1])
    assert len(world.plan(memory=memory).assignments) == 2


def test_an_unchanged_cell_is_not_decided_again() -> None:
    world, memory = cell(), PassCache()
    plan = world.plan(memory=memory)
    decision = memory.decision
    assert world.plan(memory=memory, seed=1) == plan
    assert memory.decision is decision
    world.job("more", cpu=1)
    assert world.plan(memory=memory) == world.plan()
    assert memory.decision is not decision


def test_a_cell_with_crashed_tasks_is_decided_again_as_time_passes() -> None:
    world, memory = (
        World().machine("m1").job("a").place("a", 0, on="m1").evict("a", 0, crashed=True, gone=True),
        PassCache(),
    )
    assert world.plan(memory=memory).assignments == ()
    assert len(world.plan(memory=memory, now=world.time + 10 * Policy().crashed_pair_s).assignments) == 1


def test_it_notices_room_where_the_last_pass_placed_nobody() -> None:
    world, memory = World().machine("m1", cpu=1000).job("a").place("a", 0, on="m1").job("b"), PassCache()
    assert world.plan(memory=memory).assignments == ()
    world.end("a", 0, gone=True)
    assert len(world.plan(memory=memory).assignments) == 1


def test_what_a_gang_gave_back_is_free() -> None:
    world, memory = World().machine("m1", cpu=2000, accelerators=1000), PassCache()
    world.job("gang", tasks=3, gang=True, accelerators=300, ports=1)
    assert world.plan(memory=memory).assignments == ()
    world.end("gang", 2)
    assert len(world.plan(memory=memory).assignments) == 2


def test_it_serves_several_policies_in_turn() -> None:
    """Run passes of several policies with one cache, as two schedulers of a cell do. Plans equal those without it."""
    world, memory = cell(), PassCache()
    for policy in (Policy(workload="service"), Policy(workload="batch"), Policy(batch_in_prod_by_reservation=True)):
        assert world.plan(policy, memory=memory) == world.plan(policy)


def test_it_serves_another_state_when_it_is_given_one() -> None:
    world, memory = cell(), PassCache()
    world.plan(memory=memory)
    other = World().machine("m1").job("a")
    assert other.plan(memory=memory) == other.plan()
    assert world.plan(memory=memory) == world.plan()


def test_a_cell_that_empties_and_fills_again() -> None:
    world, memory = World().machine("m1").job("a", tasks=2), PassCache()
    assert len(world.plan(memory=memory).assignments) == 2
    assert world.remove("m1").plan(memory=memory).assignments == ()
    assert len(world.machine("m2").plan(memory=memory).assignments) == 2


def test_more_priorities_than_it_keeps_room_for() -> None:
    world, memory = World().machine("m1", cpu=4000).job("low", priority=0, cpu=4000), PassCache()
    world.place("low", 0, on="m1")
    for priority in range(100, 140):
        world.job(f"j{priority}", priority=priority, cpu=1000)
        assert world.plan(memory=memory) == world.plan()
        world.end(f"j{priority}", 0)


def test_news_are_counted_once_at_the_end_of_a_batch() -> None:
    """Apply a batch of events in which a new job takes the slots of an ended one.

    The state must equal the one after each event was applied alone.
    """
    world = World().machine("m1").machine("m2").job("a", tasks=2).place("a", 0, on="m1").place("a", 1, on="m1")
    world.reserve("a", 0, cpu=100, ram=GIB).end("a", 0, gone=True).end("a", 1, gone=True)
    world.job("b", tasks=2, cpu=300, priority=110).place("b", 0, on="m2").update("b", 0, needs(cpu=200))
    world.change_priority("b", 300).evict("b", 0, gone=True).place("b", 0, on="m1").remove("m2")
    batched = CellState()
    batched.apply_all((event, n, time) for n, (event, time) in enumerate(world.journal, start=1))
    assert batched.diff(world.state) == []
    assert batched.validate() == []
    assert batched.machines.reserved.tolist() == world.state.machines.reserved.tolist()
