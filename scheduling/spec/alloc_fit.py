"""Check that a job can run inside an alloc set (§2.4). Pure.

alloc set ─ the limit of each alloc ───┐
                                       ├─► misfits ─► {"task.limit.cpu": why the job can never fit, and what to change}
job inside ─ the limit of each task ───┘
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from quota.vocabulary.resources import NAMES, PORTS, Vector, describe
from scheduling.spec.job_spec import JobSpecification


def misfits(alloc_set: JobSpecification, job: JobSpecification) -> dict[str, str]:
    """Return the reasons why a job can never run in an alloc set, by path in its job file. Return an empty dict if the
    job can run there.

    Each task must fit into at least one alloc. The priority of the job must not be higher than that of the set. Ports
    are not checked, because allocs have no ports.
    """
    problems: dict[str, str] = {}
    if job.priority > alloc_set.priority:
        problems["priority"] = (
            f"{job.priority} is higher than the priority of alloc set {alloc_set.name}; give at most"
            f" {alloc_set.priority}"
        )
    envelopes = [task.limit for _, _, task in alloc_set.segments()]
    keys = {override.first: override.key for override in job.overrides}
    for first, _, task in job.segments():
        if not any(fits(task.limit, envelope) for envelope in envelopes):
            path = f"overrides.{keys[first]}" if first in keys else "task"
            problems |= _too_large(f"{path}.limit", task.limit, envelopes, alloc_set)
    return problems


def fits(limit: Sequence[int], envelope: Sequence[int]) -> bool:
    """Return whether no amount in `limit` is larger than the same amount in `envelope`, the limit of an alloc. Ports
    are not compared. Missing elements of a shorter vector count as zero.
    """
    pairs = enumerate(zip_longest(limit, envelope, fillvalue=0))
    return all(asked <= have for position, (asked, have) in pairs if position != PORTS)


def _too_large(path: str, limit: Vector, envelopes: Sequence[Vector], alloc_set: JobSpecification) -> dict[str, str]:
    names = (*NAMES, *alloc_set.extra)
    largest = [max(column) for column in zip(*envelopes, strict=True)]
    found = {
        f"{path}.{names[i]}": (
            f"asks for {describe(i, asked, extra=alloc_set.extra)}, but an alloc of {alloc_set.name} has"
            f" {describe(i, have, extra=alloc_set.extra)}; ask for less, or enlarge the alloc set first"
        )
        for i, (asked, have) in enumerate(zip(limit, largest, strict=True))
        if i != PORTS and asked > have
    }
    return found or {path: f"no single alloc of {alloc_set.name} has all of it; ask for less of some resource"}
