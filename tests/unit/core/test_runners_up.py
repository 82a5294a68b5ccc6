"""Tests of runners-up: the next best machines, which are stored with a placement to explain it."""

from __future__ import annotations

import pytest

from scheduling.core.vocabulary.policy import Policy, Search
from tests.builders import World

ALL = Policy(search=Search(randomise=False), scorer="best-fit")


def filled(*cores: int) -> World:
    """Return a cell of machines with 8 cores, of which these numbers are taken. Fuller machines have better scores."""
    world = World()
    for number, cpu in enumerate(cores):
        world.machine(f"m{number}").job(f"x{number}", cpu=cpu * 1000, ram=cpu * 4 * 2**30)
        world.place(f"x{number}", 0, on=f"m{number}")
    return world


def ranking(world: World) -> list[str]:
    (assignment,) = world.job("a").plan(ALL).assignments
    names = {machine.machine_id: name for name, machine in world.machines.items()}
    return [names[assignment.machine_id], *(names[machine] for machine, _ in assignment.runners_up)]


def test_the_three_next_best_in_descending_order() -> None:
    assert ranking(filled(1, 6, 3, 5, 2)) == ["m1", "m3", "m2", "m4"]


def test_none_where_there_was_no_choice() -> None:
    assert ranking(filled(1)) == ["m0"]
    assert ranking(filled(1, 8)) == ["m0"]


def test_of_equal_machines_the_lower_id_comes_first() -> None:
    assert ranking(filled(2, 2, 2, 2, 2)) == ["m0", "m1", "m2", "m3"]


def test_none_is_better_than_the_one_that_was_taken() -> None:
    (assignment,) = filled(1, 6, 3).job("a").plan(ALL).assignments
    totals = [sum(assignment.score.values()), *(total for _, total in assignment.runners_up)]
    assert totals == sorted(totals, reverse=True)


def test_the_packages_of_the_machine_where_it_was_count() -> None:
    ((_, new),) = filled(6, 1).job("b").plan(ALL).assignments[0].runners_up
    world = filled(6, 1).job("b").place("b", 0, on="m1").evict("b", 0)
    ((machine, known),) = world.plan(ALL).assignments[0].runners_up
    assert machine == world.id_of("m1")
    assert known - new == pytest.approx(ALL.weights.packages, abs=1e-3)


def test_machines_where_others_would_have_to_go_are_reported_with_their_price() -> None:
    world = World().machine("m1", cpu=1000).machine("m2", cpu=1000)
    world.job("low", priority=0).place("low", 0, on="m1").job("batch", priority=110).place("batch", 0, on="m2")
    (assignment,) = world.job("high").plan(ALL).assignments
    ((machine, total),) = assignment.runners_up
    assert (assignment.machine_id, machine) == (world.id_of("m1"), world.id_of("m2"))
    assert total < sum(assignment.score.values()) - 10
