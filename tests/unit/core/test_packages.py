"""Tests of placement by packages (§3.2): tasks prefer machines that already have their packages."""

from __future__ import annotations

import numpy as np

from scheduling.core.cell.installed import InstalledPackages
from scheduling.core.vocabulary.policy import Policy, Search
from tests.builders import World

BASE, APP = ("sha256:base", 900), ("sha256:app", 100)


def many(machines: int = 400) -> World:
    """Return a cell with more machines than the random sample of a pass examines."""
    world = World()
    for number in range(machines):
        world.machine(f"m{number}", cpu=2000)
    return world


def test_the_few_machines_that_have_the_packages_come_first() -> None:
    world = many().has("m7", "sha256:base").has("m399", "sha256:app", "sha256:base").has("m200", "sha256:x")
    world.job("web", tasks=4, cpu=1500, packages=(APP, BASE))
    plan = world.schedule(Policy(), seed=3)
    placed = {machine: index for index, machine in world.where(plan, "web").items()}
    assert {"m7", "m399"} < placed.keys()
    told = {a.index: (a.packages, a.score.get("packages")) for a in plan.assignments}
    assert told[placed["m399"]] == ((1000, 1000), 0.3)
    assert told[placed["m7"]] == ((900, 1000), 0.27)
    others = [told[index] for machine, index in placed.items() if machine not in ("m7", "m399")]
    assert others == [((0, 1000), None)] * 2


def test_bytes_count_not_packages() -> None:
    world = World().machine("m1").machine("m2").has("m1", "sha256:base").has("m2", "sha256:app")
    world.job("web", packages=(APP, BASE))
    assert world.where(world.plan(), "web") == {0: "m1"}


def test_where_it_ran_before_counts_only_as_far_as_its_packages_are_still_there() -> None:
    world = World().machine("m1").machine("m2").has("m1", "sha256:base").has("m2")
    world.job("web", packages=(BASE,)).place("web", 0, on="m1").evict("web", 0, gone=True)
    assert world.where(world.plan(), "web") == {0: "m1"}
    world.has("m1").has("m2", "sha256:base")
    assert world.where(world.plan(), "web") == {0: "m2"}
    world.remove("m2").machine("m3")
    assert world.state.machines.installed.by_slot() == {}
    assert world.state.diff(world.from_rows()) == []


def test_half_of_the_sample_is_left_to_other_machines() -> None:
    """Place a task whose package 100 machines have. Half of the sample must be other machines.

    Packages are one of several criteria, so machines without them can be better.
    """
    world = many()
    for number in range(100):
        world.has(f"m{number}", "sha256:base")
    world.job("web", packages=(BASE,))
    plan = world.plan(Policy(search=Search(sample=24)))
    assert len(plan.assignments[0].runners_up) == 3
    assert plan.stats.cache_misses == 24
    assert plan.assignments[0].packages == (900, 900)


def test_bitmaps_say_what_sets_of_slots_say() -> None:
    rng, installed = np.random.default_rng(7), InstalledPackages()
    sets: dict[str, set[int]] = {digest: set() for digest in "abc"}
    for _ in range(300):
        digest, slots = rng.choice(list("abc")), rng.integers(0, 70, size=rng.integers(0, 5))
        if rng.random() < 0.6:
            installed.came(digest, slots)
            sets[digest] |= set(slots.tolist())
        else:
            installed.went(digest, slots)
            sets[digest] -= set(slots.tolist())
        assert installed.by_slot() == {
            slot: [d for d in "abc" if slot in sets[d]] for slot in set().union(*sets.values())
        }
    every = np.arange(100, dtype=np.int32)
    told = installed.bytes_on((("a", 1), ("b", 10), ("never", 5)), every).tolist()
    assert told == [(slot in sets["a"]) + 10 * (slot in sets["b"]) for slot in range(100)]
