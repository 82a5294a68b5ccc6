"""The tasks that preempted a task or were preempted by it, as a reader may see them (§3.2).

If the reader may not see the job of such a task, only its priority is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from scheduling.models import Job


@dataclass(frozen=True, slots=True)
class Party:
    """A task that preempted another task, or was preempted. `job`: tenant/name; None if the reader may not see the
    job.
    """

    job: str | None
    index: int | None
    priority: int | None
    band: str

    def __str__(self) -> str:
        if self.job is None:
            return (
                f"a task of priority {self.priority} ({self.band})"
                if self.band
                else "a task that the cell no longer has a record of"
            )
        return f"{self.job}/{self.index} (priority {self.priority}, {self.band})"


def parties_of(pairs: Iterable[Sequence[int]], *, sees: Callable[[str], bool]) -> dict[tuple[int, int], Party]:
    """Return the parties of preemptions (preemptors and victims). `pairs`: (job id, index) of their tasks. `sees`:
    returns whether the reader may see the jobs of a tenant. Makes at most one query.
    """
    distinct = {(pair[0], pair[1]) for pair in pairs}
    known = _jobs_of({job for job, _ in distinct}, sees)
    return {pair: _party(pair, known) for pair in distinct}


def _jobs_of(jobs: set[int], sees: Callable[[str], bool]) -> dict[int, tuple[str | None, int, str]]:
    if not jobs:
        return {}
    rows = Job.objects.filter(pk__in=jobs).values_list("id", "tenant__name", "name", "priority", "band")
    return {
        job: (f"{tenant}/{name}" if sees(tenant) else None, priority, band)
        for job, tenant, name, priority, band in rows
    }


def _party(pair: tuple[int, int], jobs: dict[int, tuple[str | None, int, str]]) -> Party:
    job, priority, band = jobs.get(pair[0], (None, None, ""))
    return Party(job, pair[1] if job is not None else None, priority, band)
