"""Texts that explain why tasks are pending (§2.6), and the page of the changes that would let them start."""

from __future__ import annotations

import json
from collections.abc import Sequence

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.translation import gettext, ngettext
from django.views.decorators.http import require_GET

from portal.sigma.frame.page import page, whole_number
from portal.sigma.reads import jobs as reads
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.access.selectors import task_at
from scheduling.core.explaining.wording import VerdictText, Words, format_why
from scheduling.core.vocabulary.reasons import Why
from scheduling.core.vocabulary.requirement import MAX_TASKS
from scheduling.cures.cure_texts import effect_of
from scheduling.cures.cures import cures_of
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


@page
@require_GET
def cures(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    """Show the cures of a job, or of one of its tasks (`?index=`). The schedulers try them, which takes up to a
    second, so this is not a part of the live page of the job.
    """
    row = reads.job_named(principal, cell, tenant, name, uid=request.GET.get("uid", ""))
    given = request.GET.get("index", "")
    index = whole_number(given)
    if given and (index is None or index >= MAX_TASKS):
        raise NotFound("task", given[:20])
    if index is not None:
        task_at(row, index)
    found = cures_of(principal, row, index=index)
    context = {
        "job": row,
        "index": index,
        "cures": [
            {"cure": one, "effect": effect_of(one), "patch": json.dumps(one.patch) if one.patch is not None else ""}
            for one in found.cures
        ],
        "notes": found.notes,
        "may_write": may(principal, Action.JOB_WRITE, tenant=tenant, cell=cell),
    }
    return render(request, "sigma/cures.html", context)
