"""Tests of `max_running`: a pass never lets more tasks of a job have a machine at once."""

from __future__ import annotations

import pytest

from quota.vocabulary.bands import DEFAULT_BANDS
from scheduling.core.placing.pass_cache import PassCache
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.policy import Policy, Search
from scheduling.core.vocabulary.requirement import Group
from tests.builders import GIB, World, must, needs

WITHOUT_CLASSES = Policy(bands=DEFAULT_BANDS, search=Search(classes=False))


def world(*, most: int, tasks: int = 6, **job: object) -> World:
    return (
        World().machine("m1", cpu=20_000).machine("m2", cpu=20_000).job("array", tasks=tasks, max_running=most, **job)
    )  # type: ignore[arg-type]


def placed(one: World, job: str = "array", policy: Policy | None = None) -> list[int]:
    """Run and commit a pass. Return the indexes of the tasks of the job that it places."""
    return sorted(one.where(one.schedule(policy), job))


@pytest.mark.parametrize("policy", [None, WITHOUT_CLASSES])
def test_the_tasks_with_the_lowest_indexes_run_first_and_others_follow(policy: Policy | None) -> None:
    one = world(most=2)
    assert [placed(one, policy=policy), placed(one, policy=policy)] == [[0, 1], []]
    one.end("array", 1)
    assert [placed(one, policy=policy), placed(one, policy=policy)] == [[2], []]
    one.end("array", 0).end("array", 2)
    assert placed(one, policy=policy) == [3, 4]
    assert one.state.validate() == []
    assert one.from_rows().diff(one.state) == []


def test_an_evicted_task_runs_again_before_tasks_that_never_ran() -> None:
    one = world(most=2)
    placed(one)
    one.evict("array", 0)
    assert placed(one) == [0]
    one.machine_state("m1", "down").machine_state("m2", "down")
    one.evict("array", 0).evict("array", 1).machine_state("m2", "up")
    assert placed(one) == [0, 1]


def test_tasks_beyond_the_bound_are_not_explained_and_need_no_further_pass() -> None:
    one = world(most=2)
    plan = one.plan()
    assert (plan.stats.pending, plan.stats.cut, plan.unplaced) == (2, False, ())
    assert plan.bounded == {one.jobs["array"].job_id}
    one.schedule()
    assert one.plan().stats.pending == 0


def test_a_kind_of_tasks_that_fits_nowhere_does_not_block_the_others() -> None:
    """Submit a job whose first tasks fit on no machine. The others run, and never more of them than the bound."""
    one = World().machine("m1", cpu=20_000)
    impossible, small, large = needs(constraints=(must("gpu", "present"),)), needs(cpu=1000), needs(cpu=2000)
    one.job("array", tasks=9, max_running=3)
    row = one.jobs["array"]
    for index, wanted in enumerate([impossible] * 3 + [small] * 3 + [large] * 3):
        row.tasks[index].requirement = wanted
        one.send(events.TaskUpdated(job_id=row.job_id, index=index, spec_version=1, requirement=wanted))
    assert placed(one) == [6, 7, 8]  # those that are hardest to place come first
    assert placed(one) == []
    one.end("array", 7)
    plan = one.schedule()
    assert sorted(one.where(plan, "array")) == [3]
    assert [number for why in plan.unplaced for _, number in why.tasks] == [1]
    assert one.state.validate() == []


def test_the_bound_of_one_job_leaves_others_alone() -> None:
    one = world(most=1).job("free", tasks=4).job("other", tasks=4, max_running=3)
    plan = one.schedule()
    assert [len(one.where(plan, name)) for name in ("array", "free", "other")] == [1, 4, 3]


def test_a_change_of_the_bound_counts_for_the_next_pass() -> None:
    one, memory = world(most=1), PassCache()
    one.commit(one.plan(memory=memory).assignments)
    assert one.plan(memory=memory).assignments == ()
    one.change("array", max_running=3)
    assert len(one.plan(memory=memory).assignments) == 2
    one.schedule()
    one.change("array", max_running=2)
    one.end("array", 0)
    assert one.plan().assignments == ()  # two still run
    one.change("array", max_running=0)
    assert len(one.plan().assignments) == 3
    assert one.from_rows().diff(one.state) == []


