"""Tests of the check that benchmarks apply to scheduling plans: it must notice each kind of wrong plan."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from scheduling.core.pass_ import schedule_pass
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Assignment, Plan
from scheduling.core.vocabulary.policy import Policy
from scheduling.core.vocabulary.requirement import Constraint, Group, Relation, Requirement
from tests.bench.cells import Workload
from tests.bench.proof import prove

POLICY = Policy()


def _machine(number: int, **attributes: str) -> events.MachineSet:
    return events.MachineSet(
        machine_id=number,
        hostname=f"m{number}",
        address="127.0.0.1",
        capacity=(1000, 1000, 1000, 0, 0, 0),
        attributes=attributes,
    )


def _job(number: int, tasks: int, cpu: int, *, priority: int = 200, **more: object) -> events.JobSubmitted:
    requirement = msgspec.structs.replace(Requirement((cpu, 1, 1, 0, 0, 0)), **more)
    return events.JobSubmitted(
        job_id=number,
        uid=f"{number:032x}",
        tenant_id=1,
        tenant="t",
        name=f"j{number}",
        job_kind="job",
        priority=priority,
        latency_sensitive=True,
        spec_version=1,
        groups=(Group(requirement, ((0, tasks - 1),)),),
    )


WORKLOAD = Workload(
    machines=(_machine(1, flash="true"), _machine(2), _machine(3)),
    jobs=(
        _job(1, 2, 500, max_per_machine=1),
        _job(2, 1, 300, constraints=(Constraint("flash", Relation.PRESENT),)),
        _job(3, 3, 900, priority=0),
    ),
)


def _plan() -> Plan:
    return schedule_pass(WORKLOAD.load(), POLICY, now=0.0, rng=np.random.default_rng(1))


def test_a_pass_of_ours_holds() -> None:
    plan = _plan()
    proof = prove(WORKLOAD, plan, POLICY)
    assert (proof.fits_left, proof.violations, proof.prod_unplaced) == (0, 0, 0)
    assert proof.placed == len(plan.assignments) < WORKLOAD.tasks


def test_a_task_that_was_left_out_is_seen() -> None:
    plan = _plan()
    proof = prove(WORKLOAD, replace(plan, assignments=plan.assignments[1:]), POLICY)
    assert (proof.fits_left, proof.prod_unplaced) == (1, 1)


def test_a_task_that_fits_only_by_preemption_is_seen() -> None:
    plan = Plan(revision=0, assignments=tuple(Assignment(3, n, n + 1) for n in range(3)))
    assert prove(WORKLOAD, plan, POLICY).fits_left == 3


@pytest.mark.parametrize(
    "assignments",
    [
        (Assignment(1, 0, 1), Assignment(3, 0, 1)),  # more than the machine has
        (Assignment(1, 0, 2), Assignment(1, 1, 2)),  # two tasks where one is allowed
        (Assignment(2, 0, 2),),  # that machine has no flash
    ],
)
def test_a_broken_rule_is_seen(assignments: tuple[Assignment, ...]) -> None:
    assert prove(WORKLOAD, Plan(revision=0, assignments=assignments), POLICY).violations == 1
