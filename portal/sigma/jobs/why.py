"""Texts that explain to the user why tasks are pending, and where tasks are placed (§2.6)."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils.translation import gettext, ngettext

from scheduling.core.explaining.wording import VerdictText, Words, format_why
from scheduling.core.vocabulary.reasons import Why
from scheduling.jobs.why import redacted
from scheduling.models import Job
from scheduling.tasks.placement_records import hostnames

WORDS = Words(gettext, ngettext)


def explain(job: Job, whys: Sequence[Why]) -> list[VerdictText]:
    """Return why tasks of a job are pending, with one text per group of equal tasks. Makes one query.

    All users who may see the job get the same texts. The texts hide the names of other tenants.
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
