"""Tests of the order of pending tasks: the hardest first if capacity is enough, and otherwise tenants in turn."""

from __future__ import annotations

from scheduling.core.placing.hardness import hardest_first
from scheduling.core.placing.queue import pending_in_order, pending_of
from scheduling.core.placing.total_free_capacity import free_capacity
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import split_task_id
from tests.builders import World, must, needs


def order(world: World, policy: Policy | None = None) -> list[tuple[str, int]]:
    """Return (job, index) of the pending tasks in the order in which a pass tries them."""
    state = world.state
    state.count_by_limit(Policy())
    slots = hardest_first(
        state, policy or Policy(), pending_in_order(state.tasks, pending_of(state.tasks)), free_capacity(state)
    )
    names = {row.job_id: name for name, row in world.jobs.items()}
    return [(names[job], index) for job, index in map(split_task_id, state.tasks.id[slots].tolist())]


def machines(number: int, **others: str) -> World:
    world = World()
    for m in range(number):
        world.machine(f"m{m}", cpu=64_000, **others)
    return world


def test_ordinary_tasks_of_tenants_take_turns() -> None:
    world = machines(4).job("a", tasks=3, cpu=500, tenant=1).job("b", tasks=3, cpu=1000, tenant=2)
    assert order(world) == [("a", 0), ("b", 0), ("a", 1), ("b", 1), ("a", 2), ("b", 2)]


def test_large_tasks_come_first() -> None:
    world = machines(4).job("small", tasks=2, cpu=500, tenant=1).job("large", tasks=2, cpu=30_000, tenant=2)
    assert order(world)[:2] == [("large", 0), ("large", 1)]


def test_a_job_that_needs_most_machines_comes_first() -> None:
    world = machines(4).job("large", cpu=30_000, tenant=1).job("apart", needs(max_per_machine=1), tasks=3, tenant=2)
    assert order(world)[:3] == [("apart", 0), ("apart", 1), ("apart", 2)]


def test_tasks_that_few_machines_satisfy_come_first() -> None:
    world = machines(9).machine("rare", cpu=64_000, flash="1")
    world.job("usual", tasks=2, cpu=4000, tenant=1)
    world.job("rare", needs(cpu=4000, constraints=(must("flash", "present"),)), tenant=2)
    assert order(world)[0] == ("rare", 0)


def test_priorities_stay_strict() -> None:
    world = machines(4).job("low", cpu=30_000, priority=200).job("high", cpu=500, priority=201)
    assert order(world) == [("high", 0), ("low", 0)]


def test_tenants_take_turns_when_the_capacity_is_not_enough_for_all() -> None:
    world = machines(1).job("easy", tasks=20, cpu=1000, tenant=1).job("hard", tasks=20, cpu=15_000, tenant=2)
    assert order(world)[:4] == [("easy", 0), ("hard", 0), ("easy", 1), ("hard", 1)]


def test_a_bounded_pass_takes_the_first_turns() -> None:
    world = machines(4).job("easy", tasks=3, cpu=500, tenant=1).job("hard", tasks=3, cpu=15_000, tenant=2)
    assert order(world, Policy(max_assignments=4))[:4] == [("hard", 0), ("hard", 1), ("easy", 0), ("easy", 1)]


def test_a_gang_stays_together() -> None:
    world = machines(4).job("easy", tasks=2, cpu=500, tenant=1)
    world.job("gang", tasks=3, cpu=8000, tenant=2, gang=True)
    assert order(world)[:3] == [("gang", 0), ("gang", 1), ("gang", 2)]


def test_a_large_job_with_one_task_per_machine_is_placed_completely() -> None:
    """Place a large job with one task per machine. In turn with others, its last tasks would find all machines full."""
    world = machines(20)
    for tenant in range(2, 6):
        world.job(f"filler{tenant}", tasks=12, cpu=15_000, tenant=tenant)
    world.job("apart", needs(cpu=12_000, max_per_machine=1), tasks=20, tenant=1)
    assert len(world.where(world.plan(), "apart")) == 20
