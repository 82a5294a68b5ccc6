"""Writes the notices about jobs and cron jobs: one per tenant, cell and kind."""

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


def cron_notices_write(entry: RecordEntry, cell: Cell, missed: Mapping[tuple[str, str], str]) -> None:
    """Write one notice per tenant about runs of cron jobs that were missed or rejected, in the caller's transaction.
    `missed`: the newest reason, by the names of the tenant and the cron job.
    """
    if not missed:
        return
    tenants = {tenant.name: tenant for tenant in Tenant.objects.filter(name__in={name for name, _ in missed})}
    by_tenant: dict[str, dict[str, str]] = defaultdict(dict)
    for (tenant, name), reason in missed.items():
        by_tenant[tenant][name] = reason
    for tenant in sorted(by_tenant.keys() & tenants.keys()):
        reasons = by_tenant[tenant]
        names, why = list(reasons), [f"{reason.rstrip('.')}." for reason in list(reasons.values())[:MOST_NAMED]]
        subject, text = format_notice("cron.missed", cell=cell.name, jobs=names, reasons=why)
        url = link("cron.missed", cell=cell.name, tenant=tenant, jobs=names)
        given = dict(zip(names, why, strict=False))
        level = TEXTS["cron.missed"].level
        notify(
            entry,
            tenants[tenant],
            "cron.missed",
            subject,
            text,
            url=url,
            level=level,
            cell=cell.name,
            jobs=names,
            reasons=given,
        )
