"""Tests of disruption budgets, the number of a job's tasks that may be down at once, during preemption."""

from __future__ import annotations

import pytest

from scheduling.core.placing.pass_cache import PassCache
from scheduling.core.vocabulary.policy import Policy, Search
from tests.builders import World

ALL = Policy(search=Search(randomise=False))


def guarded(budget: int, *, tasks: int = 2, waiting: int = 0, priority: int = 0) -> World:
    """Return a cell with a job of one-core tasks, of which `tasks` fill one machine each and `waiting` are pending."""
    world = World().job("guarded", tasks=tasks + waiting, priority=priority, disruption_budget=budget, ports=1)
    for number in range(tasks):
        world.machine(f"m{number}", cpu=1000).place("guarded", number, on=f"m{number}", ports=(20_000,))
    return world


def victims(world: World, job: str) -> list[str]:
    """Return the job names of the tasks that the plan preempts to place the tasks of `job`, one name per preempted
    task.
    """
    plan = world.plan(ALL)
    return [world.name_of(victim) for a in world.assignments(plan, job) for victim, _ in a.victims]


def test_no_more_are_preempted_than_the_budget_allows_while_others_will_do() -> None:
    world = guarded(1).machine("x", cpu=1000).job("other", priority=110).place("other", 0, on="x")
    assert victims(world.job("high", tasks=2), "high") == ["guarded", "other"]


def test_without_a_budget_the_lowest_go() -> None:
    world = guarded(0).machine("x", cpu=1000).job("other", priority=110).place("other", 0, on="x")
    assert victims(world.job("high", tasks=2), "high") == ["guarded", "guarded"]


def test_a_budget_is_broken_before_production_waits() -> None:
    assert victims(guarded(1).job("high", tasks=2), "high") == ["guarded", "guarded"]


def test_tasks_that_wait_are_down_too() -> None:
    world = guarded(1, waiting=1).machine("x", cpu=1000).job("other", priority=110).place("other", 0, on="x")
    assert victims(world.job("high", ram=1), "high") == ["other"]


def test_a_raised_budget_counts_from_the_next_pass() -> None:
    world = guarded(1, waiting=1).machine("x", cpu=1000).job("other", priority=110).place("other", 0, on="x")
    assert victims(world.job("high").change("guarded", disruption_budget=2), "high") == ["guarded"]


@pytest.mark.parametrize(("budget", "expected"), [(1, ["guarded", "other"]), (2, ["guarded", "guarded"])])
def test_on_one_machine_too(budget: int, expected: list[str]) -> None:
    """Preempt two tasks of one machine. If the budget allows only one of a job, one of another job is taken."""
    world = World().machine("m1", cpu=3000)
    world.job("guarded", tasks=2, priority=0, disruption_budget=budget).job("other", priority=110)
    world.place("guarded", 0, on="m1").place("guarded", 1, on="m1").place("other", 0, on="m1")
    assert victims(world.job("high", cpu=2000), "high") == expected


def test_a_gang_respects_budgets_as_a_whole() -> None:
    world = guarded(1).machine("x", cpu=1000).job("other", priority=110).place("other", 0, on="x")
    assert victims(world.job("gang", tasks=2, gang=True), "gang") == ["guarded", "other"]


def rated(left: int) -> World:
    """Return a cell like `guarded` without a budget, where `left` more tasks of the job may be disrupted now."""
    world = guarded(0).machine("x", cpu=1000).job("other", priority=110).place("other", 0, on="x")
    world.state.limit_disruptions({world.jobs["guarded"].job_id: left})
    return world


@pytest.mark.parametrize(
    ("left", "expected"), [(2, ["guarded", "guarded"]), (1, ["guarded", "other"]), (0, ["other", "guarded"])]
)
def test_no_more_are_preempted_than_the_rate_allows_while_others_will_do(left: int, expected: list[str]) -> None:
    """With no disruption left, a second task is preempted only because nothing else is left."""
    assert sorted(victims(rated(left).job("high", tasks=2), "high")) == sorted(expected)


def test_the_smaller_of_number_and_rate_counts() -> None:
    world = rated(2).change("guarded", disruption_budget=1)
    assert victims(world.job("high", tasks=2), "high") == ["guarded", "other"]


def test_a_rate_of_a_job_that_the_state_does_not_have_changes_nothing() -> None:
    world = guarded(0)
    world.state.limit_disruptions({999: 0})
    assert victims(world.job("high", tasks=2), "high") == ["guarded", "guarded"]


def test_a_pass_decides_again_when_a_rate_changes() -> None:
    world = rated(0).job("high")
    memory = PassCache()
    first = world.plan(ALL, memory=memory)
    world.state.limit_disruptions({world.jobs["guarded"].job_id: 1})
    second = world.plan(ALL, memory=memory)
    names = [[world.name_of(victim) for a in plan.assignments for victim, _ in a.victims] for plan in (first, second)]
    assert names == [["other"], ["guarded"]]
