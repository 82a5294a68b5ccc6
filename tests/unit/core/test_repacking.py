"""Tests of the plans of re-packings on small cells: which machines become free, and for which reasons they do not."""

from __future__ import annotations

import gc
import weakref

import pytest

from scheduling.core.repacking.fitting_job import plan_for_job
from scheduling.core.repacking.free_machines import plan_free_machines
from scheduling.core.repacking.relocation import Relocation
from scheduling.core.repacking.repack_plan import RepackPlan, RepackRules
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import split_task_id
from tests.builders import World, must


def rules(world: World, *, most_moves: int = 100, each: int = 100, **others: object) -> RepackRules:
    moves = {row.job_id: each for row in world.jobs.values()}
    return RepackRules(**{"most_moves": most_moves, "most_priority": 359, "job_moves": moves, **others})


def free(world: World, number: int, **given: object) -> RepackPlan:
    return plan_free_machines(world.state, Policy(), rules(world, **given), number=number, now=world.time)


def moved(world: World, plan: RepackPlan) -> list[tuple[str, int]]:
    pairs = [split_task_id(move.task_id) for step in plan.steps for move in step.moves]
    return sorted((world.name_of(job), index) for job, index in pairs)


def scattered() -> World:
    """Return three machines of four cores: m1 has three tasks of one core, m2 two, and m3 one."""
    world = World()
    for name in ("m1", "m2", "m3"):
        world.machine(name, cpu=4000)
    world.job("web", tasks=6, cpu=1000)
    for index, machine in enumerate(("m1", "m1", "m1", "m2", "m2", "m3")):
        world.place("web", index, on=machine)
    return world


def test_the_machine_with_the_fewest_tasks_becomes_free() -> None:
    world = scattered()
    plan = free(world, 1)
    assert plan.reached
    assert moved(world, plan) == [("web", 5)]
    plan = free(world, 2)
    assert plan.obstacles == {"no-place": 2}, "six cores do not fit on one machine"
    assert moved(world, plan) == [("web", 5)], "the one with the fewest tasks is freed all the same"
    both = World().machine("m1", cpu=4000).machine("m2", cpu=4000)
    both.job("web", tasks=2, cpu=2000).place("web", 0, on="m1").place("web", 1, on="m2")
    assert len(free(both, 2).steps) == 1, "only together do they fit nowhere"


def test_a_search_without_time_returns_what_it_has() -> None:
    world = scattered()
    plan = plan_free_machines(world.state, Policy(), rules(world), number=2, now=world.time, has_time=lambda: False)
    assert (plan.steps, plan.obstacles["time"]) == ((), 1)


def test_a_plan_keeps_no_memory() -> None:
    world = scattered()
    state = weakref.ref(world.state)
    assert free(world, 1).reached
    del world
    gc.collect()
    assert state() is None


def test_places_of_another_policy_are_not_used_again() -> None:
    state = scattered().state
    places = Relocation(state, Policy(), now=0.0)
    assert places.is_for(state, Policy(max_assignments=7, workload="batch"))
    assert not places.is_for(state, Policy(batch_in_prod_by_reservation=True))
    assert not places.is_for(state, Policy(scorer="best-fit"))
    assert not places.is_for(scattered().state, Policy())


def test_tasks_that_would_wait_for_a_bound_stay() -> None:
    """If a task of a bounded array left, one that waits would take its place."""
    world = World().machine("m1").machine("m2").job("array", tasks=3, cpu=500, max_running=2)
    world.place("array", 1, on="m1").place("array", 2, on="m2")
    assert free(world, 1).obstacles == {"kept-task": 2}
    world.end("array", 0)
    assert free(world, 1).reached


def test_machines_without_tasks_count_and_receive_none() -> None:
    world = scattered().machine("m4", cpu=4000)
    plan = free(world, 2)
    assert (plan.reached, plan.already_free, plan.moves) == (True, 1, 1)
    assert {move.to_machine for step in plan.steps for move in step.moves} <= {world.id_of("m1"), world.id_of("m2")}


