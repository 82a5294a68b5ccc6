"""Whole cells for the benches, as the events that build them.

    google2011(clones=5)    the fifth of a real Borg cell, cloned to full size as §5.1 does: 12,260 machines
    synthetic(100_000, …)   machines and jobs drawn from its distribution

Source: Google's published cluster trace ClusterData2011_2 (John Wilkes, Charles Reiss; CC-BY 4.0); units in
`tests.bench.google2011`. The trace's attributes are hashed beyond use, so they are drawn here, seeded: `platform`
as in the file, `flash` on 30 % of the machines, `external_ip` on 10 %, one of three kernels (60, 30, 10 %); 27 % of
the jobs ask for one of the four, for platforms and kernels as often as machines have them. By §5.1, hard
constraints and anti-affinity of jobs of more tasks than half the machines are soft.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import msgspec
import numpy as np

from quota.vocabulary.resources import Vector
from scheduling.core.cell.state import CellState
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import Constraint, Group, Relation, Requirement
from scheduling.spec import job_spec, parser
from tests.bench import google2011 as trace

SEED = 2011
FLASH, EXTERNAL_IP = 0.30, 0.10
KERNELS = {"k1": 0.6, "k2": 0.3, "k3": 0.1}
CONSTRAINED_JOBS = 0.27
# How far sizes of drawn jobs lie from those of the real one, in steps of 1 %: few jobs ask for round numbers (§5.4).
JITTER_PERCENT = 10
PROD_FROM = 120  # production and monitoring

_Facts = dict[str, Any]  # of a machine, by the columns of `trace.COLUMNS`


@dataclass(frozen=True)
class Workload:
    """A cell: what it has, and what is asked of it."""

    machines: tuple[events.MachineSet, ...]
    jobs: tuple[events.JobSubmitted, ...]

    @property
    def tasks(self) -> int:
        return sum(group.size for job in self.jobs for group in job.groups)

    def only(self, wanted: Callable[[events.JobSubmitted], bool]) -> Workload:
        return replace(self, jobs=tuple(job for job in self.jobs if wanted(job)))

    def prod(self) -> Workload:
        """Its production and monitoring work alone."""
        return self.only(lambda job: job.priority >= PROD_FROM)

    def load(self) -> CellState:
        """Every machine up, every task pending. The collector then leaves it alone, as in every long-lived process."""
        state = CellState()
        for revision, event in enumerate((*self.machines, *self.jobs), start=1):
            state.apply(event, revision=revision, time=0.0)
        gc.collect()
        gc.freeze()
        return state


@dataclass(frozen=True)
class _Job:
    """A job of the trace. `limits`: per group its limit and how many tasks have it."""

    number: int
    priority: int
    latency_sensitive: bool
    apart: bool  # one task a machine
    limits: tuple[tuple[Vector, tuple[tuple[int, int], ...]], ...]

    @property
    def tasks(self) -> int:
        return sum(last - first + 1 for _, ranges in self.limits for first, last in ranges)


@cache
def _real_jobs() -> tuple[_Job, ...]:
    return tuple(_read(parser.parse(given), int(given["name"][1:])) for given in trace.specs())


def _read(read: job_spec.JobSpecification, number: int) -> _Job:
    groups = read.groups()
    return _Job(
        number,
        read.priority,
        read.latency_sensitive,
        apart=groups[0].requirement.max_per_machine == 1,
        limits=tuple((group.requirement.limit, group.ranges) for group in groups),
    )


def google2011(clones: int = 5, *, constraints: bool = True, seed: int = SEED) -> Workload:
    """The fifth of the real cell, `clones` times, each clone with the attributes and constraints of the first.

    Jobs of a clone are new ones: their id plus the clone's number. `seed` draws the attributes and constraints.
    """
    rng = np.random.default_rng(seed)
    real = _equipped(trace.machines(), rng)
    demands = [_demand(rng, real) if constraints else None for _ in _real_jobs()]
    return _workload(
        [real[number % len(real)] for number in range(clones * len(real))],
        (
            (job, demand, job.number + clone, f"j{job.number}-{clone}")
            for clone in range(clones)
            for job, demand in zip(_real_jobs(), demands, strict=True)
        ),
    )


def synthetic(machines: int, tasks: int, *, seed: int = SEED) -> Workload:
    """`machines` drawn from those of the real cell, and jobs from its jobs until they have `tasks` tasks.

    Drawn jobs ask for a little more or less than the real one, so that there are more classes in a larger cell.
    """
    rng = np.random.default_rng(seed)
    real = trace.machines()
    fleet = _equipped([real[number] for number in rng.integers(len(real), size=machines)], rng)
    jobs = ((job, _demand(rng, fleet), number, f"j{number}") for number, job in enumerate(_drawn(tasks, rng)))
    return _workload(fleet, jobs)


def _drawn(tasks: int, rng: np.random.Generator) -> Iterator[_Job]:
    jobs = _real_jobs()
    while tasks > 0:
        job = jobs[rng.integers(len(jobs))]
        factors = rng.integers(100 - JITTER_PERCENT, 100 + JITTER_PERCENT, size=2, endpoint=True)
        job = replace(job, limits=tuple((_scaled(limit, factors), ranges) for limit, ranges in job.limits))
        if job.tasks > tasks:  # the last one is cut to what is left
            job = replace(job, limits=((job.limits[0][0], ((0, tasks - 1),)),))
        yield job
        tasks -= job.tasks


def _scaled(limit: Vector, percent: Sequence[int]) -> Vector:
    cpu, ram = (int(-(-value * factor // 100)) for value, factor in zip(limit[:2], percent, strict=True))
    return (cpu, ram, *limit[2:])


def _equipped(machines: Sequence[_Facts], rng: np.random.Generator) -> list[_Facts]:
    """The same machines with attributes."""
    flash = rng.random(len(machines)) < FLASH
    external = rng.random(len(machines)) < EXTERNAL_IP
    kernel = rng.choice(list(KERNELS), size=len(machines), p=list(KERNELS.values()))
    return [
        {
            **machine,
            "attributes": {
                "kernel": str(kernel[n]),
                **({"flash": "true"} if flash[n] else {}),
                **({"external_ip": "true"} if external[n] else {}),
            },
        }
        for n, machine in enumerate(machines)
    ]


def _demand(rng: np.random.Generator, machines: Sequence[_Facts]) -> Constraint | None:
    """None, or one constraint; of platforms and kernels, that of a machine drawn at random."""
    if rng.random() >= CONSTRAINED_JOBS:
        return None
    name = ("platform", "flash", "external_ip", "kernel")[rng.integers(4)]
    one = machines[rng.integers(len(machines))]
    if name == "platform":
        return Constraint(name, Relation.EQUAL, one["platform"])
    if name == "kernel":
        return Constraint(name, Relation.EQUAL, one["attributes"][name])
    return Constraint(name, Relation.PRESENT)


def _workload(machines: Sequence[_Facts], jobs: Iterable[tuple[_Job, Constraint | None, int, str]]) -> Workload:
    return Workload(
        tuple(_machine(n, facts) for n, facts in enumerate(machines)),
        tuple(
            _submitted(job, job_id, number, name, demand, hard=2 * job.tasks <= len(machines))
            for job_id, (job, demand, number, name) in enumerate(jobs, start=1)
        ),
    )


def _machine(n: int, facts: _Facts) -> events.MachineSet:
    return events.MachineSet(
        machine_id=n + 1,
        hostname=f"m{n}",
        address="127.0.0.1",
        capacity=(facts["cpu_milli"], facts["ram_bytes"], facts["disk_bytes"], 0, 0, 0),
        platform=facts["platform"],
        attributes=facts["attributes"],
        rack=f"r{n // trace.RACK}",
        power_domain=f"p{n // (trace.RACK * trace.RACKS_PER_DOMAIN)}",
    )


def _submitted(
    job: _Job, job_id: int, number: int, name: str, demand: Constraint | None, *, hard: bool
) -> events.JobSubmitted:
    constraints = () if demand is None else (msgspec.structs.replace(demand, hard=hard),)
    tenant = number % trace.TENANTS
    return events.JobSubmitted(
        job_id=job_id,
        uid=f"{job_id:032x}",
        tenant_id=tenant + 1,
        tenant=f"t{tenant:02d}",
        name=name,
        job_kind="job",
        priority=job.priority,
        latency_sensitive=job.latency_sensitive,
        spec_version=1,
        groups=tuple(
            Group(Requirement(limit, constraints, max_per_machine=1 if job.apart and hard else 0), ranges)
            for limit, ranges in job.limits
        ),
    )
