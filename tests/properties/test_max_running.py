"""Property test of `max_running` on random cells: no pass lets more tasks of a job run than its bound allows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.placing.pass_cache import PassCache
from tests.builders import World
from tests.properties.test_scheduling import thorough
from tests.properties.worlds import step, worlds


def running(world: World) -> dict[str, int]:
    """Return how many tasks of each job run."""
    names = [name for name, _ in world.in_state("running")]
    return {name: names.count(name) for name in world.jobs}


@thorough
@given(data=st.data(), world=worlds(waiting=3, most_tasks=8))
def test_no_pass_exceeds_the_bound_of_a_job(data: st.DataObject, world: World) -> None:
    bounds: dict[str, int] = {}
    memory = PassCache()
    for _ in range(4):
        for name, row in world.jobs.items():
            if not row.ended and not row.submitted.gang and data.draw(st.booleans()):
                bounds[name] = data.draw(st.integers(0, 4))
                world.change(name, max_running=bounds[name])
        before = running(world)
        plan = world.plan(memory=memory)
        world.commit(plan.assignments)
        for name, number in running(world).items():
            if most := bounds.get(name, 0):
                assert number <= max(most, before[name]), (name, most, before[name], number)
        assert {world.name_of(job_id) for job_id in plan.bounded} <= {name for name, most in bounds.items() if most}
        step(data.draw, world)
    assert world.state.validate() == []
    assert world.from_rows().diff(world.state) == []
