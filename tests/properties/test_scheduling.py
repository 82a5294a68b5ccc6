"""Property tests of scheduling passes on random cells: capacity, preemption, determinism, and the compiled kernels."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quota.vocabulary.bands import DEFAULT_BANDS
from quota.vocabulary.resources import NAMES
from scheduling.core.cell.state import CellState
from scheduling.core.pass_ import schedule_pass
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Assignment, Plan
from scheduling.core.vocabulary.policy import Policy, Search
from scheduling.core.vocabulary.preemption_rule import preemption_ceiling
from scheduling.core.vocabulary.requirement import split_task_id
from tests.builders import World
from tests.examples import examples
from tests.properties.worlds import add_job, add_machine, full, worlds
from tests.unit.core.twins import Twin, may_preempt

thorough = settings(
    max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
policies = st.builds(
    Policy,
    search=st.builds(
        Search, sample=st.integers(1, 4), randomise=st.booleans(), caching=st.booleans(), classes=st.booleans()
    ),
    scorer=st.sampled_from(("hybrid", "best-fit", "e-pvm")),
    batch_in_prod_by_reservation=st.booleans(),
)


def over_capacity(world: World, policy: Policy) -> list[str]:
    """Return the machines that hold more than their capacity, as texts. The sums are computed from the rows alone.

    Reservations of all tasks must fit, and so must the limits of the tasks that the policy counts by limit (§5.5).
    """
    found = []
    for name, machine in world.machines.items():
        reserved, prod = np.zeros(len(NAMES), np.int64), np.zeros(len(NAMES), np.int64)
        for job, index in world.in_state("running"):
            task, submitted = world.task(job, index), world.jobs[job].submitted
            if task.machine_id == machine.machine_id:
                reserved += task.reservation
                if policy.by_limit(submitted.priority, submitted.latency_sensitive):
                    prod += task.requirement.limit
        if (reserved > machine.capacity).any() or (prod > machine.capacity).any():
            found.append(f"{name}: {reserved} and {prod} of {machine.capacity}")
    return found


@thorough
@given(worlds(), policies)
def test_no_machine_gets_more_than_it_has(world: World, policy: Policy) -> None:
    # Reservations that grow may fill a machine beyond itself (§5.5); a pass must not.
    sound_before = not over_capacity(world, policy)
    world.schedule(policy)
    if sound_before:
        assert over_capacity(world, policy) == []
    assert world.state.validate() == []


def over_cores(world: World, leaving: Collection[tuple[int, int]] = ()) -> list[str]:
    """Return the machines whose latency-sensitive tasks hold more whole cores than the machine has, as texts.

    The sums are computed from the rows. `leaving`: victims that still run, which are not counted.
    """
    found = []
    for name, machine in world.machines.items():
        there = [
            (job, index)
            for job, index in world.in_state("running")
            if world.task(job, index).machine_id == machine.machine_id
        ]
        there += [
            (job, index)
            for (job, index, _), (m, _) in world.departures.items()
            if m == machine.machine_id and (world.jobs[job].job_id, index) not in leaving
        ]
        cores = [
            world.task(job, index).requirement.whole_cores
            for job, index in there
            if world.jobs[job].submitted.latency_sensitive
        ]
        if sum(cores) and sum(cores) + (0 in cores) > machine.capacity[0] // 1000:
            found.append(f"{name}: {cores} of {machine.capacity[0]}")
    return found


@thorough
@given(worlds(), policies)
def test_no_machine_gives_away_more_whole_cores_than_it_has(world: World, policy: Policy) -> None:
    sound_before = not over_cores(world)
    plan = world.schedule(policy)
    if sound_before:
        assert over_cores(world, {victim for a in plan.assignments for victim in a.victims}) == []


@thorough
@given(worlds(), policies)
def test_nobody_is_preempted_by_his_equals_or_within_production(world: World, policy: Policy) -> None:
    priority = {row.job_id: row.submitted.priority for row in world.jobs.values()}
    for assignment in world.plan(policy).assignments:
        for job_id, _ in assignment.victims:
            assert may_preempt(priority[assignment.job_id], priority[job_id], DEFAULT_BANDS)
        order = [priority[job_id] for job_id, _ in assignment.victims]
        assert order == sorted(order)


@thorough
@given(worlds(), policies)
def test_no_victim_is_unnecessary(world: World, policy: Policy) -> None:
    """Check each victim of a plan: if that victim stays, the task that preempts it does not fit."""
    plan = world.plan(policy)
    for assignment in plan.assignments:
        for spared in assignment.victims:
            there = World()
            there.state.load(world.rows(), revision=1)
            _commit(there.state, world, plan, until=assignment.job_id, index=assignment.index, spare=spared)
            alone = Twin(there.state, policy, world.time)
            task = there.state.tasks.jobs[assignment.job_id].tasks[assignment.index]
            assert not alone._fits(int(task), assignment.machine_id, [])


def _commit(state: CellState, world: World, plan: Plan, *, until: int, index: int, spare: tuple[int, int]) -> None:
    for assignment in plan.assignments:
        for job_id, victim in assignment.victims:
            if (job_id, victim) != spare:
                task = world.task(world.name_of(job_id), victim)
                evicted = events.TaskEvicted(
                    job_id=job_id,
                    index=victim,
                    machine_id=task.machine_id or 0,
                    incarnation=task.incarnation,
                    cause="preemption",
                )
                state.apply(evicted, revision=1, time=0.0)
        if (assignment.job_id, assignment.index) == (until, index):
            return
        placed = events.TaskPlaced(
            job_id=assignment.job_id,
            index=assignment.index,
            machine_id=assignment.machine_id,
            incarnation=1000,
            ports=assignment.ports,
            devices=assignment.devices,
        )
        state.apply(placed, revision=1, time=0.0)


@thorough
@given(worlds())
def test_rows_and_journal_give_the_same_state(world: World) -> None:
    assert world.from_rows().diff(world.state) == []
    replayed = CellState()
    for revision, (event, time) in enumerate(world.journal, start=1):
        replayed.apply(events.decode(events.encode(event)), revision=revision, time=time)
    assert replayed.diff(world.state) == []
    assert replayed.validate() == []
    assert world.from_rows().validate() == []


@thorough
@given(worlds(), policies, st.integers(0, 2**32))
def test_a_plan_depends_on_content_and_seed_alone(world: World, policy: Policy, seed: int) -> None:
    """Change the order in which rows are loaded. The plan must be equal, and planning must not change the state."""
    before = world.state.fingerprint()
    plan = world.plan(policy, seed=seed)
    assert world.plan(policy, seed=seed) == plan
    assert world.state.fingerprint() == before
    stream = list(world.rows())
    machines = [pair for pair in stream if isinstance(pair[0], events.MachineSet)]
    held = [pair for pair in stream if isinstance(pair[0], events.PackagesHeld)]
    rest: dict[int, list[tuple[events.Event, float]]] = {}
    for pair in stream[len(machines) + len(held) :]:
        job_id = pair[0].tasks[0][0] if isinstance(pair[0], events.ReservationsSet) else pair[0].job_id
        rest.setdefault(job_id, []).append(pair)
    shuffled = CellState()
    backwards = [pair for job_id in sorted(rest, reverse=True) for pair in rest[job_id]]
    shuffled.load([*reversed(machines), *held, *backwards], revision=world.state.revision)
    _keep_preferences(world.state, shuffled)
    other = schedule_pass(shuffled, policy, now=world.time, rng=np.random.default_rng(seed))
    assert [_decision(a) for a in other.assignments] == [_decision(a) for a in plan.assignments]
    assert other.unplaced == plan.unplaced


def _keep_preferences(source: CellState, target: CellState) -> None:
    """Copy each task's last machine, which is a preference that the rows do not contain, to another state."""
    for job in target.tasks.jobs.values():
        if job.id in source.tasks.jobs:
            for index, slot in enumerate(job.tasks):
                target.tasks.last[slot] = source.tasks.last[source.tasks.jobs[job.id].tasks[index]]


