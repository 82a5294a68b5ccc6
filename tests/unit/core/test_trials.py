"""Tests of trials: how many tasks of a job that the cell does not have would be placed, and the largest limits."""

from __future__ import annotations

import msgspec
import numpy as np

from quota.vocabulary.resources import CPU, RAM
from scheduling.core.trials.search import answer
from scheduling.core.trials.trial import Trial
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import Requirement
from scheduling.core.vocabulary.trials import (
    PARTS,
    Lowering,
    TrialGroup,
    TrialJob,
    TrialQuestion,
    Variant,
    cap_of,
    lowered,
)
from tests.builders import GIB, World, must, needs


def job(requirement: Requirement, tasks: int = 1, *, priority: int = 200, **others: bool | int) -> TrialJob:
    return TrialJob((TrialGroup(requirement, tasks),), priority, **others)  # type: ignore[arg-type]


def placed(world: World, wanted: TrialJob, closed: tuple[int, ...] = ()) -> tuple[int, int]:
    result = Trial(world.state, Policy()).placed(wanted, now=world.time, closed=closed)
    return result.placed, result.preempted


def full() -> World:
    """Return two machines of four cores, of which production tasks use three on each."""
    world = World().machine("m1", cpu=4000, rack="r1").machine("m2", cpu=4000, rack="r2")
    world.job("web", tasks=2, cpu=3000, priority=200)
    return world.place("web", 0, on="m1").place("web", 1, on="m2")


def test_a_trial_places_what_a_pass_places() -> None:
    """The same tasks, once on trial and once as a real job, are placed in the same number."""
    for cpu in (500, 1000, 1500):
        world = full()
        tried = placed(world, job(needs(cpu=cpu), 3))[0]
        world.job("new", tasks=3, cpu=cpu, priority=200)
        assert tried == len(world.plan().assignments), cpu


def test_a_trial_changes_nothing() -> None:
    world = full()
    trial = Trial(world.state, Policy())
    for _ in range(2):  # the second trial finds the capacity that the first one used
        assert trial.placed(job(needs(cpu=1000), 5), now=world.time).placed == 2
        assert trial.placed(job(needs(cpu=4000), 5, priority=400), now=world.time).preempted == 2
    assert world.state.validate() == []
    assert world.from_rows().diff(world.state) == []
    assert world.state.pending == 0


def test_a_priority_decides_what_is_preempted() -> None:
    world = full()
    assert placed(world, job(needs(cpu=2000))) == (0, 0), "production does not preempt production"
    assert placed(world, job(needs(cpu=2000), priority=400)) == (1, 1)


def test_a_trial_preempts_no_task_of_the_same_job() -> None:
    """With the changed job, its running tasks would have the higher priority too."""
    world = full()
    own = world.jobs["web"].job_id
    assert placed(world, job(needs(cpu=2000), priority=400, job_id=own)) == (0, 0)
    assert placed(world, job(needs(cpu=2000), 2, priority=400, job_id=own, gang=True)) == (0, 0)
    assert placed(world, job(needs(cpu=1000), 2, priority=400, job_id=own)) == (2, 0), "these preempt nothing"


def test_all_tasks_of_a_gang_are_placed_or_none() -> None:
    world = full()
    assert placed(world, job(needs(cpu=1000), 3, gang=True)) == (0, 0)
    assert placed(world, job(needs(cpu=1000), 2, gang=True)) == (2, 0)


def test_constraints_spreading_and_closed_machines_hold() -> None:
    world = full()
    assert placed(world, job(needs(cpu=500, constraints=(must("flash", "present"),)))) == (0, 0)
    assert placed(world, job(needs(cpu=500, max_per_machine=1), 4)) == (2, 0)
    assert placed(world, job(needs(cpu=1000), 2), closed=(1,)) == (1, 0)
    own = world.jobs["web"].job_id
    assert placed(world, job(needs(cpu=500, max_per_rack=1), 2, job_id=own)) == (0, 0), "its running tasks count"


def test_machines_on_which_a_task_of_the_job_crashed_are_not_tried() -> None:
    world = World().machine("m1").machine("m2").job("web", tasks=1, cpu=1000)
    world.place("web", 0, on="m1").evict("web", 0, gone=True, crashed=True)
    own = world.jobs["web"].job_id
    assert placed(world, job(needs(max_per_machine=1), 2, job_id=own)) == (1, 0)


def test_the_largest_limit_is_found_and_was_tried() -> None:
    world = full()
    base = job(needs(cpu=1600, ram=GIB), 2)
    question = TrialQuestion("", base, lowerings=(Lowering("cpu", (CPU,)), Lowering("ram", (RAM,))))
    found = answer(Trial(world.state, Policy()), question, now=world.time)
    assert found.base.placed == 0
    (cpu,) = found.results  # less RAM does not help
    assert (cpu.key, cpu.placed) == ("cpu", 2)
    assert cap_of(base, CPU, cpu.parts) == 1000
    assert placed(world, lowered(base, (CPU,), cpu.parts)) == (2, 0)
    assert placed(world, lowered(base, (CPU,), cpu.parts + 2)) == (0, 0)


def test_a_question_ends_with_its_time() -> None:
    world = full()
    base = job(needs(cpu=1600), 2)
    variants = tuple(Variant(f"v{number}", job(needs(cpu=900 + number))) for number in range(4))
    question = TrialQuestion("", base, variants, (Lowering("cpu", (CPU,)),))
    left = iter((True, True, False, False, False))
    found = answer(Trial(world.state, Policy()), question, now=world.time, has_time=lambda: next(left))
    assert [one.key for one in found.results] == ["v0", "v1"]
    assert found.untried == ("v2", "v3", "cpu")


def test_limits_are_lowered_in_useful_steps_and_never_to_nothing() -> None:
    small = Requirement((7, 2**21 + 5, 0, 0, 0, 0), whole_cores=0)
    base = job(small)
    assert lowered(base, (CPU, RAM), PARTS // 2).groups[0].requirement.limit[:2] == (7, 2**20)
    two = TrialJob((TrialGroup(needs(cpu=4000), 1), TrialGroup(needs(cpu=1000), 1)), 200)
    assert [one.requirement.limit[CPU] for one in lowered(two, (CPU,), PARTS // 2).groups] == [2000, 1000]
    cores = job(needs(cpu=4000, whole_cores=4))
    assert lowered(cores, (CPU,), PARTS // 2).groups[0].requirement.whole_cores == 2


def test_whole_cores_are_tried_in_a_cell_that_knows_none() -> None:
    world = full()
    assert placed(world, job(needs(cpu=1000, whole_cores=1), 3, latency_sensitive=True))[0] <= 2
    assert np.all(world.state.tasks.shapes.cores == 0), "the trial adds no shape"


def test_questions_and_answers_travel_as_bytes() -> None:
    base = job(needs(cpu=1600, constraints=(must("flash", "=", "yes"),)), 2, gang=True)
    question = TrialQuestion("t", base, (Variant("v", base),), (Lowering("cpu", (CPU,)),))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(question), type=TrialQuestion) == question
