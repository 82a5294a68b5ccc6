"""A sample of one fifth of Google's cell of 2011, with its jobs, as the input of experiments.

Google's trace contains only hashes of the attributes of machines. So the machines get random attributes, which depend
on a seed: `flash` on 30 % of the machines, `external_ip` on 10 %, and one of three kernels (on 60, 30 and 10 %). 27 %
of the jobs get a constraint: they ask for one of these attributes or for a platform. Frequent platforms and kernels are
requested more often. As in §5.1, a job with more tasks than half of the machines has only soft constraints, and its
tasks may share machines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from quota.vocabulary.resources import Vector
from scheduling.core.cell.attributes import holds
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import Constraint, Group, Relation, Requirement
from scheduling.simulator.experiments.packing.cell_work import CellWork
from scheduling.simulator.traces import google2011 as trace

SEED = 2011
FLASH, EXTERNAL_IP = 0.30, 0.10
KERNELS = {"k1": 0.6, "k2": 0.3, "k3": 0.1}
CONSTRAINED_JOBS = 0.27


@dataclass(frozen=True)
class TraceJob:
    """A job of the trace. `number`: its id in the trace. `apart`: whether its tasks must run on different machines.
    `limits`: each limit, and the ranges of tasks that have it.
    """

    number: int
    priority: int
    latency_sensitive: bool
    apart: bool
    limits: tuple[tuple[Vector, tuple[tuple[int, int], ...]], ...]

    @property
    def tasks(self) -> int:
        """Return the number of tasks."""
        return sum(last - first + 1 for _, ranges in self.limits for first, last in ranges)


def running_fifth(folder: Path, *, seed: int = SEED) -> CellWork:
    """Return the sample of one fifth of Google's cell, with the tasks that ran when the trace begins, and with the
    users of the trace.

    Constraints are random. A constraint of a job is soft if the job has more tasks than half of the machines that
    satisfy the constraint. Raises `FileNotFoundError` with the cure if a file is missing.
    """
    return soft_where_rare(fifth(folder, seed=seed, users=users_of(folder), running_only=True))


def fifth(
    folder: Path,
    clones: int = 1,
    *,
    constraints: bool = True,
    seed: int = SEED,
    users: Mapping[int, str] | None = None,
    running_only: bool = False,
) -> CellWork:
    """Return the sample of one fifth of Google's cell, copied `clones` times. Each copy has the same machines, jobs and
    constraints, with ids and names of its own. `folder`: contains the files of the trace. `seed`: determines the random
    attributes and constraints.

    `users`: the user of each job, by its number in the trace (see `users_of`). Without it, a job belongs to one of 40
    tenants, by its number. `running_only`: leave out the tasks that are pending when the trace begins. Raises
    `FileNotFoundError` with the cure if a file is missing.
    """
    rng = np.random.default_rng(seed)
    jobs = trace_jobs(folder, running_only=running_only)
    real = equipped(trace_machines(folder), rng)
    demands = [demand(rng, real) if constraints else None for _ in jobs]
    return assembled(
        [real[number % len(real)] for number in range(clones * len(real))],
        (
            (job, wanted, job.number + clone, f"j{job.number}-{clone}")
            for clone in range(clones)
            for job, wanted in zip(jobs, demands, strict=True)
        ),
        users,
    )


def trace_machines(folder: Path) -> list[events.MachineSet]:
    """Return the machines in the sample of one fifth of Google's cell, in file order, without attributes."""
    return [
        trace.machine_set(
            number, row["machine"], platform=row["platform"], capacity=trace.capacity_of(row["cpu"], row["mem"])
        )
        for number, row in enumerate(trace.rows(folder / trace.FIFTH_MACHINES))
    ]


def trace_jobs(folder: Path, *, running_only: bool = False) -> list[TraceJob]:
    """Return the jobs in the sample of one fifth of Google's cell, in file order. Tasks of a job are counted from 0."""
    found: dict[str, list[dict[str, str]]] = {}
    for row in trace.rows(folder / trace.FIFTH_TASKS):
        if running_only and row["state"] != "RUNNING":
            continue
        found.setdefault(row["job"], []).append(row)
    return [_trace_job(int(job), rows) for job, rows in found.items()]


def users_of(folder: Path) -> dict[int, str]:
    """Return the user of each job of the trace, by the number of the job."""
    return {int(row["job_id"]): f"u{row['user']}" for row in trace.rows(folder / trace.JOBS)}


