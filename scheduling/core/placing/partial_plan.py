"""Finds the assignments of a plan that are still valid if others cannot be applied. If a preemption is rejected, its
machine stays full, and if one task of a gang is not placed, no task of the gang is placed. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from scheduling.core.vocabulary.plan import Assignment


def split_broken(
    assignments: Sequence[Assignment], broken: Collection[int], *, gangs: Collection[int], unfreed: set[int]
) -> tuple[list[Assignment], list[Assignment]]:
    """Return (assignments that are still valid, all other assignments).

    `broken`: positions of the assignments that cannot be applied. `gangs`: ids of the jobs whose tasks are placed
    together or not at all. `unfreed`: ids of machines that stay full, because an assignment that would preempt tasks
    there cannot be applied. Other assignments to these machines are not valid either, except into allocs. The function
    adds further such machines to `unfreed`.
    """
    broken = set(broken)
    while True:
        torn = {assignments[position].job_id for position in broken} & set(gangs)
        broken |= {
            position
            for position, a in enumerate(assignments)
            if a.job_id in torn or (a.machine_id in unfreed and not a.alloc)
        }
        stay = {assignments[p].machine_id for p in broken if assignments[p].victims}
        if stay <= unfreed and {assignments[p].job_id for p in broken} & set(gangs) <= torn:
            break
        unfreed |= stay
    holds: list[Assignment] = []
    back: list[Assignment] = []
    for position, a in enumerate(assignments):
        (back if position in broken else holds).append(a)
    return holds, back
