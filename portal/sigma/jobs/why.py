"""Explanations of pending tasks and of placements, in the language of the user (§2.6)."""

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
    """Return the reasons why tasks of a job are pending, as one text per class of tasks. One query.

    All users who see the job get the same texts, so the texts hide the names of other tenants.
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
    """Return what the journal recorded about a task's placements. `events`: of the task, newest first. Two queries."""
    return receipts(events, sees=lambda tenant: may(principal, Action.JOB_VIEW, tenant=tenant, cell=job.cell.name))
