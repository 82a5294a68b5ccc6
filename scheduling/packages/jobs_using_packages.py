"""Find the jobs that may run a package. The stored specs of jobs contain the digests of packages. Each function makes
one query.
"""

from __future__ import annotations

from collections.abc import Collection

from django.db.models import Exists, F, OuterRef, Q, QuerySet

from scheduling.core.vocabulary.states import JobState, TaskState
from scheduling.models import JobSpec, StoppedJob, Task


def live_specs(cell_id: int, digests: Collection[str]) -> QuerySet[JobSpec]:
    """Return the versions of live jobs' specs that contain at least one of these digests and that tasks may still run.

    These versions are the newest version, the version before it (for an undo), and each version that a task still
    runs. The version that the start of a stopped service brings back is one of them, too.
    """
    stopped = StoppedJob.objects.filter(job=OuterRef("job"), version=OuterRef("version"))
    live = ~Q(job__state=JobState.DEAD.value)
    followed = Task.objects.filter(job=OuterRef("job"), spec_version=OuterRef("version"))
    return JobSpec.objects.exclude(packages={}).filter(
        live & Q(version__gte=F("job__spec_version") - 1)
        | live & Exists(followed.exclude(state=TaskState.DEAD.value))
        | Exists(stopped),
        job__cell_id=cell_id,
        packages__has_any_keys=sorted(digests),
    )


def in_use(cell_id: int, digests: Collection[str]) -> dict[tuple[int, str], list[str]]:
    """Return the names of the live jobs that may run each of these packages. The keys are (tenant id, digest of the
    package).
    """
    found: dict[tuple[int, str], set[str]] = {}
    if not digests:
        return {}
    rows = live_specs(cell_id, digests).values_list("job__tenant_id", "job__name", "packages")
    for tenant_id, job, held in rows:
        for digest in held.keys() & set(digests):
            found.setdefault((tenant_id, digest), set()).add(job)
    return {key: sorted(jobs) for key, jobs in found.items()}
