"""Tests of CPU caps on greedy latency-sensitive tasks when batch tasks starve (§6.2), and of their removal."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from borglet.pressure.cpu import CpuControl, CpuSettings
from borglet.pressure.victims import PressureTenant
from tests.real.runtimes.machine import key
from tests.unit.borglet_pressure.machine import batch, server

MACHINE = 4000
LOOK_S = 5.0


def run(
    control: CpuControl, seconds: float, look: Callable[[], Sequence[PressureTenant]], *, since: float = 0.0
) -> float:
    """Step the control every five seconds for `seconds`, and return the time of the next step."""
    now = since
    while now < since + seconds:
        control.step(look(), machine_milli=MACHINE, now=now)
        now += LOOK_S
    return now


class World:
    """A machine whose latency-sensitive task takes all the CPU it may, so that batch gets the rest."""

    def __init__(self, *, limit: int = 1000, wants: int = 4000) -> None:
        self.control, self.limit, self.wants = CpuControl(), limit, wants

    def look(self) -> list[PressureTenant]:
        ceiling = self.control.ceilings.get(key(0), MACHINE)
        used = min(self.wants, ceiling)
        greedy = server(0, used, limit=self.limit)
        return [greedy, batch(1, min(1000, MACHINE - used), ready=1)]

    @property
    def batch_milli(self) -> int:
        return self.look()[1].usage.cpu_milli


def test_batch_may_starve_for_seconds_and_not_for_minutes() -> None:
    world = World()
    now = run(world.control, 25, world.look)
    assert world.control.ceilings == {}
    run(world.control, 30, world.look, since=now)
    assert world.batch_milli >= MACHINE * CpuSettings().floor_share
    assert world.control.ceilings[key(0)] > 3500  # the cap takes no more than batch lacks
    assert not world.control.wanted


def test_a_cap_is_lifted_step_by_step_once_batch_wants_nothing() -> None:
    world = World()
    now = run(world.control, 60, world.look)
    quiet = [server(0, 500), batch(1, 0, ready=0)]
    now = run(world.control, 65, lambda: quiet, since=now)
    assert world.control.ceilings == {}  # the task did not use all of its ceiling


def test_a_cap_never_goes_below_the_tasks_own_limit_and_then_the_master_is_asked() -> None:
    world = World(limit=MACHINE)
    now = run(world.control, 100, world.look)
    assert world.control.ceilings == {}
    assert not world.control.wanted
    now = run(world.control, 90, world.look, since=now)
    removal = world.control.wanted[key(1)]
    assert removal.reason == "cpu-starved"
    assert "for 180 s; this batch task got 0 milli-cores and has 1 threads ready to run" in removal.detail
    run(world.control, 5, lambda: [server(0, 100), batch(1, 500, ready=1)], since=now)
    assert not world.control.wanted  # batch has enough: no removal is requested any more


def test_nobody_is_capped_below_its_own_limit_however_much_batch_lacks() -> None:
    control = CpuControl(CpuSettings(floor_share=0.5))
    run(control, 40, lambda: [server(0, MACHINE, limit=3000), batch(1, ready=8)])
    assert control.ceilings == {key(0): 3000}


def test_removals_are_asked_for_one_after_the_other_from_the_lowest_priority_and_never_prod() -> None:
    control = CpuControl()
    full = [
        server(0, MACHINE, limit=MACHINE),
        batch(1, ready=1, priority=110),
        batch(2, ready=1, priority=50),
        batch(3, ready=1, priority=200, prod=True),
    ]
    now = run(control, 200, lambda: full)
    assert list(control.wanted) == [key(2)]
    run(control, 400, lambda: full, since=now)
    assert list(control.wanted) == [key(2), key(1)]


def test_a_task_that_shares_the_machine_with_several_greedy_ones_takes_from_each_by_its_excess() -> None:
    control = CpuControl()
    run(
        control,
        40,
        lambda: [server(0, 2000, limit=1000), server(1, 1500, limit=1500), server(2, 500, limit=0), batch(3, ready=2)],
    )
    assert control.ceilings.keys() == {key(0), key(2)}
    assert 2000 - control.ceilings[key(0)] > 500 - control.ceilings[key(2)] > 0


def test_a_batch_task_that_sleeps_or_is_capped_by_its_own_limit_does_not_starve() -> None:
    control = CpuControl()
    run(control, 600, lambda: [server(0, MACHINE), batch(1, 0, ready=0)])
    assert control.ceilings == {}
    assert not control.wanted


def test_the_ceiling_of_a_task_that_ended_is_forgotten() -> None:
    world = World()
    run(world.control, 60, world.look)
    assert world.control.ceilings
    world.control.step([batch(1, ready=1)], machine_milli=MACHINE, now=100.0)
    assert world.control.ceilings == {}
