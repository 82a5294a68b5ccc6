"""Changed copies of a real cell, so that packing is also measured on work for which the scheduler was not tuned.

Each function returns the production and monitoring jobs of one cell. The base is a sample of one fifth of Google's cell
of 2011. `seed` determines all random choices. The scheduler's parameters were chosen with the seeds of `CHOSEN_ON`, and
the bench reports other seeds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import numpy as np

from quota.vocabulary.resources import CPU, RAM, Vector
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import Group, Requirement
from tests.bench import cells
from tests.bench.cells import Workload

CHOSEN_ON = (1, 2, 3)
REPORTED = 2011
PRIORITY = 200
# The CPU that the jobs of a changed cell request, as a share of the capacity of its machines.
ASKED = 0.70
# The smallest and largest share of the machines that an added job with one task per machine needs.
APART_FROM, APART_TO = 0.20, 0.45
_CPU_M = (400, 800, 1600, 2400)
_RAM_PER_CPU_M = 2_500_000


def fifth(seed: int) -> Workload:
    """Return the sample of one fifth of Google's cell, unchanged. `seed` determines its random attributes and
    constraints.
    """
    return cells.google2011(1, constraints=False, seed=seed).prod()


def anti_affine(seed: int) -> Workload:
    """Return the sample cell with additional large jobs that allow one task per machine and have half of all tasks."""
    rng = np.random.default_rng(seed)
    base = fifth(seed)
    half = base.tasks
    added: list[events.JobSubmitted] = []
    tasks = 0
    number = max(job.job_id for job in base.jobs)
    while tasks < half:
        size = int(rng.uniform(APART_FROM, APART_TO) * len(base.machines))
        cpu = _CPU_M[rng.integers(len(_CPU_M))]
        requirement = Requirement((cpu, cpu * _RAM_PER_CPU_M, 2**30, 0, 0, 0), max_per_machine=1)
        number += 1
        added.append(_job(number, f"apart{number}", Group(requirement, ((0, size - 1),))))
        tasks += size
    return _sized(_shuffled(replace(base, jobs=(*base.jobs, *added)), rng), rng, ASKED + 0.1)


def ram_scarce(seed: int) -> Workload:
    """Return the sample cell with larger RAM requests, so that RAM is used up before CPU."""
    base = fifth(seed)
    most = max(machine.capacity[RAM] for machine in base.machines)
    factor = (asked(base, CPU) + 0.06) / asked(base, RAM)
    return _changed(base, lambda job, limit: _with(limit, RAM, min(most, int(limit[RAM] * factor))))


def small_machines(seed: int) -> Workload:
    """Return the sample cell with small machines only, and without the jobs that have a task too large for them."""
    rng = np.random.default_rng(seed)
    base = fifth(seed)
    kinds = Counter((m.capacity[CPU], m.capacity[RAM]) for m in base.machines)
    (_, usual_ram), _ = kinds.most_common(1)[0]
    small = [m for m in base.machines if m.capacity[RAM] < usual_ram]
    machines = tuple(
        msgspec.structs.replace(
            small[number % len(small)],
            machine_id=number + 1,
            hostname=f"m{number}",
            rack=f"r{number // 40}",
            power_domain=f"p{number // 400}",
        )
        for number in range(len(base.machines))
    )
    cpu = max(m.capacity[CPU] for m in machines)
    ram = max(m.capacity[RAM] for m in machines)
    fitting = base.only(
        lambda job: all(g.requirement.limit[CPU] <= cpu and g.requirement.limit[RAM] <= ram for g in job.groups)
    )
    return _sized(replace(fitting, machines=machines), rng, ASKED)


def redrawn(seed: int) -> Workload:
    """Return the sample cell, with CPU, RAM and number of tasks of each job taken from three other jobs at random."""
    rng = np.random.default_rng(seed)
    base = fifth(seed)
    sizes = [job.groups[0].requirement.limit for job in base.jobs]
    numbers = [sum(group.size for group in job.groups) for job in base.jobs]
    largest = int(0.45 * len(base.machines))
    jobs = []
    for job in base.jobs:
        cpu, ram = sizes[rng.integers(len(sizes))][CPU], sizes[rng.integers(len(sizes))][RAM]
        factors = np.exp(rng.normal(0.0, 0.2, size=2))
        limit = _with(_with(job.groups[0].requirement.limit, CPU, int(cpu * factors[0])), RAM, int(ram * factors[1]))
        limit = _with(_with(limit, CPU, min(30_000, limit[CPU])), RAM, min(60 * 2**30, limit[RAM]))
        tasks = min(largest, numbers[rng.integers(len(numbers))])
        requirement = msgspec.structs.replace(job.groups[0].requirement, limit=limit)
        jobs.append(msgspec.structs.replace(job, groups=(Group(requirement, ((0, tasks - 1),)),)))
    return _sized(replace(base, jobs=tuple(jobs)), rng, ASKED)


def half(seed: int) -> Workload:
    """Return a random half of the machines and a random half of the jobs of the sample cell."""
    rng = np.random.default_rng(seed)
    base = fifth(seed)
    machines = np.sort(rng.permutation(len(base.machines))[: len(base.machines) // 2])
    jobs = np.sort(rng.permutation(len(base.jobs))[: len(base.jobs) // 2])
    chosen = Workload(tuple(base.machines[m] for m in machines), tuple(base.jobs[j] for j in jobs))
    return _softened(_sized(chosen, rng, ASKED))


CELLS: Mapping[str, Callable[[int], Workload]] = {
    "fifth": fifth,
    "anti-affine": anti_affine,
    "ram": ram_scarce,
    "small-machines": small_machines,
    "redrawn": redrawn,
    "half-a": half,
    "half-b": lambda seed: half(seed + 1_000),
}


def asked(workload: Workload, resource: int) -> float:
    """Return the amount of a resource that all tasks request, as a share of the capacity of all machines."""
    wanted = sum(group.requirement.limit[resource] * group.size for job in workload.jobs for group in job.groups)
    return wanted / sum(machine.capacity[resource] for machine in workload.machines)


def _with(limit: Vector, resource: int, amount: int) -> Vector:
    changed = list(limit)
    changed[resource] = max(1, amount) if limit[resource] else 0
    return tuple(changed)


def _changed(workload: Workload, change: Callable[[events.JobSubmitted, Vector], Vector]) -> Workload:
    return replace(
        workload,
        jobs=tuple(
            msgspec.structs.replace(
                job,
                groups=tuple(
                    Group(
                        msgspec.structs.replace(group.requirement, limit=change(job, group.requirement.limit)),
                        group.ranges,
                    )
                    for group in job.groups
                ),
            )
            for job in workload.jobs
        ),
    )


def _shuffled(workload: Workload, rng: np.random.Generator) -> Workload:
    """Return the workload with its jobs in a random order, and with new ids 1 … J in that order."""
    order = rng.permutation(len(workload.jobs))
    return replace(
        workload,
        jobs=tuple(
            msgspec.structs.replace(workload.jobs[at], job_id=number) for number, at in enumerate(order, start=1)
        ),
    )


def _sized(workload: Workload, rng: np.random.Generator, share: float) -> Workload:
    """Repeat or leave out random jobs, until they request about `share` of the scarcest resource."""
    jobs, left = [], share
    for at in rng.permutation(np.tile(np.arange(len(workload.jobs)), 4)):
        job = workload.jobs[at]
        needed = max(asked(replace(workload, jobs=(job,)), r) for r in (CPU, RAM))
        if needed <= left:
            number = len(jobs) + 1
            jobs.append(msgspec.structs.replace(job, job_id=number, uid=f"{number:032x}", name=f"{job.name}-{number}"))
            left = share - max(asked(replace(workload, jobs=tuple(jobs)), r) for r in (CPU, RAM))
    return replace(workload, jobs=tuple(jobs))


def _softened(workload: Workload) -> Workload:
    """Make the constraints and anti-affinity of very large jobs soft, as in §5.1.

    A job is very large if it has more tasks than half of the machines.
    """
    jobs = []
    for job in workload.jobs:
        if 2 * sum(group.size for group in job.groups) > len(workload.machines):
            groups = tuple(
                Group(
                    msgspec.structs.replace(
                        group.requirement,
                        max_per_machine=0,
                        constraints=tuple(
                            msgspec.structs.replace(one, hard=False) for one in group.requirement.constraints
                        ),
                    ),
                    group.ranges,
                )
                for group in job.groups
            )
            job = msgspec.structs.replace(job, groups=groups)
        jobs.append(job)
    return replace(workload, jobs=tuple(jobs))


def _job(number: int, name: str, group: Group) -> events.JobSubmitted:
    tenant = number % 40
    return events.JobSubmitted(
        job_id=number,
        uid=f"{number:032x}",
        tenant_id=tenant + 1,
        tenant=f"t{tenant:02d}",
        name=name,
        job_kind="job",
        priority=PRIORITY,
        latency_sensitive=True,
        spec_version=1,
        groups=(group,),
    )
