"""Questions about the capacity of a cell: how many tasks fit, and which tasks a submission would evict. Pure.

Each question runs one pass of the production scheduler on a copy of the cell.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import numpy as np

from quota.vocabulary.resources import Vector
from scheduling.core.cell.machines import UP
from scheduling.core.cell.state import CellState
from scheduling.core.explaining.explain import ExplainBudget, Explainer
from scheduling.core.pass_ import schedule_pass
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.plan import Plan
from scheduling.core.vocabulary.reasons import Why
from scheduling.core.vocabulary.requirement import Group, Requirement
from scheduling.simulator.simulation import Simulation

MOST_TASKS = 100_000
"""Largest number of fitting tasks that one question counts."""


EXPLAINED = 400
"""Largest number of classes of equal pending tasks that one question examines."""


class JobShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to ask about. `limit`: the request of each task. `tasks`: the number of tasks."""

    limit: Vector
    tasks: int = 1
    priority: int = 200
    latency_sensitive: bool = True
    max_per_machine: int = 0


@dataclass(frozen=True, slots=True)
class Fit:
    """The numbers of further tasks of a job that fit. `without_evictions`: tasks that fit into free capacity.
    `with_evictions`: all tasks that fit if the scheduler preempts others; then it evicts `evicted` tasks. `most`: the
    number of tasks that was tried. `why`: why the next task does not fit, or None.
    """

    without_evictions: int
    with_evictions: int
    evicted: int
    most: int
    machines: int
    why: Why | None


@dataclass(frozen=True, slots=True)
class Victims:
    """The tasks that a submission would evict. `placed`: how many of its tasks find a machine. `victims`: (job,
    priority, number of evicted tasks), the largest number first. `examples`: (evicted task, machine).
    """

    placed: int
    tasks: int
    victims: tuple[tuple[str, int, int], ...]
    examples: tuple[tuple[str, str], ...]
    why: Why | None

    @property
    def evicted(self) -> int:
        return sum(number for _, _, number in self.victims)


def fit(simulation: Simulation, job: JobShape) -> Fit:
    """Return how many more tasks of the job would fit now, beside all pending tasks of the cell."""
    state = simulation.state
    number = min(MOST_TASKS, _upper_bound(state, job))
    copied, job_id = _with(simulation, msgspec.structs.replace(job, tasks=number))
    plan = _decide(copied, job_id)
    own = [a for a in plan.assignments if a.job_id == job_id]
    return Fit(
        without_evictions=sum(not a.victims for a in own),
        with_evictions=len(own),
        evicted=sum(len(a.victims) for a in own),
        most=number,
        machines=len({a.machine_id for a in own}),
        why=_why(plan, job_id),
    )


def evict(simulation: Simulation, job: JobShape) -> Victims:
    """Return which running tasks the submission of the job would evict now."""
    copied, job_id = _with(simulation, job)
    plan = _decide(copied, job_id)
    state = copied.state
    counted: dict[int, int] = {}
    examples = []
    own = [a for a in plan.assignments if a.job_id == job_id]
    for assignment in own:
        for victim_job, index in assignment.victims:
            counted[victim_job] = counted.get(victim_job, 0) + 1
            host = state.machines.facts[state.machines.slot[assignment.machine_id]].hostname
            examples.append((f"{state.tasks.jobs[victim_job].name}/{index}", host))
    victims = sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))
    jobs = state.tasks.jobs
    return Victims(
        placed=len(own),
        tasks=job.tasks,
        victims=tuple((jobs[one].name, jobs[one].priority, number) for one, number in victims),
        examples=tuple(examples[:20]),
        why=_why(plan, job_id),
    )


def _upper_bound(state: CellState, job: JobShape) -> int:
    """Return an upper bound of the number of tasks that fit: the sum of the tasks that each machine could run if it
    were empty. Raises `ValueError` if the job asks for no resource.
    """
    up = state.machines.status == UP
    limit = np.zeros(state.axis, dtype=np.int64)
    limit[: len(job.limit)] = job.limit
    asked = limit > 0
    if not asked.any():
        raise ValueError("the job asks for no resource; give its tasks a limit of CPU and RAM")
    each = (state.machines.capacity[up][:, asked] // limit[asked]).min(axis=1, initial=2**40)
    if job.max_per_machine:
        each = np.minimum(each, job.max_per_machine)
    return max(1, int(each.sum()))


def _with(simulation: Simulation, job: JobShape) -> tuple[Simulation, int]:
    """Return a copy of the simulation in which the job is submitted, and the id of the job."""
    copied = simulation.copy()
    job_id = max(copied.state.tasks.jobs, default=0) + 1_000_000
    requirement = Requirement(job.limit, max_per_machine=job.max_per_machine)
    copied.submit(
        events.JobSubmitted(
            job_id=job_id,
            uid=f"{job_id:032x}",
            tenant_id=0,
            tenant="question",
            name="question",
            job_kind="job",
            priority=job.priority,
            latency_sensitive=job.latency_sensitive,
            spec_version=1,
            groups=(Group(requirement, ((0, job.tasks - 1),)),),
        )
    )
    return copied, job_id


def _decide(simulation: Simulation, job_id: int) -> Plan:
    """Return the plan of one pass without a limit on the number of its assignments."""
    policy = replace(simulation.settings.policy(), max_assignments=2**40)
    return schedule_pass(
        simulation.state,
        policy,
        now=simulation.now,
        rng=np.random.default_rng((simulation.seed, job_id)),
        explainer=Explainer(ExplainBudget(classes=EXPLAINED)),
    )


def _why(plan: Plan, job_id: int) -> Why | None:
    """Return why tasks of the job stay pending, or None if none do or if the pass did not examine the reason."""
    for why in plan.unplaced:
        if why.code and any(own == job_id for own, _ in why.tasks):
            return why
    return None
