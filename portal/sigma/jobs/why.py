"""Why tasks are pending, and why they are where they are: the scheduler's own words in the reader's language (§2.6)."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.translation import gettext, ngettext

from quota.vocabulary.permissions import Action, Principal, may
from scheduling.core.explaining.wording import VerdictText, Words, format_why
from scheduling.core.vocabulary.reasons import Why
from scheduling.jobs.why import redacted
from scheduling.models import Event, Job
from scheduling.tasks.receipts import Receipts, hostnames, receipts

WORDS = Words(gettext, ngettext)


def explain(job: Job, whys: Sequence[Why]) -> list[VerdictText]:
    """One a class of the job's pending tasks; one query. Everyone who sees the job is told the same: a page goes
    to all who watch it, so tenants other than its own have no names.
    """
    names = hostnames(why.nearest.machine_id for why in whys if why.nearest is not None)
    own = job.tenant.name
    return [
        format_why(
            redacted(why, lambda tenant: tenant == own),
            job_id=job.id,
            extra=tuple(job.cell.extra_resources),
            hostnames=names,
            words=WORDS,
        )
        for why in whys
    ]


def receipts_for(principal: Principal, job: Job, events: Sequence[Event]) -> Receipts:
    """Of a task's placements, from its events, newest first; two queries."""
    return receipts(
        events, sees=lambda tenant: may(principal, Action.JOB_VIEW, tenant=tenant, cell=job.cell.name)
    )