def test_limits_and_tasks_that_must_stay_are_named() -> None:
    world = scattered()
    assert free(world, 1, each=0).obstacles == {"kept-task": 3}
    assert free(world, 1, most_moves=0).obstacles == {"limit": 3}
    assert free(world, 1, most_priority=100).obstacles == {"kept-task": 3}
    assert free(world, 1, kept_jobs=frozenset({world.jobs["web"].job_id})).steps == ()
    kept = frozenset({world.id_of("m3")})
    assert [step.machine_id for step in free(world, 1, kept_machines=kept).steps] == [world.id_of("m2")]
    closed = frozenset(map(world.id_of, ("m1", "m2", "m3")))
    assert not free(world, 1, closed_machines=closed).reached
    gang = World().machine("m1").machine("m2").job("gang", tasks=2, gang=True).place("gang", 0, on="m1")
    gang.place("gang", 1, on="m2")
    assert not free(gang, 1).reached


def test_tasks_of_a_job_that_may_not_share_a_rack_move_to_another_one() -> None:
    """The task that moves does not count at its old place, so it may stay in its rack."""
    world = World()
    for name, rack in (("m1", "r1"), ("m2", "r1"), ("m3", "r2")):
        world.machine(name, rack=rack)
    world.job("web", tasks=2, max_per_rack=1).place("web", 0, on="m1").place("web", 1, on="m3")
    world.job("other", tasks=2).place("other", 0, on="m2").place("other", 1, on="m2")
    world.job("more", tasks=2).place("more", 0, on="m3").place("more", 1, on="m3")
    (step,) = free(world, 1).steps
    assert (step.machine_id, step.moves[0].to_machine) == (world.id_of("m1"), world.id_of("m2"))
    kept = frozenset({world.id_of("m1")})
    closed = frozenset({world.id_of("m2")})
    assert not free(world, 1, kept_machines=kept | closed).reached, "the other rack has a task of the job"


def test_a_pending_task_fits_after_others_have_left() -> None:
    world = scattered().machine("m5", cpu=2000, big="yes")
    world.job("small", tasks=2, cpu=1000).place("small", 0, on="m5").place("small", 1, on="m5")
    world.job("large", cpu=1500, priority=200, constraints=(must("big", "present"),))
    plan = plan_for_job(world.state, Policy(), rules(world), job_id=world.jobs["large"].job_id, now=world.time)
    assert plan.reached
    assert moved(world, plan) == [("small", 0), ("small", 1)]
    few = plan_for_job(
        world.state, Policy(), rules(world, most_moves=1), job_id=world.jobs["large"].job_id, now=world.time
    )
    assert few.obstacles == {"limit": 1}
    world.end("small", 0, gone=True).end("small", 1, gone=True)
    again = plan_for_job(world.state, Policy(), rules(world), job_id=world.jobs["large"].job_id, now=world.time)
    assert (again.reached, again.steps) == (True, ())


def test_capacity_that_another_pending_task_would_take_does_not_count() -> None:
    world = World().machine("m1", cpu=4000).machine("m2", cpu=2000, only="yes")
    world.job("web", cpu=2000).place("web", 0, on="m1").job("old", cpu=2000).place("old", 0, on="m1")
    world.job("tool", cpu=1000).place("tool", 0, on="m2")
    world.job("first", cpu=2000, priority=300, tenant=1).job("later", cpu=2000, priority=200, tenant=2)
    world.machine("m3", cpu=1000)
    later = world.jobs["later"].job_id
    plan = plan_for_job(world.state, Policy(), rules(world), job_id=later, now=world.time)
    assert plan.obstacles["queue"] == 1
    first = plan_for_job(world.state, Policy(), rules(world), job_id=world.jobs["first"].job_id, now=world.time)
    assert moved(world, first) == [("tool", 0)]
    with pytest.raises(LookupError):
        plan_for_job(world.state, Policy(), rules(world), job_id=world.jobs["web"].job_id, now=world.time)
