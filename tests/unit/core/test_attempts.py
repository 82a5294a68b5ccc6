"""Tests of passes that try several orders of the queue if tasks stay pending although capacity is enough for all."""

from __future__ import annotations

from collections import Counter

import pytest

from scheduling.core.vocabulary.plan import Plan
from scheduling.core.vocabulary.policy import Policy, Search
from tests.builders import GIB, World, needs
from tests.unit.core.twins import Twin

ALL = Policy(search=Search(randomise=False))


def world(*machines: int, **jobs: tuple[int, int]) -> World:
    """Return a cell of machines with these numbers of cores, and of jobs as name=(cores per task, tasks)."""
    made = World()
    for number, cores in enumerate(machines):
        made.machine(f"m{number}", cpu=cores * 1000, ram=cores * GIB)
    for tenant, (name, (cores, tasks)) in enumerate(jobs.items(), start=1):
        made.job(name, needs(cpu=cores * 1000, ram=cores * GIB), tasks=tasks, tenant=tenant)
    return made


def placed(made: World, plan: Plan) -> dict[str, int]:
    names = {row.job_id: name for name, row in made.jobs.items()}
    return dict(Counter(names[one.job_id] for one in plan.assignments))


@pytest.mark.parametrize("policy", [Policy(), ALL])
def test_another_order_places_the_tasks_that_the_first_leaves_pending(policy: Policy) -> None:
    """Place tasks of 8, 5, 5, 4, 4 and 4 cores on two machines of 16 cores.

    Largest first leaves a task of 4 cores pending. In another order, 8 + 4 + 4 and 5 + 5 + 4 fit.
    """
    made = world(16, 16, large=(8, 1), middle=(5, 2), small=(4, 3))
    assert placed(made, made.plan(policy)) == {"large": 1, "middle": 2, "small": 3}


def test_the_best_attempt_is_kept_if_none_places_all() -> None:
    made = world(16, 16, large=(8, 1), middle=(5, 2), small=(4, 3), whole=(1, 1))
    made.job("spread", needs(cpu=500, ram=GIB // 2, max_per_machine=1), tasks=3, tenant=9)
    plan = made.plan(ALL)
    twin = Twin(made.state, ALL, made.time).run()
    assert {(one.job_id, one.index): one.machine_id for one in plan.assignments} == {
        key: decision.machine_id for key, decision in twin.items()
    }


def test_priorities_stay_strict() -> None:
    made = World().machine("m0", cpu=16_000, ram=16 * GIB).machine("m1", cpu=16_000, ram=16 * GIB)
    made.job("high", needs(cpu=5000, ram=5 * GIB), tasks=4, priority=210)
    made.job("low", needs(cpu=8000, ram=8 * GIB), tasks=1, priority=200, tenant=2)
    assert placed(made, made.plan(ALL)) == {"high": 4}


def test_a_bounded_pass_is_tried_once() -> None:
    made = world(16, 16, large=(8, 1), middle=(5, 2), small=(4, 3))
    assert len(made.plan(Policy(search=Search(randomise=False), max_assignments=5)).assignments) <= 5


def test_equal_seeds_give_equal_plans() -> None:
    plans = [world(16, 16, large=(8, 1), middle=(5, 2), small=(4, 3)).plan() for _ in range(2)]
    assert plans[0].assignments == plans[1].assignments
