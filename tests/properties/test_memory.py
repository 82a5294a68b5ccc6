"""Property tests of two optimisations that must not change results: a cache between passes, and events in bulk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.cell.audit import tasks_on
from scheduling.core.cell.state import CellState
from scheduling.core.pass_ import schedule_pass
from scheduling.core.placing.pass_cache import PassCache
from scheduling.core.vocabulary.policy import Policy
from tests.builders import World
from tests.properties.test_scheduling import policies, thorough
from tests.properties.worlds import add_job, full, step, worlds


@thorough
@given(worlds(steps=6) | full(), st.data())
def test_passes_with_a_memory_decide_what_passes_without_decide(world: World, data: st.DataObject) -> None:
    """Run passes with a cache and without, while the cell and the policy change. Both plans must be equal.

    A random part of each plan is committed before the next pass.
    """
    memory = PassCache()
    for seed in range(data.draw(st.integers(2, 4))):
        policy = replace(data.draw(policies), max_assignments=data.draw(st.sampled_from((1, 100))))
        plan = world.plan(policy, seed=seed, memory=memory)
        assert plan == world.plan(policy, seed=seed)
        world.commit(plan.assignments[: data.draw(st.sampled_from((0, 1, len(plan.assignments))))])
        for _ in range(data.draw(st.integers(0, 3))):
            step(data.draw, world)
        add_job(data.draw, world)


@thorough
@given(worlds(), st.data())
def test_many_events_at_once_are_as_many_one_by_one(world: World, data: st.DataObject) -> None:
    news = [(event, revision, time) for revision, (event, time) in enumerate(world.journal, start=1)]
    batched = CellState()
    while news:
        number = data.draw(st.integers(1, len(news)))
        batched.apply_all(news[:number])
        del news[:number]
    assert batched.revision == world.state.revision
    assert batched.diff(world.state) == []
    assert batched.validate() == []
    for name in ("reserved", "limits", "prod_limit", "ports_free", "devices", "tasks"):
        assert (getattr(batched.machines, name) == getattr(world.state.machines, name)).all(), name
    for slot in world.state.machines.slot.values():
        assert list(tasks_on(batched, slot)) == list(tasks_on(world.state, slot))
    assert batched.tasks.job_pending.tolist() == world.state.tasks.job_pending.tolist()
    now, policy = world.time, Policy()
    assert schedule_pass(batched, policy, now=now, rng=np.random.default_rng(0)) == world.plan(policy)
