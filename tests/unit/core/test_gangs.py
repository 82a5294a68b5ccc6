"""Tests of gangs, which are jobs whose tasks are placed together or not at all."""

from __future__ import annotations

import pytest

from scheduling.core.vocabulary.policy import Policy, Search
from tests.builders import World

ALL = Policy(search=Search(randomise=False))


def placed(world: World, job: str, policy: Policy | None = None) -> int:
    return len(world.assignments(world.plan(policy), job))


@pytest.mark.parametrize(("machines", "expected"), [(2, 0), (3, 3)])
def test_a_gang_starts_whole_or_waits_whole(machines: int, expected: int) -> None:
    world = World()
    for number in range(machines):
        world.machine(f"m{number}", cpu=1000)
    assert placed(world.job("gang", tasks=3, gang=True), "gang") == expected


def test_without_gang_the_first_tasks_start() -> None:
    world = World().machine("m1", cpu=1000).job("crowd", tasks=3)
    assert placed(world, "crowd") == 1
    world.change("crowd", gang=True)
    assert placed(world, "crowd") == 0


def test_what_a_waiting_gang_would_have_taken_is_left_to_others() -> None:
    world = World().machine("m1", cpu=2000, ports=3)
    world.job("gang", tasks=3, gang=True, priority=300, ports=1).job("other", tasks=2, priority=200, ports=1)
    plan = world.schedule()
    assert world.where(plan, "gang") == {}
    assert world.where(plan, "other") == {0: "m1", 1: "m1"}
    assert world.state.validate() == []


def test_equal_requests_behind_a_waiting_gang_are_looked_at_again() -> None:
    """Place a task behind a gang that stays pending and has equal requests. The task must be tried again.

    Equal requests share cached results, and the gang's last task found no machine.
    """
    world = World().machine("m1", cpu=2000).job("gang", tasks=3, gang=True, tenant=1).job("one", tenant=2)
    assert world.where(world.plan(), "one") == {0: "m1"}


def test_nobody_is_evicted_for_a_gang_that_does_not_start() -> None:
    world = World().machine("m1", cpu=1000).machine("m2", cpu=1000)
    world.job("low", tasks=2, priority=0).place("low", 0, on="m1").place("low", 1, on="m2")
    world.job("gang", tasks=3, gang=True)
    plan = world.plan()
    assert (plan.assignments, plan.stats.placed, plan.stats.preempted) == ((), 0, 0)
    plan = world.machine("m3", cpu=1000).plan()
    assert len(plan.assignments) == 3
    assert sorted(victim for a in plan.assignments for victim in a.victims) == [
        (world.jobs["low"].job_id, index) for index in (0, 1)
    ]


def test_victims_that_came_back_can_be_preempted_by_the_next() -> None:
    world = World().machine("m1", cpu=1000).job("low", priority=0).place("low", 0, on="m1")
    world.job("gang", tasks=2, gang=True, priority=300).job("one", priority=200)
    (assignment,) = world.plan().assignments
    assert assignment.job_id == world.jobs["one"].job_id
    assert assignment.victims == ((world.jobs["low"].job_id, 0),)


def test_a_gang_that_gives_back_restores_budgets_and_accelerators() -> None:
    world = World().machine("m1", cpu=4000, accelerators=2000)
    world.job("low", tasks=2, priority=0, accelerators=1000, disruption_budget=1)
    world.place("low", 0, on="m1", devices=(0,)).place("low", 1, on="m1", devices=(1,))
    world.job("gang", tasks=3, gang=True, priority=300, accelerators=1000)
    world.job("one", priority=200, accelerators=1000).job("two", priority=199, accelerators=1000)
    plan = world.plan(ALL)
    assert world.assignments(plan, "gang") == []
    assert [(a.devices, len(a.victims)) for a in plan.assignments] == [((0,), 1), ((1,), 1)]


def test_bounds_per_machine_hold_for_gangs() -> None:
    world = World().machine("m1").machine("m2").job("gang", tasks=2, gang=True, max_per_machine=1)
    assert sorted(world.where(world.plan(), "gang").values()) == ["m1", "m2"]
    world.job("wide", tasks=3, gang=True, max_per_machine=1).job("after", tasks=3, max_per_machine=1)
    plan = world.plan()
    assert (len(world.where(plan, "wide")), len(world.where(plan, "after"))) == (0, 2)


def test_a_task_evicted_from_a_running_gang_comes_back_alone() -> None:
    world = World().machine("m1", cpu=2000).job("gang", tasks=2, gang=True)
    world.schedule()
    world.evict("gang", 1)
    assert world.where(world.plan(), "gang") == {1: "m1"}


def test_the_oldest_gangs_come_first_in_their_priority_and_others_at_the_turn_of_their_first_task() -> None:
    world = World().machine("m1", cpu=64_000).job("urgent", priority=300, tenant=3)
    world.job("a", tasks=2, tenant=1).job("gang", tasks=3, tenant=1, gang=True).job("b", tasks=2, tenant=2)
    world.job("g2", tasks=2, tenant=2, gang=True).job("g3", tasks=2, tenant=0, gang=True)
    world.job("g4", tasks=2, tenant=2, gang=True)
    names = [world.name_of(a.job_id) for a in world.plan().assignments]
    assert names[:8] == ["urgent", "gang", "gang", "gang", "g2", "g2", "g3", "g3"]
    assert names[8:] == ["a", "b", "a", "g4", "g4", "b"]


def test_a_gang_of_one_task_has_its_normal_turn() -> None:
    world = World().machine("m1", cpu=64_000).job("a", tenant=1).job("alone", tenant=2, gang=True)
    assert [world.name_of(a.job_id) for a in world.plan().assignments] == ["a", "alone"]


def test_the_bound_on_a_pass_tears_no_gang() -> None:
    world = World().machine("m1", cpu=64_000).job("first", priority=300).job("gang", tasks=3, gang=True)
    assert [world.name_of(a.job_id) for a in world.plan(Policy(max_assignments=1)).assignments] == ["first"]
    assert placed(world, "gang", Policy(max_assignments=2)) == 3, "a gang that has begun is ended"
