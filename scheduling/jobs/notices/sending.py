"""Writes the notices about jobs: one per tenant, cell and kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from quota.notifications.notices import notify
from quota.records import RecordEntry
from scheduling.jobs.notices.notice_texts import MOST_NAMED, TEXTS, format_notice, link
from scheduling.models import Job

# Returns a sentence with the reason for each of the given jobs, by job id.
Reasons = Callable[[Sequence[Job]], Mapping[int, str]]


def no_reasons(jobs: Sequence[Job]) -> Mapping[int, str]:
    return {}


def notices_write(entry: RecordEntry, kind: str, jobs: Sequence[Job], reasons_of: Reasons) -> None:
    """Write one notice of this `kind` per tenant and cell, in the caller's transaction. `jobs`: each with its tenant
    and its cell. `reasons_of`: is called once, for those jobs that the texts name.
    """
    by_place: dict[tuple[int, int], list[Job]] = defaultdict(list)
    for job in jobs:
        by_place[job.tenant_id, job.cell_id].append(job)
    named = [job for group in by_place.values() for job in group[:MOST_NAMED]]
    reasons = reasons_of(named) if named else {}
    for group in by_place.values():
        tenant, cell, names = group[0].tenant, group[0].cell.name, [job.name for job in group]
        why = [reasons.get(job.id, "") for job in group[:MOST_NAMED]]
        subject, text = format_notice(kind, cell=cell, jobs=names, reasons=why)
        url = link(kind, cell=cell, tenant=tenant.name, jobs=names)
        given = {name: reason for name, reason in zip(names, why, strict=False) if reason}
        notify(
            entry, tenant, kind, subject, text, url=url, level=TEXTS[kind].level, cell=cell, jobs=names, reasons=given
        )
