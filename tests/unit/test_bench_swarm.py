"""Tests of the bench of a thousand simulated machines that download one package, with the real tracker (§3.2)."""

from __future__ import annotations

import pytest

from tests.bench.swarm import Outcome, Swarm, World

COPY_S = World(1).size_bytes / World(1).line_bytes_s


def last_of(outcome: Outcome, machines: int) -> float:
    assert outcome.gave_up == []
    assert len(outcome.installed_at) == machines
    return outcome.installed_at[-1]


def test_the_store_gives_few_copies_and_time_grows_as_the_logarithm() -> None:
    outcomes = {machines: Swarm(World(machines)).run() for machines in (10, 100, 1000)}
    last = {machines: last_of(outcome, machines) for machines, outcome in outcomes.items()}
    assert last[100] - last[10] < 14 * COPY_S
    assert last[1000] - last[100] < 14 * COPY_S
    assert last[1000] < 1000 * COPY_S / 30  # the store alone would need all of this time
    assert outcomes[1000].store_copies <= 24
    assert outcomes[1000].failed == {}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_machines_that_lie_or_are_away_keep_nobody_from_it(seed: int) -> None:
    hostile = World(200, liars=0.15, away=0.15, seed=seed)
    outcome = Swarm(hostile).run()
    assert last_of(outcome, 200) < 3 * last_of(Swarm(World(200, seed=seed)).run(), 200)
    assert outcome.failed["mismatch"] > 0
    assert outcome.failed["unreachable"] > 0
    assert outcome.store_copies <= 40


def test_the_same_seed_gives_the_same_figures() -> None:
    world = World(60, liars=0.1, away=0.1)
    assert Swarm(world).run() == Swarm(world).run()
