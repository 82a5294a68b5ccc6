"""Tests of a cell with one scheduler for services and one for batch (§3.4): each pass places only its own tasks."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from scheduling.core.pass_ import schedule_pass
from scheduling.core.placing.queue import workload_of
from scheduling.core.vocabulary.policy import Policy
from tests.builders import World


@pytest.fixture
def world() -> World:
    world = World().machine("m1", cpu=8000)
    world.job("web", tasks=2, latency_sensitive=True).job("count", tasks=3, latency_sensitive=False)
    return world.job("vast", cpu=99_000, latency_sensitive=False)


@pytest.mark.parametrize(
    ("workload", "placed", "pending", "unplaced"),
    [("", {"web", "count"}, 6, 1), ("service", {"web"}, 2, 0), ("batch", {"count"}, 4, 1)],
)
def test_a_pass_places_counts_and_explains_its_own_tasks_only(world, workload, placed, pending, unplaced) -> None:
    plan = world.plan(Policy(workload=workload))
    ids = {row.job_id: name for name, row in world.jobs.items()}
    assert {ids[assignment.job_id] for assignment in plan.assignments} == placed
    assert (plan.stats.pending, len(plan.unplaced)) == (pending, unplaced)


def test_a_pass_with_nothing_of_its_own_says_so() -> None:
    world = World().machine("m1").job("count", tasks=3, latency_sensitive=False)
    plan = schedule_pass(world.state, Policy(workload="service"), now=1.0, rng=np.random.default_rng(1))
    assert (plan.assignments, plan.unplaced, plan.stats.pending) == ((), (), 0)


def test_alloc_sets_are_services() -> None:
    world = World().job("cache", latency_sensitive=False)
    submitted = world.jobs["cache"].submitted
    world.send(msgspec.structs.replace(submitted, job_id=99, name="alloc", job_kind="alloc-set"))
    assert workload_of(world.state.tasks.jobs[submitted.job_id]) == "batch"
    assert workload_of(world.state.tasks.jobs[99]) == "service"
