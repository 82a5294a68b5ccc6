"""Live jobs that have to end before the earlier jobs of the same names come back. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scheduling.history.restoring.differences import JobName, Pair, RequestedJob


@dataclass(slots=True)
class Replacement:
    """`stop`: a live job, and the live jobs inside it if it is an alloc set. `submit`: the earlier jobs of the same
    names. Either all of them are replaced or none, because no job can stay in an alloc set that ends.
    """

    stop: list[RequestedJob] = field(default_factory=list)
    submit: list[RequestedJob] = field(default_factory=list)


def replacements(
    stop: Sequence[RequestedJob], again: Sequence[Pair], same: Sequence[Pair]
) -> tuple[list[RequestedJob], list[Replacement]]:
    """Return the jobs that can end at once, and the replacements.

    `stop`: live jobs whose names no earlier job had. `again`: jobs that were submitted since with another spec than the
    earlier job of the same name. `same`: other live jobs. They are replaced too if the alloc set that contains them
    ends.
    """
    leaving = {job.key for job in (*stop, *(pair.now for pair in again))}
    found: dict[JobName, Replacement] = {}
    for pair in (*again, *(pair for pair in same if pair.now.outer in leaving)):
        outer = pair.now.outer if pair.now.outer in leaving else pair.now.key
        one = found.setdefault(outer, Replacement())
        one.stop.append(pair.now)
        one.submit.append(pair.then)
    for job in stop:
        if job.key in found:
            found[job.key].stop.append(job)
    return [job for job in stop if job.key not in found], list(found.values())
