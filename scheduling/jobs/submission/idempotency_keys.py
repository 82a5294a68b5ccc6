"""Idempotency keys of submissions: a repeated request gets the job of the first one (§2.3)."""

from __future__ import annotations

from collections.abc import Sequence

from quota.vocabulary.errors import Conflict
from scheduling.jobs.submission.outcomes import Item
from scheduling.models import Cell, Job, JobSpec


def check_keys(cell: Cell, items: Sequence[Item]) -> None:
    """Find submissions whose idempotency key was used before. The result of such a submission is the existing job,
    even if that job is dead.
    """
    keyed = {(item.tenant.id, item.submission_key): item for item in items if item.submission_key}
    if not keyed:
        return
    made = Job.objects.filter(cell=cell, tenant_id__in={t for t, _ in keyed}, key__in={k for _, k in keyed})
    first = JobSpec.objects.filter(job__in=made, version=1).select_related("job")
    for row in first:
        item = keyed.get((row.job.tenant_id, row.job.key))
        if item is None:
            continue
        # A spec without a digest has lost values (`manage.py secrets erase-env`), so it cannot be compared.
        if row.job.name == item.spec.name and row.digest in ("", item.key_digest or item.digest):
            item.answer("submitted", row.job)
        else:
            item.refuse(
                Conflict(
                    "key-used",
                    f"Idempotency-Key: tenant {item.spec.tenant} has already used this key for another job, "
                    f"{row.job.name}; use a new key for each job",
                    fields={"Idempotency-Key": "used for another job"},
                )
            )
