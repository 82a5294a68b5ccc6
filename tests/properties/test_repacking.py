"""Property tests of the plans of re-packings, against the slow scheduler: every moved task fits on another machine,
with all others that move, and no plan breaks its rules.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.placing.queue import pending_in_order, pending_of
from scheduling.core.repacking.fitting_job import plan_for_job
from scheduling.core.repacking.free_machines import plan_free_machines
from scheduling.core.repacking.movable_tasks import MovableTasks, MovesLeft
from scheduling.core.repacking.relocation import Relocation
from scheduling.core.repacking.repack_plan import MachineMoves, RepackPlan, RepackRules, disrupted
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import split_task_id
from tests.builders import World
from tests.properties.test_scheduling import policies, thorough
from tests.properties.worlds import full, worlds
from tests.unit.core.twins import Twin


def rules_for(draw: st.DrawFn, world: World) -> RepackRules:
    """Draw the rules of a plan: most of its jobs may move some tasks."""
    jobs = [row.job_id for row in world.jobs.values()]
    machines = [machine.machine_id for machine in world.machines.values()]
    few = st.frozensets(st.sampled_from(machines), max_size=1)
    return RepackRules(
        most_moves=draw(st.integers(0, 12)),
        most_priority=draw(st.sampled_from((100, 359, 400))),
        job_moves={job: draw(st.sampled_from((0, 1, 3, 9, 9))) for job in jobs},
        kept_jobs=frozenset(job for job in jobs if draw(st.integers(0, 5)) == 0),
        kept_machines=draw(few),
        closed_machines=draw(few),
    )


def check_rules(world: World, plan: RepackPlan, rules: RepackRules) -> None:
    moved: Counter[int] = Counter()
    steps = plan.steps + plan.spares
    for step in steps:
        name = next(name for name, m in world.machines.items() if m.machine_id == step.machine_id)
        assert world.machines[name].state == "up"
        assert step.machine_id not in rules.kept_machines
        for move in step.moves:
            job_id, index = split_task_id(move.task_id)
            row = world.jobs[world.name_of(job_id)]
            assert row.tasks[index].machine_id == step.machine_id
            assert job_id not in rules.kept_jobs
            assert not row.submitted.gang
            assert row.submitted.priority <= rules.most_priority
            moved[job_id] += 1
    assert len({step.machine_id for step in steps}) == len(steps)
    assert disrupted(steps) == moved
    assert plan.moves <= moved.total() <= rules.most_moves
    assert all(number <= rules.job_moves[job] for job, number in moved.items())


def check_places(twin: Twin, plan: RepackPlan, closed: set[int]) -> None:
    """Check with the slow scheduler that all moved tasks fit together on the machines that the plan names."""
    steps = plan.steps + plan.spares
    moves = {move.task_id: move.to_machine for step in steps for move in step.moves}
    for step in steps:
        leaving = {move.task_id for move in step.moves}
        twin.there[step.machine_id] = [t for t in twin.there[step.machine_id] if t.identity not in leaving]
    slots = np.array(
        [twin.state.tasks.jobs[job].tasks[index] for job, index in map(split_task_id, moves)], dtype=np.int64
    )
    for slot in pending_in_order(twin.state.tasks, slots).tolist():
        to = moves[int(twin.state.tasks.id[slot])]
        assert to not in closed
        assert twin._may_hold(slot, to), "a constraint, a crash or spreading forbids it"
        assert twin._fits(slot, to, []), "it has too little free capacity"
        twin.take(slot, to, [])


def check_complete(world: World, policy: Policy, plan: RepackPlan, rules: RepackRules) -> None:
    """Check that no machine can be added to a plan that does not reach its goal."""
    state = world.state
    movable = MovableTasks(state, rules)
    slots = state.machines.slot
    closed = [slots[machine] for machine in rules.closed_machines if machine in slots]
    chosen = [slots[step.machine_id] for step in plan.steps]
    for machine in movable.cheapest_first():
        together = np.concatenate([movable.on(one) for one in (*chosen, machine)])
        if machine not in chosen and MovesLeft(rules).take(movable.disrupted(together)):
            found = Relocation(state, policy, now=world.time).places(
                together, np.array([*closed, *chosen, machine], dtype=np.int64)
            )
            assert (found < 0).any(), "one more machine could be freed"


def running_on(world: World, step: MachineMoves) -> int:
    return sum(world.task(*where).machine_id == step.machine_id for where in world.in_state("running"))


@thorough
@given(st.data(), worlds(steps=20) | full(), policies)
def test_a_plan_frees_machines_whose_tasks_fit_elsewhere(data: st.DataObject, world: World, policy: Policy) -> None:
    rules = rules_for(data.draw, world)
    number, spares = data.draw(st.integers(1, 4)), data.draw(st.integers(0, 2))
    before = world.state.fingerprint()
    plan = plan_free_machines(world.state, policy, rules, number=number, now=world.time, spares=spares)
    assert world.state.fingerprint() == before, "a plan changes nothing"
    check_rules(world, plan, rules)
    assert all(running_on(world, step) == len(step.moves) for step in plan.steps + plan.spares), "a task would stay"
    assert plan.reached == (len(plan.steps) >= number)
    assert len(plan.steps) <= number
    free = [step for step in plan.steps if not step.moves]
    assert plan.already_free == len(free)
    closed = rules.closed_machines | {step.machine_id for step in plan.steps + plan.spares}
    assert plan.reached or not plan.spares
    check_places(Twin(world.state, policy, world.time), plan, set(closed))
    if not plan.reached:
        check_complete(world, policy, plan, rules)
    up = [m for m in world.machines.values() if m.state == "up" and m.machine_id not in rules.kept_machines]
    empty = [m for m in up if running_on(world, MachineMoves(m.machine_id)) == 0]
    assert len(free) == min(number, len(empty)), "machines without tasks come first"


@thorough
@given(st.data(), worlds(steps=20, waiting=3) | full(), policies)
def test_a_plan_for_a_job_makes_its_first_task_fit(data: st.DataObject, world: World, policy: Policy) -> None:
    rules = rules_for(data.draw, world)
    queue = pending_in_order(world.state.tasks, pending_of(world.state.tasks, now=world.time))
    waiting = [split_task_id(int(world.state.tasks.id[slot])) for slot in queue]
    if not waiting:
        return
    job_id, _ = data.draw(st.sampled_from(waiting))
    first = next(int(slot) for slot in queue if split_task_id(int(world.state.tasks.id[slot]))[0] == job_id)
    before = world.state.fingerprint()
    plan = plan_for_job(world.state, policy, rules, job_id=job_id, now=world.time)
    assert world.state.fingerprint() == before
    check_rules(world, plan, rules)
    if not plan.reached:
        return
    twin = Twin(world.state, policy, world.time)
    closed = rules.closed_machines | rules.kept_machines
    if not plan.steps:
        assert any(o.machine_id not in closed for o in twin.direct(first))
        return
    (step,) = plan.steps
    assert step.moves
    check_places(twin, plan, {step.machine_id, *rules.closed_machines})
    assert step.machine_id not in closed
    assert twin._may_hold(first, step.machine_id)
    assert twin._fits(first, step.machine_id, [])
