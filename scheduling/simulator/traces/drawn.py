"""A random cell, which depends on a seed: machines, services and batch jobs of several tenants. It needs no files.

Services (prod) run all the time, and use about half of the CPU by their limits. Batch jobs arrive in a rhythm of days
and weeks, so that tasks wait at peaks. Machines fail as often as those of Google's cell in 2011.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from quota.vocabulary.resources import CPU, DISK, RAM, SIZE, Vector
from scheduling.core.vocabulary import events
from scheduling.core.vocabulary.requirement import Group, Requirement
from scheduling.simulator.behaviour import DAY_S, Drawn, outages
from scheduling.simulator.workload import Submissions, Workload

TENANTS = ("ads", "logs", "maps", "research", "search")
MACHINES, DAYS = 500, 7.0

_GIB = 2**30
_SHAPES = (("a1", 16, 64), ("b2", 32, 128), ("c3", 48, 256))  # platform, cores, GiB of RAM
_SHAPE_SHARES = (0.4, 0.4, 0.2)
_DISK_BYTES = 2 * 2**40
_RACK, _RACKS_PER_DOMAIN = 20, 5
_SERVICES = ("api", "cache", "feed", "frontend", "index", "login", "mixer", "queue", "store", "suggest")
_BATCH = ("backup", "crawl", "encode", "evaluate", "import", "join", "report", "sort", "train")
_PROD_SHARE = 0.5  # the share of the cell's CPU
_JOBS_PER_MACHINE_DAY = 3.4
_LARGEST_JOB = 100
_WEEKEND = 0.5
_HOUR_S = 3600.0


def drawn(*, machines: int = MACHINES, days: float = DAYS, seed: int = 2011) -> tuple[list[events.Event], Workload]:
    """Return the machines and the services of a random cell, and a workload for `days` days: batch jobs that arrive,
    failures of machines, usage and run times of tasks. All tasks are pending at first.
    """
    rng = np.random.default_rng((seed, machines))
    fleet = list(_fleet(rng, machines))
    services = list(_services(rng, fleet))
    arrivals = _batch_jobs(rng, machines, days, first_id=len(services) + 1)
    behaviour = Drawn(seed, median_s=7_200.0, spread_s=1.2)
    changes = outages(fleet, seed=seed, began=0.0, days=days)
    return [*fleet, *services], Workload(behaviour, arrivals, changes)


def _fleet(rng: np.random.Generator, machines: int) -> Iterator[events.MachineSet]:
    for number, shape in enumerate(rng.choice(len(_SHAPES), size=machines, p=_SHAPE_SHARES).tolist()):
        platform, cores, ram_gib = _SHAPES[shape]
        rack = number // _RACK
        yield events.MachineSet(
            machine_id=number + 1,
            hostname=f"m{number:04d}",
            address=f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
            capacity=_vector(1000 * cores, ram_gib, _DISK_BYTES),
            platform=platform,
            rack=f"r{rack:03d}",
            power_domain=f"p{rack // _RACKS_PER_DOMAIN}",
        )


def _services(rng: np.random.Generator, fleet: list[events.MachineSet]) -> Iterator[events.JobSubmitted]:
    cpu_milli = sum(machine.capacity[CPU] for machine in fleet)
    racks = math.ceil(len(fleet) / _RACK)
    asked = number = 0
    while asked < _PROD_SHARE * cpu_milli:
        number += 1
        tasks = int(rng.integers(3, _LARGEST_JOB // 2))
        cpu = int(rng.choice((500, 1000, 2000, 4000)))
        limit = _vector(cpu, int(rng.integers(1, 5)) * cpu / 1000, 10 * _GIB)
        monitoring = number % 20 == 0
        apart = max(tasks // 10, math.ceil(2 * tasks / racks))  # so that half of the racks are enough
        name = "monitor" if monitoring else _SERVICES[number % len(_SERVICES)]
        yield _job(number, f"{name}-{number}", limit, tasks, priority=360 if monitoring else 200, apart=apart)
        asked += tasks * cpu


def _batch_jobs(rng: np.random.Generator, machines: int, days: float, *, first_id: int) -> Submissions:
    times: list[float] = []
    for hour in range(math.ceil(days * 24)):
        day = hour / 24
        rhythm = (1 + 0.6 * math.sin(2 * math.pi * (day - 0.375))) * (_WEEKEND if day % 7 >= 5 else 1.0)
        number = rng.poisson(rhythm * machines * _JOBS_PER_MACHINE_DAY / 24)
        times += (_HOUR_S * (hour + rng.random(number))).tolist()
    times = sorted(time for time in times if time < days * DAY_S)
    jobs = []
    for place in range(len(times)):
        number = first_id + place
        tasks = min(_LARGEST_JOB, 1 + int(rng.pareto(1.1)))
        cpu = int(rng.choice((500, 1000, 2000, 4000), p=(0.2, 0.4, 0.3, 0.1)))
        limit = _vector(cpu, float(rng.choice((1, 2, 4))) * cpu / 1000, 5 * _GIB)
        priority = int(rng.choice((110, 25), p=(0.7, 0.3)))
        jobs.append(_job(number, f"{_BATCH[number % len(_BATCH)]}-{number}", limit, tasks, priority=priority))
    return Submissions(np.array(times), jobs)


def _job(number: int, name: str, limit: Vector, tasks: int, *, priority: int, apart: int = 0) -> events.JobSubmitted:
    """Return the submission of a job. `apart`: how many of its tasks may share a rack; 0: no limit."""
    tenant = number % len(TENANTS)
    return events.JobSubmitted(
        job_id=number,
        uid=f"{number:032x}",
        tenant_id=tenant + 1,
        tenant=TENANTS[tenant],
        name=name,
        job_kind="job",
        priority=priority,
        latency_sensitive=priority >= 120,
        spec_version=1,
        groups=(Group(Requirement(limit, max_per_rack=apart), ((0, tasks - 1),)),),
    )


def _vector(cpu_milli: int, ram_gib: float, disk: int) -> Vector:
    vector = [0] * SIZE
    vector[CPU], vector[RAM], vector[DISK] = cpu_milli, int(ram_gib * _GIB), disk
    return tuple(vector)
