"""Questions to a master, and its answers: how many tasks of a job would be placed now if the job were another one
(§2.6).

A question has one job as it is, variants of it, and lowerings: resources of which the master finds the largest limit
with which as many tasks as possible are placed.
"""

from __future__ import annotations

import math

import msgspec

from quota.vocabulary.resources import CPU, DISK, DISK_BANDWIDTH, RAM
from scheduling.core.vocabulary.requirement import Requirement

# A trial has at most this many tasks.
MOST_TASKS = 500
# A question has at most this many variants and lowerings.
MOST_VARIANTS = 48
# The largest limit is found to this part of the requested limit.
PARTS = 256
# Limits below this part of the request are not suggested.
LEAST_PARTS = 64
# Limits are rounded down to multiples of these, so that a job file has no odd numbers.
_STEP = {CPU: 10, RAM: 2**20, DISK: 2**20, DISK_BANDWIDTH: 2**10}


class TrialGroup(msgspec.Struct, frozen=True, array_like=True):
    """`tasks` equal tasks."""

    requirement: Requirement
    tasks: int


class TrialJob(msgspec.Struct, frozen=True, array_like=True):
    """Tasks of one job that a trial places. `job_id`: the job in the cell to which they belong, or 0. Its running tasks
    count for the maximum numbers of tasks per machine, rack and power domain. `run_s`: each run ends within this
    many seconds; 0 if a task has no time limit. `tenant`: decides which machine pools the tasks may use.
    """

    groups: tuple[TrialGroup, ...]
    priority: int
    latency_sensitive: bool = False
    gang: bool = False
    job_id: int = 0
    run_s: float = 0.0
    tenant: str = ""

    @property
    def tasks(self) -> int:
        return sum(group.tasks for group in self.groups)


class Variant(msgspec.Struct, frozen=True, array_like=True):
    """A job to try. `key`: names the result."""

    key: str
    job: TrialJob


class Lowering(msgspec.Struct, frozen=True, array_like=True):
    """Resources whose limits are lowered together, each to the same part of the largest requested limit."""

    key: str
    resources: tuple[int, ...]


class TrialQuestion(msgspec.Struct, frozen=True, array_like=True):
    """A question to the master of a cell. `token`: names the place of the answer."""

    token: str
    base: TrialJob
    variants: tuple[Variant, ...] = ()
    lowerings: tuple[Lowering, ...] = ()


class TrialResult(msgspec.Struct, frozen=True, array_like=True):
    """The result of a trial. `placed`: how many tasks would be placed. `preempted`: how many tasks of other jobs they
    would preempt. `parts`: for a lowering, the limit in parts of `PARTS` of the requested limit.
    """

    key: str
    placed: int
    preempted: int = 0
    parts: int = 0


class TrialAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The answer of a master. `revision`: the newest revision of the state of the cell that was tried. `base`: the
    result for the job as it is. `results`: in the order of the question, without trials that place no task. `untried`:
    the keys of trials for which no time was left.
    """

    revision: int
    at: float
    base: TrialResult
    results: tuple[TrialResult, ...] = ()
    untried: tuple[str, ...] = ()


def lowered(job: TrialJob, resources: tuple[int, ...], parts: int) -> TrialJob:
    """Return the job with no limit of these resources above `parts` / `PARTS` of the largest one, rounded down to a
    useful step. A limit that is not zero stays at least one step, or as small as it was.
    """
    caps = {r: cap_of(job, r, parts) for r in resources}
    groups = []
    for group in job.groups:
        limit = list(group.requirement.limit)
        for r, cap in caps.items():
            limit[r] = min(limit[r], cap)
        cores = min(group.requirement.whole_cores, limit[CPU] // 1000)
        requirement = msgspec.structs.replace(group.requirement, limit=tuple(limit), whole_cores=cores)
        groups.append(TrialGroup(requirement, group.tasks))
    return msgspec.structs.replace(job, groups=tuple(groups))


def cap_of(job: TrialJob, resource: int, parts: int) -> int:
    """Return the largest limit of a resource after a lowering to `parts`."""
    largest = max((group.requirement.limit[resource] for group in job.groups), default=0)
    step = _STEP.get(resource, 1)
    exact = largest * parts // PARTS
    return max(min(step, largest), math.floor(exact / step) * step)
