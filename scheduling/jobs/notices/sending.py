"""Writes the notices about jobs, cron jobs and workflows: one per tenant, cell and kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from quota.models import Tenant
from quota.notifications.notices import notify
from quota.records import RecordEntry
from scheduling.jobs.notices.notice_texts import MOST_NAMED, TEXTS, format_notice, link
from scheduling.models import Cell, Job

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


def named_notices_write(entry: RecordEntry, kind: str, cell: Cell, failed: Mapping[tuple[str, str], str]) -> None:
    """Write one notice of this `kind` per tenant about cron jobs or workflows, in the caller's transaction. `failed`:
    the newest reason, by the names of the tenant and of the cron job or workflow.
    """
    if not failed:
        return
    tenants = {tenant.name: tenant for tenant in Tenant.objects.filter(name__in={name for name, _ in failed})}
    by_tenant: dict[str, dict[str, str]] = defaultdict(dict)
    for (tenant, name), reason in failed.items():
        by_tenant[tenant][name] = reason
    for tenant in sorted(by_tenant.keys() & tenants.keys()):
        reasons = by_tenant[tenant]
        names, why = list(reasons), [f"{reason.rstrip('.')}." for reason in list(reasons.values())[:MOST_NAMED]]
        subject, text = format_notice(kind, cell=cell.name, jobs=names, reasons=why)
        url = link(kind, cell=cell.name, tenant=tenant, jobs=names)
        given = dict(zip(names, why, strict=False))
        level = TEXTS[kind].level
        notify(
            entry, tenants[tenant], kind, subject, text, url=url, level=level, cell=cell.name, jobs=names, reasons=given
        )
