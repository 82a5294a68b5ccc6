"""Strategies for Hypothesis that draw random cells with their journals."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from scheduling.core.vocabulary.requirement import Requirement
from tests.builders import GIB, World, must, needs, wish

PRIORITIES = (0, 25, 101, 110, 119, 120, 200, 359, 360, 370)
CONSTRAINTS = (
    (),
    (),
    (must("flash", "present"),),
    (must("kernel", ">=", "5"),),
    (must("kernel", "!=", "4"), must("flash", "absent")),
    (wish("flash", "present", weight=2.0), wish("kernel", "<", "5")),
)
PACKAGES = (
    (),
    (),
    (("sha256:app1", 30), ("sha256:base", 900)),
    (("sha256:app2", 30), ("sha256:base", 900)),
    (("sha256:app1", 30),),
)
BOUNDS = ({}, {}, {}, {"max_per_machine": 1}, {"max_per_rack": 1}, {"max_per_power_domain": 2})


@st.composite
def requirements(draw: st.DrawFn) -> Requirement:
    return needs(
        cpu=draw(st.sampled_from((0, 500, 1000, 3000, 9000))),
        ram=draw(st.sampled_from((0, GIB, 3 * GIB, 40 * GIB))),
        accelerators=draw(st.sampled_from((0, 0, 0, 300, 500, 1000, 2000))),
        ports=draw(st.sampled_from((0, 0, 1, 3))),
        constraints=draw(st.sampled_from(CONSTRAINTS)),
        packages=draw(st.sampled_from(PACKAGES)),
        whole_cores=draw(st.sampled_from((0, 0, 0, 1, 3))),
        **draw(st.sampled_from(BOUNDS)),
    )


def add_machine(draw: st.DrawFn, world: World, *, machine_id: int | None = None) -> None:
    attributes = {"kernel": draw(st.sampled_from(("4", "5", "10")))}
    if draw(st.booleans()):
        attributes["flash"] = "yes"
    number = draw(st.integers(0, 5))
    world.machine(
        f"m{world.time}",
        cpu=draw(st.sampled_from((1000, 4000, 8000))),
        ram=draw(st.sampled_from((4, 16))) * GIB,
        accelerators=draw(st.sampled_from((0, 0, 1000, 2500, 4000))),
        rack=f"r{number}" if number < 4 else "",
        power=f"p{number // 2}" if number < 4 else "",
        ports=draw(st.sampled_from((2, 10))),
        machine_id=machine_id,
        **attributes,
    )


def add_job(draw: st.DrawFn, world: World, *, most_tasks: int = 4) -> None:
    world.job(
        f"j{len(world.jobs)}",
        draw(requirements()),
        tasks=draw(st.integers(1, most_tasks)),
        priority=draw(st.sampled_from(PRIORITIES)),
        tenant=draw(st.integers(1, 3)),
        latency_sensitive=draw(st.booleans()),
        gang=draw(st.sampled_from((False, False, True))),
        disruption_budget=draw(st.sampled_from((0, 0, 1, 2))),
    )


@st.composite
def worlds(draw: st.DrawFn, *, steps: int = 12, waiting: int = 2, most_tasks: int = 4) -> World:
    """Draw a cell with a history of passes, crashes, updates, ended jobs, and machines that come and go.

    `steps`: the most events of the history. `waiting`: the number of jobs that are submitted last and not placed.
    """
    world = World()
    for _ in range(draw(st.integers(1, 5))):
        add_machine(draw, world)
    for _ in range(draw(st.integers(1, 4))):
        add_job(draw, world)
    for _ in range(draw(st.integers(0, steps))):
        step(draw, world)
    for _ in range(waiting):
        add_job(draw, world, most_tasks=most_tasks)
    return world


@st.composite
def full(draw: st.DrawFn) -> World:
    """Draw a cell full of low-priority tasks, with pending jobs that must preempt to be placed.

    The jobs have accelerators, disruption budgets, and some of them are gangs.
    """
    world = World()
    for number in range(draw(st.integers(1, 4))):
        world.machine(f"m{number}", cpu=draw(st.sampled_from((2000, 4000))), accelerators=2000, rack="r1")
    for number in range(draw(st.integers(1, 3))):
        world.job(
            f"low{number}",
            tasks=draw(st.integers(1, 6)),
            cpu=draw(st.sampled_from((1000, 2000))),
            accelerators=draw(st.sampled_from((0, 400, 1000))),
            priority=draw(st.sampled_from((0, 25))),
            disruption_budget=draw(st.integers(0, 2)),
        )
    world.schedule()
    for number in range(draw(st.integers(2, 4))):
        world.job(
            f"high{number}",
            tasks=draw(st.integers(1, 4)),
            cpu=draw(st.sampled_from((500, 1000, 3000))),
            accelerators=draw(st.sampled_from((0, 0, 500, 1000))),
            priority=draw(st.sampled_from((200, 300))),
            tenant=draw(st.integers(1, 2)),
            gang=draw(st.booleans()),
        )
    return world


def step(draw: st.DrawFn, world: World) -> None:
    """Apply one random event to the cell."""
    happening: Callable[[st.DrawFn, World], None] = draw(st.sampled_from(_STEPS))
    happening(draw, world)


def _pass(draw: st.DrawFn, world: World) -> None:
    world.schedule(seed=draw(st.integers(0, 3)))


def _evict(draw: st.DrawFn, world: World) -> None:
    if running := world.in_state("running"):
        gone = draw(st.booleans())
        world.evict(*draw(st.sampled_from(running)), gone=gone, crashed=gone and draw(st.booleans()))


def _end(draw: st.DrawFn, world: World) -> None:
    if alive := [*world.in_state("running"), *world.in_state("pending")]:
        world.end(*draw(st.sampled_from(alive)), gone=draw(st.booleans()))


def _gone(draw: st.DrawFn, world: World) -> None:
    if world.departures:
        world.gone(*draw(st.sampled_from(sorted(world.departures))))


def _revive(draw: st.DrawFn, world: World) -> None:
    if dead := world.in_state("dead"):
        world.revive(*draw(st.sampled_from(dead)))


def _reserve(draw: st.DrawFn, world: World) -> None:
    if running := world.in_state("running"):
        job, index = draw(st.sampled_from(running))
        tenths = draw(st.sampled_from((1, 5, 10)))
        limit = world.task(job, index).requirement.limit
        world.reserve(job, index, cpu=limit[0] * tenths // 10, ram=limit[1] * tenths // 10)


def _shrink(draw: st.DrawFn, world: World) -> None:
    """Halve the CPU request of a living task, which fits on its machine in any case."""
    if alive := [*world.in_state("running"), *world.in_state("pending")]:
        job, index = draw(st.sampled_from(alive))
        before = world.task(job, index).requirement
        cpu, *others = before.limit
        world.update(job, index, Requirement((cpu // 2, *others)))


def _reprioritise(draw: st.DrawFn, world: World) -> None:
    """Change the priority of a job below production, for which no machine guarantees limits."""
    batch = [name for name, row in world.jobs.items() if row.submitted.priority < 120 and not row.ended]
    if batch:
        world.change_priority(draw(st.sampled_from(batch)), draw(st.sampled_from((0, 25, 101, 110))))


def _rebudget(draw: st.DrawFn, world: World) -> None:
    if alive := [name for name, row in world.jobs.items() if not row.ended]:
        name = draw(st.sampled_from(alive))
        world.change(name, gang=draw(st.booleans()), disruption_budget=draw(st.integers(0, 2)))


def _drain(draw: st.DrawFn, world: World) -> None:
    if world.machines:
        name = draw(st.sampled_from(sorted(world.machines)))
        world.machine_state(name, draw(st.sampled_from(("up", "draining", "down"))))


def _remove(draw: st.DrawFn, world: World) -> None:
    if len(world.machines) > 1:
        name = draw(st.sampled_from(sorted(world.machines)))
        for job, index in world.in_state("running"):
            if world.task(job, index).machine_id == world.id_of(name):
                world.evict(job, index, gone=True)
        world.remove(name)


def _install(draw: st.DrawFn, world: World) -> None:
    """Replace the packages that a random machine has."""
    if world.machines:
        name = draw(st.sampled_from(sorted(world.machines)))
        digests = draw(st.sets(st.sampled_from(("sha256:app1", "sha256:app2", "sha256:base", "sha256:old"))))
        world.has(name, *sorted(digests))


def _join(draw: st.DrawFn, world: World) -> None:
    add_machine(draw, world)


_STEPS = (
    _pass,
    _pass,
    _pass,
    _evict,
    _end,
    _gone,
    _revive,
    _reserve,
    _shrink,
    _reprioritise,
    _rebudget,
    _drain,
    _remove,
    _install,
    _join,
)
