"""Tests of accelerators: a share lies on one device, and a larger request gets whole devices."""

from __future__ import annotations

import pytest

from scheduling.core.vocabulary.policy import Policy, Search
from tests.builders import World

ALL = Policy(search=Search(randomise=False))


def asking(world: World, *amounts: int, priority: int = 200) -> World:
    """Add one job of one task per amount in milli-accelerators, each with a lower priority than the one before."""
    for number, amount in enumerate(amounts):
        world.job(f"a{number}", cpu=100, accelerators=amount, priority=priority - number, tenant=number + 1)
    return world


def given(world: World) -> list[tuple[int, ...]]:
    return [assignment.devices for assignment in world.plan(ALL).assignments]


def test_a_share_goes_to_the_fullest_accelerator_that_has_room() -> None:
    world = asking(World().machine("m1", accelerators=3000), 300, 500, 400, 200)
    assert given(world) == [(0,), (0,), (1,), (0,)]


@pytest.mark.parametrize(("amount", "devices"), [(1000, (1,)), (1500, (1, 2)), (2000, (1, 2)), (3000, None)])
def test_more_is_the_first_whole_ones(amount: int, devices: tuple[int, ...] | None) -> None:
    world = asking(World().machine("m1", accelerators=3000), 100, amount)
    assert given(world)[1:] == ([] if devices is None else [devices])


def test_parts_of_several_accelerators_do_not_make_a_share() -> None:
    world = asking(World().machine("m1", accelerators=2000), 600, 600)
    assert given(world) == [(0,), (1,)]
    world.schedule()
    assert world.free_devices("m1") == [400, 400]
    world.job("late", cpu=100, accelerators=800)
    assert world.where(world.plan(), "late") == {}


def test_what_is_left_over_of_a_machines_accelerators_is_a_smaller_one() -> None:
    world = asking(World().machine("m1", accelerators=2500), 500, 1000, 1000, 1000)
    assert given(world) == [(2,), (0,), (1,)]


def test_accelerators_of_a_leaving_task_are_free_at_once() -> None:
    world = asking(World().machine("m1", accelerators=1000), 700)
    world.schedule()
    world.job("next", cpu=100, accelerators=700)
    assert world.where(world.plan(), "next") == {}
    world.evict("a0", 0).end("a0", 0)
    assert world.where(world.plan(), "next") == {0: "m1"}


def test_victims_are_those_whose_accelerators_are_of_use() -> None:
    """Preempt for 700 milli-accelerators on two devices with 600 free each. Only one of the two holders is evicted."""
    world = World().machine("m1", accelerators=2000).job("low", tasks=2, cpu=100, accelerators=400, priority=0)
    world.place("low", 0, on="m1", devices=(0,)).place("low", 1, on="m1", devices=(1,))
    (assignment,) = asking(world, 700).plan().assignments
    assert (assignment.victims, assignment.devices) == (((world.jobs["low"].job_id, 0),), (0,))


def test_all_holders_of_a_device_leave_for_a_task_that_needs_it_whole() -> None:
    world = World().machine("m1", accelerators=1000).job("low", tasks=2, cpu=100, accelerators=400, priority=0)
    world.place("low", 0, on="m1", devices=(0,)).place("low", 1, on="m1", devices=(0,))
    (assignment,) = asking(world, 1000).plan().assignments
    assert len(assignment.victims) == 2
    world.schedule()
    assert world.free_devices("m1") == [0]
    assert world.state.validate() == []


def test_a_task_that_shrinks_in_place_keeps_its_device() -> None:
    world = asking(World().machine("m1", accelerators=2000), 800)
    world.schedule()
    (before,) = world.jobs["a0"].tasks.values()
    limit = list(before.requirement.limit)
    limit[4] = 300
    world.update("a0", 0, type(before.requirement)(tuple(limit)))
    assert world.free_devices("m1") == [700, 1000]
    assert world.state.validate() == []


def test_a_machine_that_loses_accelerators_gives_no_more_of_them() -> None:
    world = asking(World().machine("m1", accelerators=2000), 1000, 1000)
    world.schedule()
    (told,) = world.machine("m1", accelerators=1000).state.validate()
    assert "2000 accelerators, its capacity is 1000: it shrank" in told
    world.job("late", cpu=100, accelerators=100)
    assert world.where(world.plan(), "late") == {}
    world.end("a0", 0, gone=True).end("a1", 0, gone=True)
    assert world.where(world.plan(), "late") == {0: "m1"}
    assert world.free_devices("m1") == [1000, 0]


def test_a_task_without_accelerators_gets_none() -> None:
    assert given(World().machine("m1", accelerators=4000).job("a")) == [()]


def test_tasks_without_devices_leave_machines_with_devices_to_others() -> None:
    world = World().machine("bare").machine("gpu", accelerators=4000)
    world.job("x", accelerators=1000).place("x", 0, on="gpu", devices=(0,)).job("a", cpu=100)
    assert world.where(world.plan(ALL), "a") == {0: "bare"}


def test_whole_machines_are_kept_for_classes_that_need_them() -> None:
    """Place a share of a device where tasks with eight devices were seen.

    The share goes to the machine that cannot hold such a task.
    """
    world = (
        World().machine("large", accelerators=8000).machine("small", accelerators=1000).machine("x", accelerators=8000)
    )
    world.job("whole", accelerators=8000).place("whole", 0, on="x", devices=tuple(range(8)))
    world.job("a", cpu=100, accelerators=500)
    assert world.where(world.plan(ALL), "a") == {0: "small"}