def soft_where_rare(work: CellWork) -> CellWork:
    """Return the work with some constraints made soft: those of jobs that have more tasks than half of the machines
    that satisfy the constraint.
    """
    facts = [{"platform": machine.platform, "rack": machine.rack, **machine.attributes} for machine in work.machines]
    satisfying: dict[Constraint, int] = {}

    def soft(one: Constraint, tasks: int) -> Constraint:
        if one not in satisfying:
            satisfying[one] = sum(holds(one, own.get(one.attribute)) for own in facts)
        return msgspec.structs.replace(one, hard=one.hard and 2 * tasks <= satisfying[one])

    def changed(group: Group, tasks: int) -> Group:
        constraints = tuple(soft(one, tasks) for one in group.requirement.constraints)
        return Group(msgspec.structs.replace(group.requirement, constraints=constraints), group.ranges)

    jobs = []
    for job in work.jobs:
        tasks = sum(group.size for group in job.groups)
        jobs.append(msgspec.structs.replace(job, groups=tuple(changed(group, tasks) for group in job.groups)))
    return replace(work, jobs=tuple(jobs))


def equipped(machines: Sequence[events.MachineSet], rng: np.random.Generator) -> list[events.MachineSet]:
    """Return the same machines with random attributes."""
    flash = rng.random(len(machines)) < FLASH
    external = rng.random(len(machines)) < EXTERNAL_IP
    kernel = rng.choice(list(KERNELS), size=len(machines), p=list(KERNELS.values()))
    return [
        msgspec.structs.replace(
            machine,
            attributes={
                "kernel": str(kernel[n]),
                **({"flash": "true"} if flash[n] else {}),
                **({"external_ip": "true"} if external[n] else {}),
            },
        )
        for n, machine in enumerate(machines)
    ]


def demand(rng: np.random.Generator, machines: Sequence[events.MachineSet]) -> Constraint | None:
    """Return a random constraint for a job, or None. If it asks for a platform or a kernel, this is that of a random
    machine.
    """
    if rng.random() >= CONSTRAINED_JOBS:
        return None
    name = ("platform", "flash", "external_ip", "kernel")[rng.integers(4)]
    one = machines[int(rng.integers(len(machines)))]
    if name == "platform":
        return Constraint(name, Relation.EQUAL, one.platform)
    if name == "kernel":
        return Constraint(name, Relation.EQUAL, one.attributes[name])
    return Constraint(name, Relation.PRESENT)


def assembled(
    machines: Sequence[events.MachineSet],
    jobs: Iterable[tuple[TraceJob, Constraint | None, int, str]],
    users: Mapping[int, str] | None = None,
) -> CellWork:
    """Return the work that consists of the machines and jobs, which get new ids. Each job is given with its constraint,
    a number that chooses its tenant, and its name. `users`: the tenant of each job, by its number in the trace; used
    instead of that number. 40 machines are a rack, and ten racks a power domain.
    """
    fleet = tuple(
        msgspec.structs.replace(
            machine,
            machine_id=n + 1,
            hostname=f"m{n}",
            rack=f"r{n // trace.RACK}",
            power_domain=f"p{n // (trace.RACK * trace.RACKS_PER_DOMAIN)}",
        )
        for n, machine in enumerate(machines)
    )
    tenants: dict[str, int] = {}
    submitted = []
    for job_id, (job, wanted, number, name) in enumerate(jobs, start=1):
        tenant = f"t{number % trace.TENANTS:02d}" if users is None else users.get(job.number, "unknown")
        tenant_id = number % trace.TENANTS + 1 if users is None else tenants.setdefault(tenant, len(tenants) + 1)
        hard = 2 * job.tasks <= len(fleet)
        submitted.append(_submitted(job, job_id, tenant_id, tenant, name, wanted, hard=hard))
    return CellWork(fleet, tuple(submitted))


def _trace_job(number: int, rows: list[dict[str, str]]) -> TraceJob:
    ranges: dict[Vector, list[tuple[int, int]]] = {}
    for index, row in enumerate(rows):
        known = ranges.setdefault(trace.limit_of(row["cpu"], row["mem"], row["disk"]), [])
        if known and known[-1][1] + 1 == index:
            known[-1] = (known[-1][0], index)
        else:
            known.append((index, index))
    first = rows[0]
    return TraceJob(
        number,
        trace.PRIORITIES[int(first["priority"])],
        latency_sensitive=int(first["sched_class"]) >= 2,
        apart=bool(int(first["different_machines"])),
        limits=tuple((limit, tuple(spans)) for limit, spans in ranges.items()),
    )


def _submitted(
    job: TraceJob, job_id: int, tenant_id: int, tenant: str, name: str, wanted: Constraint | None, *, hard: bool
) -> events.JobSubmitted:
    constraints = () if wanted is None else (msgspec.structs.replace(wanted, hard=hard),)
    return events.JobSubmitted(
        job_id=job_id,
        uid=f"{job_id:032x}",
        tenant_id=tenant_id,
        tenant=tenant,
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