def _decision(assignment: Assignment) -> tuple[object, ...]:
    """Return the fields of an assignment to compare, with the number of ports in place of the port numbers."""
    return (
        assignment.job_id,
        assignment.index,
        assignment.machine_id,
        assignment.victims,
        assignment.score,
        assignment.packages,
        len(assignment.ports),
        assignment.devices,
        assignment.runners_up,
    )


@thorough
@given(st.data(), worlds(waiting=0), policies)
def test_another_machine_never_makes_a_task_unplaceable(data: st.DataObject, world: World, policy: Policy) -> None:
    for job, index in world.in_state("pending"):
        world.end(job, index)
    add_job(data.draw, world, most_tasks=1)
    placed = len(world.plan(policy).assignments)
    add_machine(data.draw, world, machine_id=data.draw(st.sampled_from((0, 10**9))))
    assert len(world.plan(policy).assignments) >= placed


@thorough
@given(worlds() | full(), st.sampled_from(("hybrid", "best-fit")), st.booleans())
def test_kernels_agree_with_their_slow_twin(world: World, scorer: str, batch_by_reservation: bool) -> None:
    policy = Policy(search=Search(randomise=False), scorer=scorer, batch_in_prod_by_reservation=batch_by_reservation)
    plan = world.plan(policy)
    expected = Twin(world.state, policy, world.time).run()
    assert {(a.job_id, a.index): (a.machine_id, list(a.victims), a.devices) for a in plan.assignments} == {
        key: (decision.machine_id, decision.victims, decision.devices) for key, decision in expected.items()
    }
    for a in plan.assignments:
        # If preemption was tried for a class, its runners-up include machines with victims.
        best = expected[a.job_id, a.index].runners_up
        assert [machine for machine, _ in a.runners_up][: len(best)] == best


