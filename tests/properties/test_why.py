"""Property tests of the reasons given for pending tasks: each is checked on the cell, or counted the slow way."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from quota.vocabulary.resources import NAMES
from scheduling.core.explaining.explain import ExplainBudget, Explainer
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.reasons import WHOLE_CORES, ChangeKind, SuggestedChange, Why
from scheduling.core.vocabulary.requirement import Requirement
from tests.builders import World
from tests.properties.test_scheduling import policies, thorough
from tests.properties.worlds import add_job, worlds
from tests.unit.core.twins import Twin


def one_job_waits(world: World, data: st.DataObject) -> str:
    """End all pending tasks, submit a job of one task, and return the job's name."""
    for job, index in world.in_state("pending"):
        world.end(job, index)
    add_job(data.draw, world, most_tasks=1)
    return list(world.jobs)[-1]


def fitting(world: World, policy: Policy, job: str) -> int:
    """Return the number of machines on which the job's task could run, with preemption where it is allowed."""
    twin = Twin(world.state, policy, world.time)
    task = int(world.state.tasks.jobs[world.jobs[job].job_id].tasks[0])
    return sum(
        twin._may_hold(task, m) and (twin._fits(task, m, []) or twin._victims(task, m) is not None) for m in twin.there
    )


def changed(requirement: Requirement, change: SuggestedChange) -> Requirement:
    """Return the requirement after a suggested change, or after all parts of a combined change."""
    for part in change.parts:
        requirement = changed(requirement, part)
    if change.kind is ChangeKind.COMBINED:
        return requirement
    if change.constraint is not None:
        kept = [one for one in requirement.constraints if one != change.constraint]
        if change.instead is not None:
            kept.append(change.instead)
        return msgspec.structs.replace(requirement, constraints=tuple(kept))
    if change.kind is ChangeKind.RAISE:
        return msgspec.structs.replace(requirement, **{change.subject.replace("-", "_"): int(change.to)})
    if change.subject == WHOLE_CORES:
        return msgspec.structs.replace(requirement, whole_cores=int(change.to))
    limit = list(requirement.limit)
    limit[NAMES.index(change.subject)] = int(change.to)
    return msgspec.structs.replace(requirement, limit=tuple(limit))


@thorough
@given(worlds(waiting=0), policies, st.data())
def test_the_smallest_change_makes_it_fit_on_as_many_machines_as_promised(
    world: World, policy: Policy, data: st.DataObject
) -> None:
    name = one_job_waits(world, data)
    before = world.task(name, 0).requirement
    for why in world.plan(policy).unplaced:
        assert sum(one.machines for one in why.ruled_out) == why.machines
        assert fitting(world, policy, name) == 0
        for change in why.changes:
            after = changed(before, change)
            world.update(name, 0, after)
            assert len(world.plan(policy).assignments) == 1, change
            assert fitting(world, policy, name) == change.machines, change
            if change.kind is ChangeKind.LOWER:
                more = changed(before, msgspec.structs.replace(change, to=int(change.to) + 1))
                world.update(name, 0, more)
                assert world.plan(policy).assignments == (), f"{change} is not the smallest"
            if change.kind is ChangeKind.RAISE:
                fewer = changed(before, msgspec.structs.replace(change, to=int(change.to) - 1))
                world.update(name, 0, fewer)
                assert world.plan(policy).assignments == (), f"{change} is not the smallest"


@thorough
@given(worlds(waiting=0), policies, st.data())
def test_never_is_said_exactly_of_what_an_empty_cell_could_not_hold(
    world: World, policy: Policy, data: st.DataObject
) -> None:
    name = one_job_waits(world, data)
    (requirement,) = {task.requirement for task in world.jobs[name].tasks.values()}
    empty = World()
    for machine in world.machines.values():
        empty.send(msgspec.structs.replace(machine, state="up"))
    empty.job(name, requirement, latency_sensitive=world.jobs[name].submitted.latency_sensitive)
    for why in world.plan(policy).unplaced:
        assert why.never == (not empty.plan(policy).assignments)


@thorough
@given(worlds(waiting=0), policies, st.data())
def test_the_nearest_machine_lacks_what_is_said(world: World, policy: Policy, data: st.DataObject) -> None:
    name = one_job_waits(world, data)
    before = world.task(name, 0).requirement
    for why in world.plan(policy).unplaced:
        if why.nearest is None:
            continue
        asked = {**dict(zip(NAMES, before.limit, strict=True)), WHOLE_CORES: max(1, before.whole_cores)}
        assert all(lack.left + lack.short == asked.get(lack.resource, 1) for lack in why.nearest.lacks)
        if any(lack.left == 0 for lack in why.nearest.lacks):
            continue  # nothing is free there, so no smaller request would fit
        limit = list(before.limit)
        cores = before.whole_cores
        for lack in why.nearest.lacks:
            if lack.resource == WHOLE_CORES:
                cores = lack.left
            else:
                limit[NAMES.index(lack.resource)] = lack.left
        bounds = {bound.value.replace("-", "_"): 0 for bound in why.nearest.bounds} | {"whole_cores": cores}
        kept = tuple(one for one in before.constraints if one not in why.nearest.fails)
        world.update(name, 0, msgspec.structs.replace(before, limit=tuple(limit), constraints=kept, **bounds))
        assert world.plan(policy).assignments, why.nearest


@thorough
@given(worlds(), policies, st.integers(1, 3))
def test_a_budget_delays_verdicts_and_changes_none(world: World, policy: Policy, classes: int) -> None:
    """Explain a few pending tasks per pass on an unchanged cell. In the end all explanations are those of one full
    pass.
    """
    explainer = Explainer(ExplainBudget(classes=classes, every_s=10.0))
    world.schedule(policy)
    full = world.plan(policy).unplaced
    for _ in range(len(full) + 1):
        plan = world.plan(policy, explainer=explainer)
        assert [why.tasks for why in plan.unplaced] == [why.tasks for why in full]
        if not explainer.behind:
            break
    assert explainer.behind == 0
    assert [_without_start(why) for why in plan.unplaced] == [_without_start(why) for why in full]


def _without_start(why: Why) -> Why:
    return msgspec.structs.replace(why, expected=None)
