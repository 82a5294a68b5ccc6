"""The page where the user edits the spec of a job, sees the plan, and updates the job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _

from portal.sigma.frame.page import page, problem_kept, rendered, whole_number
from portal.sigma.jobs.specs.prices import price_change
from portal.sigma.jobs.specs.spec_changes import job_file_text, spec_diff
from portal.sigma.jobs.submit import add_outcome, file_of, plan_context
from portal.sigma.reads.jobs import job_named
from quota.vocabulary.errors import Conflict, NotFound, invalid
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.selectors import job_current_spec
from scheduling.access.tenant_permission import require_tenant
from scheduling.core.vocabulary.states import JobState
from scheduling.jobs.actions.autoscaled import VALUES, changed_by_users, with_values_since
from scheduling.jobs.plans import job_plan
from scheduling.jobs.submission.revisions import revision_of
from scheduling.jobs.submit_and_kill import spec_for
from scheduling.jobs.updates import job_update, spec_of
from scheduling.models import Job, JobSpec
from scheduling.spec.merge_patch import merged
from scheduling.spec.nesting import too_deep


@page
def update(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    """Show the current spec (GET), show the plan of an update (POST `do=plan`), or update the job (POST `do=submit`).
    With `patch`, the job file in the form is the current spec after this JSON merge patch; with `to`, it is this
    earlier version of the spec. The plan shows the differences from the current spec, and the prices.

    The form sends the UID of the job and the spec version that the page showed. If either is outdated, the request is
    rejected, and the page shows what changed meanwhile. Versions by the autoscaler do not count, and its values stay
    where the user did not change them.
    """
    given = request.POST if request.method == "POST" else request.GET
    job = job_named(principal, cell, tenant, name, uid=given.get("uid", ""))
    require_tenant(principal, Action.JOB_WRITE, tenant, cell)
    context: dict[str, Any] = {"job": job, "version": str(job.spec_version), "text": None}
    if request.method == "POST":
        context |= {"version": given.get("version", ""), "text": given.get("text", "")}
    with problem_kept(context):
        try:
            _check_current(job, context["version"])
        except Conflict:
            context |= _changes_meanwhile(job, context["version"])
            raise
        patch = _patch(given.get("patch", ""))
        to = given.get("to", "")
        if request.method != "POST":
            return render(request, "sigma/update.html", {**context, "text": _text(job, patch, to), "to": to})
        if (patch or to) and not context["text"]:
            context |= {"text": _text(job, patch, to), "to": to}
        file = file_of(context["text"])
        wanted = spec_for(principal=principal, cell=job.cell, file=file, tenant=tenant, name=job.name)
        wanted = with_values_since(job, wanted, int(context["version"]))
        if given.get("do") == "submit":
            done = job_update(
                principal=principal, job=job, job_spec=wanted, if_revision=revision_of(job), source=VALUES
            )
            add_outcome(request, done.outcome, job.name)
            return redirect("sigma:job", cell=cell, tenant=tenant, name=name)
        plan = job_plan(principal=principal, cell=job.cell, job_spec=wanted, source=VALUES)
        current = spec_of(job)
        context |= {
            **plan_context(plan, wanted, job.cell),
            "diff": spec_diff(current.to_json(), wanted.to_json()),
            "price": price_change(principal, job.cell, current, wanted),
        }
    return rendered(request, "sigma/update.html", context)


def _check_current(job: Job, version: str) -> None:
    """Raise `Conflict` if the job has ended, or if the spec is no longer the version that the page showed."""
    if job.state == JobState.DEAD:
        raise Conflict("job-ended", _("Cannot update job %s, because it has ended. Submit it again.") % job.name)
    if version == str(job.spec_version):
        return
    if not (version.isascii() and version.isdigit() and len(version) < 10) or changed_by_users(job, int(version)):
        raise Conflict(
            "job-changed",
            _(
                "Cannot update the job: the spec changed to version %(now)d after this page showed version %(shown)s."
                " Check what changed, then show the plan again."
            )
            % {"now": job.spec_version, "shown": version[:20]},
        )


def _patch(text: str) -> dict[str, Any]:
    """Return the JSON merge patch that a link or a form contains, as the page of cures sends it. Raises `Rejected` if
    it is not one.
    """
    if not text:
        return {}
    try:
        patch = json.loads(text[:65_536])
    except (ValueError, RecursionError):
        patch = None
    if not isinstance(patch, dict) or too_deep(patch):
        raise invalid("patch", _("the patch is not a JSON object; open the page of the job again"))
    return patch


def _text(job: Job, patch: Mapping[str, Any], to: str) -> str:
    """Return the current spec, or its version `to`, after a JSON merge patch. Raises `NotFound` if the job has no such
    version.
    """
    if not to:
        return job_file_text(merged(job_current_spec(job), patch))
    number = whole_number(to)
    stored = JobSpec.objects.filter(job=job, version=number) if number is not None and number < 2**31 else None
    for spec in stored or ():
        return job_file_text(merged(spec.spec, patch))
    raise NotFound("version", to[:20])


def _changes_meanwhile(job: Job, version: str) -> dict[str, Any]:
    """Return the template context for a user whose page showed an earlier version of the spec: who changed the spec
    since, and the differences. The form keeps the text of the user, and compares it with the current version.
    """
    if job.state == JobState.DEAD:
        return {}
    number = whole_number(version)
    wanted = {job.spec_version, number if number is not None and number < 2**31 else 0}
    found = {one.version: one for one in JobSpec.objects.filter(job=job, version__in=wanted)}
    newest, shown = found[job.spec_version], found.get(number or 0)
    changed = spec_diff(shown.spec, newest.spec) if shown is not None else None
    return {"newest": newest, "changed": changed, "shown_version": version, "version": str(job.spec_version)}