@thorough
@given(worlds(), st.integers(1, 3))
def test_what_is_left_pending_fits_nowhere(world: World, sample: int) -> None:
    """Commit a plan, and check that no pending task fits on any machine without preemption (§3.2).

    Gangs are left out, because a gang waits until all its tasks fit.
    """
    policy = Policy(search=Search(sample=sample))
    plan = world.schedule(policy)
    victims = {victim for a in plan.assignments for victim in a.victims}
    gangs = {row.job_id for row in world.jobs.values() if row.submitted.gang}
    left = {job_id for why in plan.unplaced for job_id, _ in why.tasks} - gangs
    after = Twin(world.state, policy, world.time)
    for task in np.flatnonzero(world.state.tasks.state == 1).tolist():
        identity = split_task_id(int(world.state.tasks.id[task]))
        if identity not in victims and identity[0] in left:
            assert not [m for m in after.there if after._may_hold(task, m) and after._fits(task, m, [])]


def test_ports_of_a_plan_are_nobody_elses() -> None:
    world = World().machine("m1", cpu=64_000, ports=10).job("a", tasks=3, ports=3, cpu=10, ram=1)
    plan = world.schedule()
    ports = [port for a in plan.assignments for port in a.ports]
    assert len(set(ports)) == len(ports) == 9
    world.job("b", ports=2, cpu=10, ram=1)
    assert world.schedule().assignments == ()
    world.evict("a", 0)
    assert not world.assignments(world.plan(), "b"), "the departed still hold their ports"
    world.gone("a", 0, 1)
    assert world.state.validate() == []


@pytest.mark.parametrize("priority", range(451))
def test_ceiling_says_what_may_preempt_says(priority: int) -> None:
    ceiling = preemption_ceiling(priority)
    for victim in range(451):
        assert (victim < ceiling) == may_preempt(priority, victim, DEFAULT_BANDS)
