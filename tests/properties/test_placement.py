"""Property tests of placement: gangs, accelerators, disruption budgets and runners-up, in random cells."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from quota.vocabulary.resources import ACCELERATORS
from scheduling.core.vocabulary.plan import Assignment
from scheduling.core.vocabulary.policy import Policy, Search
from scheduling.core.vocabulary.requirement import split_task_id
from tests.builders import World
from tests.properties.test_scheduling import policies, thorough
from tests.properties.worlds import full, worlds
from tests.unit.core.twins import RUNNERS_UP, WHOLE, Tenancy, Twin

ROUNDED = 1e-3  # scores are rounded to four places, part by part

# --- gangs


@thorough
@given(worlds(waiting=3) | full(), policies)
def test_a_gang_is_placed_whole_or_not_at_all(world: World, policy: Policy) -> None:
    plan = world.plan(policy)
    for name, row in world.jobs.items():
        if row.submitted.gang:
            waiting = [index for job, index in world.in_state("pending") if job == name]
            placed = [assignment.index for assignment in world.assignments(plan, name)]
            assert sorted(placed) in ([], waiting)


@thorough
@given(worlds() | full(), st.data())
def test_a_gang_that_finds_no_room_leaves_no_trace(world: World, data: st.DataObject) -> None:
    """Add a gang, which is a job whose tasks are all placed or none. If none is placed, the plan is as without it.

    The gang belongs to another tenant, so that it does not affect the order of the first tenant's jobs.
    """
    policy = Policy(search=Search(randomise=False, caching=data.draw(st.booleans())))
    without = world.plan(policy)
    cpu, priority = data.draw(st.sampled_from((500, 1000))), data.draw(st.sampled_from((200, 300, 310)))
    world.job("gang", tasks=data.draw(st.integers(2, 9)), cpu=cpu, priority=priority, tenant=9, gang=True)
    plan = world.plan(policy)
    if not world.assignments(plan, "gang"):
        assert plan.assignments == without.assignments
        assert plan.stats.preempted == without.stats.preempted


# --- accelerators


@thorough
@given(worlds() | full(), policies)
def test_no_accelerator_gets_more_than_it_has(world: World, policy: Policy) -> None:
    """Place tasks, and count from the rows what each accelerator is given. No device may be given more than it has.

    A share of less than one device must lie on one device, and a larger request must get whole devices.
    """
    world.schedule(policy)
    held: dict[tuple[int, int], list[int]] = defaultdict(list)
    for job, index in world.in_state("running"):
        task = world.task(job, index)
        want = task.requirement.limit[ACCELERATORS]
        assert len(task.devices) == -(-want // WHOLE)
        for device in task.devices:
            held[task.machine_id or 0, device].append(min(want, WHOLE))
    for name, machine in world.machines.items():
        capacity = machine.capacity[ACCELERATORS]
        free = [
            min(WHOLE, capacity - d * WHOLE) - sum(held.pop((machine.machine_id, d), []))
            for d in range(-(-capacity // WHOLE))
        ]
        assert all(left >= 0 for left in free)
        counted = world.free_devices(name)
        assert counted == free + [0] * (len(counted) - len(free))
    assert not held, "devices that no machine has"


# --- disruption budgets


@thorough
@given(worlds(waiting=3) | full(), policies)
def test_worse_ways_are_taken_only_where_no_better_one_is_left(world: World, policy: Policy) -> None:
    """Check every assignment: it preempts tasks only if no machine has enough free capacity.

    It breaks a disruption budget only if no choice of victims respects all budgets.
    """
    twin = Twin(world.state, policy, world.time)
    for assignment in world.plan(policy).assignments:
        task, victims = followed(twin, assignment)
        if victims:
            assert not twin.direct(task)
            assert victims == twin._victims(task, assignment.machine_id, budgets=within(twin, victims))
        if not within(twin, victims):
            assert not twin.preempting(task, budgets=True)
        assert twin.take(task, assignment.machine_id, victims) == assignment.devices


def followed(twin: Twin, assignment: Assignment) -> tuple[int, list[Tenancy]]:
    """Return the assigned task's row number in the state's tables, and its victims as they are in the twin."""
    task = int(twin.state.tasks.jobs[assignment.job_id].tasks[assignment.index])
    there = {split_task_id(tenancy.identity): tenancy for tenancy in twin.there[assignment.machine_id]}
    return task, [there[victim] for victim in assignment.victims]


def within(twin: Twin, victims: list[Tenancy]) -> bool:
    """Return whether the disruption budgets of their jobs allow evicting all these victims."""
    return twin._within_budgets(victims) == victims


# --- runners-up


@thorough
@given(worlds(), policies)
def test_runners_up_are_the_next_best_of_those_that_were_looked_at(world: World, policy: Policy) -> None:
    for assignment in world.plan(policy).assignments:
        totals = [total for _, total in assignment.runners_up]
        machines = [machine for machine, _ in assignment.runners_up]
        assert len(machines) <= RUNNERS_UP
        assert totals == sorted(totals, reverse=True)
        assert len({*machines, assignment.machine_id}) == len(machines) + 1
        assert not totals or totals[0] <= sum(assignment.score.values()) + ROUNDED