def test_a_preempted_task_is_placed_again_within_the_bound() -> None:
    one = World().machine("m1", cpu=2000).job("array", tasks=4, max_running=2, priority=100)
    placed(one)
    one.job("urgent", cpu=1000, priority=300)
    plan = one.schedule()
    assert len(one.where(plan, "urgent")) == 1
    assert one.in_state("running").count(("array", 0)) + one.in_state("running").count(("array", 1)) == 1
    one.machine("m2", cpu=8000)
    assert len(placed(one)) == 1
    assert len([job for job, _ in one.in_state("running") if job == "array"]) == 2


def test_pending_tasks_beyond_the_bound_use_no_disruption_budget() -> None:
    one = World().machine("m1", cpu=2000).job("array", tasks=9, max_running=2, disruption_budget=1, priority=100)
    placed(one)
    one.job("urgent", tasks=2, priority=300)
    (first,) = [a for a in one.plan(Policy(bands=DEFAULT_BANDS)).assignments if a.victims][:1]
    assert len(first.victims) == 1
    assert one.state.tasks.down(one.state.tasks.job[:1]).tolist() == [0]
    one.evict("array", 0)
    slot = one.state.tasks.jobs[one.jobs["array"].job_id].slot
    assert one.state.tasks.down(one.state.tasks.job[[slot]]).tolist() == [1]


def test_tasks_inside_allocs_are_bounded_too() -> None:
    one = World().machine("m1", cpu=20_000)
    group = Group(needs(cpu=8000, ram=8 * GIB), ((0, 0),))
    shared = {"tenant_id": 1, "tenant": "t01", "priority": 200, "latency_sensitive": True, "spec_version": 1}
    one.send(events.JobSubmitted(job_id=1000, uid="a", name="pad", job_kind="alloc-set", groups=(group,), **shared))
    inner = Group(needs(cpu=1000), ((0, 4),))
    one.send(
        events.JobSubmitted(
            job_id=1001, uid="b", name="in", job_kind="job", groups=(inner,), alloc_set=1000, max_running=2, **shared
        )
    )
    at = one.id_of("m1")
    one.send(events.TaskPlaced(job_id=1000, index=0, machine_id=at, incarnation=1))
    inside = [a for a in one.plan().assignments if a.job_id == 1001]
    assert [(a.index, a.alloc > 0) for a in inside] == [(0, True), (1, True)]
    large = needs(cpu=9000)
    for index in range(3):  # no alloc can hold these tasks, and the others run
        one.send(events.TaskUpdated(job_id=1001, index=index, spec_version=1, requirement=large))
    assert [a.index for a in one.plan().assignments if a.job_id == 1001] == [3, 4]


def test_tasks_that_crashed_do_not_block_the_others() -> None:
    """Let the first two tasks crash on every machine. They avoid these machines, and two others run."""
    one = world(most=2)
    for index in (0, 1):
        for name in ("m1", "m2"):
            one.place("array", index, on=name).evict("array", index, gone=True, crashed=True)
    assert placed(one) == [2, 3]
    assert placed(one) == []
    assert one.state.validate() == []


def test_tasks_that_are_held_back_need_no_further_pass_or_attempt() -> None:
    one = World().machine("m1", cpu=20_000)
    one.job("array", tasks=4, max_running=1)
    row = one.jobs["array"]
    for index in (2, 3):
        row.tasks[index].requirement = needs(cpu=2000)
        one.send(events.TaskUpdated(job_id=row.job_id, index=index, spec_version=1, requirement=needs(cpu=2000)))
    plan = one.plan()
    assert (len(plan.assignments), plan.stats.cut, plan.unplaced) == (1, False, ())
