"""Tests of spreading machines evenly over link shards, at a bounded rate and without moving them in circles."""

from __future__ import annotations

import random

import pytest

from scheduling.link.transport.spread import FEW, RATE, TOLERANCE, ConnectionBalance


def settle(shards: list[int], *, seconds: int, lands: random.Random | None) -> tuple[list[int], int]:
    """Simulate the balancing for some seconds. Return the machines by shard and the number of moves.

    `lands`: draws the shard to which a moved machine connects. With None, it returns to the same shard.
    """
    spreads, moved = [ConnectionBalance() for _ in shards], 0
    for second in range(seconds):
        for index, spread in enumerate(spreads):
            number = spread.surplus(float(second), shards[index], [*shards[:index], *shards[index + 1 :]])
            assert number <= max(1, round(RATE * shards[index]))
            moved += number
            for _ in range(number if lands is not None else 0):
                shards[index] -= 1
                shards[lands.randrange(len(shards))] += 1
    return shards, moved


@pytest.mark.parametrize("shards", [[10_000, 0], [5_000, 5_000, 0], [9_000, 1_000, 3_000, 400]])
def test_a_shard_that_joins_is_filled(shards: list[int]) -> None:
    total, average = sum(shards), sum(shards) / len(shards)
    after, _ = settle(shards, seconds=400, lands=random.Random(1))
    assert sum(after) == total
    assert max(after) <= average * (1 + TOLERANCE) + FEW


@pytest.mark.parametrize("shards", [[5_200, 4_800], [8, 0], [10_000]])
def test_what_is_even_enough_stays(shards: list[int]) -> None:
    assert settle(list(shards), seconds=100, lands=random.Random(1)) == (shards, 0)


def test_machines_that_always_come_back_are_soon_left_alone() -> None:
    _, moved = settle([1_000, 0], seconds=3_600, lands=None)
    assert moved <= 1_000
