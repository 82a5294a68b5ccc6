"""Tests of weighted answers: each task is in answers, and first in them, in proportion to its weight."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from naming.table.answering_tasks import Answering, MachineAddress, PlacedTask, Pool
from naming.table.endpoints import weight_of
from naming.table.jobs import NamedJob

MACHINE = MachineAddress(1, "m1", "10.0.0.1", 4)
WEB = NamedJob(1, "ubar", "web", "job", (), {})


def pool_of(*weights: int) -> Pool:
    pool = Pool()
    for index, weight in enumerate(weights):
        pool.put(PlacedTask(WEB, index, 1, MACHINE, (), (), weight=weight))
    return pool


def drawn(answering: Answering, most: int, rounds: int) -> tuple[Counter[int], Counter[int], set[int]]:
    """Draw samples and return how often each task was first, how often it was drawn, and the samples' sizes."""
    rng, firsts, there, sizes = Random(1), Counter[int](), Counter[int](), set[int]()
    for _ in range(rounds):
        tasks = [task.index for task in answering.sample(most, rng)]
        assert len(set(tasks)) == len(tasks)
        firsts[tasks[0]] += 1
        there.update(tasks)
        sizes.add(len(tasks))
    return firsts, there, sizes


@pytest.mark.parametrize(
    "weights, most, size",
    [
        ([1] * 10, 3, 3),
        ([5] * 10, 24, 10),
        ([10] * 10 + [1], 24, 10),
        ([1, 99], 24, 1),
        ([1, 2, 3, 4], 24, 2),
        ([65_535, 1], 24, 1),
        ([3, 1, 1, 1], 2, 2),
    ],
)
def test_shares_are_as_weights(weights: list[int], most: int, size: int) -> None:
    rounds, total = 6_000, sum(weights)
    firsts, there, sizes = drawn(Answering.of(pool_of(*weights).strata()), most, rounds)
    assert sizes == {size}
    for index, weight in enumerate(weights):
        share = weight / total
        assert abs(firsts[index] / rounds - share) < 0.03
        assert abs(there[index] / rounds / size - share) < 0.03


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=5), min_size=1, max_size=4), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_shares_are_exact_whatever_the_weights(pools: list[list[int]], most: int) -> None:
    """Draw once for each random number that a draw can begin with. The share of each task must be its weight."""
    answering = Answering.of(one for weights in pools for one in pool_of(*weights).strata())
    weights = [weight for pool in pools for weight in pool]
    live = [weight for weight in weights if weight] or [1] * len(weights)
    total, there, sizes = sum(live), Counter[int](), set[int]()
    if len(answering.strata) < 2:
        return  # all weights are equal: `random.sample` is used

    class Each(Random):
        """A random generator that returns a given start. Its choice among tasks of equal weight stays random."""

        def __init__(self, start: int) -> None:
            super().__init__(start)
            self.start = start

        def randrange(self, *_: int) -> int:
            return self.start

    for start in range(total):
        found = answering.sample(most, Each(start))
        assert len({id(task) for task in found}) == len(found)
        sizes.add(len(found))
        there.update(task.weight or 1 for task in found)
    (size,) = sizes
    assert size == min(most, total // max(live))
    for weight, tasks in Counter(live).items():
        assert there[weight] == size * weight * tasks


def test_nobody_answers_for_an_empty_pool() -> None:
    answering = Answering.of([*Pool().strata(), *Pool().strata()])
    assert len(answering) == 0
    assert answering.sample(5, Random(1)) == answering.any(5, Random(1)) == []


def test_those_of_weight_0_are_last_in_all_pools_together() -> None:
    assert {task.weight for task in Answering.of([*pool_of(0, 0).strata(), *pool_of(0, 3).strata()])} == {3}
    assert len(Answering.of([*pool_of(0, 0).strata(), *pool_of(0).strata()])) == 3
    assert len(Answering.of([*pool_of(0, 0).strata(), *pool_of(0).strata()]).sample(24, Random(1))) == 3


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.booleans()), max_size=40))
def test_strata_are_the_pool_by_weight(steps: list[tuple[int, int, bool]]) -> None:
    pool, slow = Pool(), dict[int, int]()
    for index, weight, there in steps:
        if there:
            pool.put(PlacedTask(WEB, index, 1, MACHINE, (), (), weight=weight))
            slow[index] = weight
        else:
            pool.discard(index)
            slow.pop(index, None)
        strata = {weight: sorted(task.index for task in tasks) for weight, tasks in pool.strata() if tasks}
        assert strata == {w: sorted(i for i, of in slow.items() if of == w) for w in slow.values()}


def test_samples_are_bounded_and_reach_every_task() -> None:
    answering = Answering.of(pool_of(*[1] * 10).strata())
    _, there, sizes = drawn(answering, 3, 200)
    assert set(there) == set(range(10))
    assert sizes == {3}
    assert len(answering.sample(99, Random(3))) == 10


@pytest.mark.parametrize("index, weight", [(0, 1), (2, 7), (4, 7), (5, 1), (9, 0), (10, 1)])
def test_a_weight_is_that_of_its_range(index: int, weight: int) -> None:
    assert weight_of(index, ((2, 4, 7), (8, 9, 0))) == weight
