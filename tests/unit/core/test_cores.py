"""Tests of whole cores (§6.2): the scheduler assigns no more of them than the machine has."""

from __future__ import annotations

import pytest

from scheduling.core.cell.machines import whole_cores
from scheduling.core.explaining.wording import format_why
from scheduling.core.vocabulary.reasons import ReasonCode
from tests.builders import World


def test_one_core_is_left_for_those_that_share() -> None:
    world = World().machine("m1", cpu=8000, cores="4").job("plain", cpu=100).place("plain", 0, on="m1")
    world.job("owner", cpu=4000, whole_cores=4)
    (why,) = world.plan().unplaced
    (fell,) = why.ruled_out
    assert (fell.code, fell.wanted, fell.largest) == (ReasonCode.CORES, 4, 3)
    told = format_why(why)
    assert told.reasons == ("1 machine with less than 4 whole cores free (at most 3)",)
    assert told.cures == ("A task would fit with at most 3 whole cores (on 1 machine).",)
    world.job("fits", cpu=3000, whole_cores=3).schedule()
    assert world.task("fits", 0).machine_id == world.id_of("m1")


def test_where_all_cores_are_reserved_only_batch_finds_room() -> None:
    world = World().machine("m1", cpu=8000, cores="2").job("owner", cpu=2000, whole_cores=2)
    world.schedule()
    world.job("plain", cpu=100).job("batch", cpu=100, priority=100, latency_sensitive=False)
    plan = world.plan()
    assert [a.job_id for a in plan.assignments] == [world.jobs["batch"].job_id]
    (why,) = plan.unplaced
    assert format_why(why).reasons == ("1 machine whose cores all belong to tasks that reserve whole cores",)


def test_cores_of_a_task_that_was_sent_away_are_free_when_it_is_gone() -> None:
    world = World().machine("m1", cpu=8000, cores="2").job("owner", cpu=2000, whole_cores=2, priority=120)
    world.schedule()
    world.end("owner", 0).job("next", cpu=2000, whole_cores=2)
    assert world.plan().assignments == ()
    world.gone("owner", 0, 1)
    assert world.where(world.plan(), "next") == {0: "m1"}


def test_a_task_with_the_right_priority_preempts_for_cores() -> None:
    world = World().machine("m1", cpu=8000, cores="2").job("low", cpu=2000, whole_cores=2, priority=100)
    world.schedule()
    world.job("high", cpu=1000, whole_cores=1, priority=200)
    (placed,) = world.schedule().assignments
    assert placed.victims == ((world.jobs["low"].job_id, 0),)


@pytest.mark.parametrize(
    "attributes, cores",
    [({}, 8), ({"cores": "6"}, 6), ({"isolation.cores": "none", "cores": "6"}, 0), ({"cores": "x"}, 8)],
    ids=["by CPU", "as said", "none", "no number"],
)
def test_a_machine_has_the_cores_that_it_says(attributes: dict[str, str], cores: int) -> None:
    assert whole_cores(attributes, 8500) == cores
