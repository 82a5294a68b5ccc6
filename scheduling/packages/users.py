"""Find the jobs that may run a package, with one query per read, over the packages that stored specs were pinned to."""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from scheduling.core.vocabulary.states import JobState, TaskState
from scheduling.models import JobSpec, Task


def live_specs(cell_id: int, digests: Collection[str]) -> QuerySet[JobSpec]:
    """Return versions of live jobs that name one of the archives: the one in force, the one before (an undo goes back
    to it), and any that a task follows still."""
    followed = Task.objects.filter(job=OuterRef("job"), spec_version=OuterRef("version"))
    return (
        JobSpec.objects.exclude(packages={})
        .exclude(job__state=JobState.DEAD.value)
        .filter(
            Q(version__gte=F("job__spec_version") - 1) | Exists(followed.exclude(state=TaskState.DEAD.value)),
            job__cell_id=cell_id,
            packages__has_any_keys=sorted(digests),
        )
    )


def in_use(cell_id: int, digests: Collection[str]) -> dict[tuple[int, str], list[str]]:
    """Return (tenant id, digest) -> names of the live jobs that may run it."""
    found: dict[tuple[int, str], set[str]] = {}
    if not digests:
        return {}
    rows = live_specs(cell_id, digests).values_list("job__tenant_id", "job__name", "packages")
    for tenant_id, job, held in rows:
        for digest in held.keys() & set(digests):
            found.setdefault((tenant_id, digest), set()).add(job)
    return {key: sorted(jobs) for key, jobs in found.items()}
