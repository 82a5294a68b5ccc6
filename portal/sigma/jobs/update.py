"""The page where the user edits the spec of a job, sees the plan, and updates the job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _

from portal.sigma.frame.page import page, problem_kept, rendered, whole_number
from portal.sigma.jobs.job_files import add_outcome, file_of, plan_context
from portal.sigma.jobs.specs.prices import price_change
from portal.sigma.jobs.specs.spec_changes import job_file_text, spec_diff
from portal.sigma.reads.jobs import job_named
from quota.vocabulary.errors import Conflict, NotFound, invalid
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.selectors import job_current_spec
from scheduling.access.tenant_permission import require_tenant
from scheduling.core.vocabulary.states import JobState
from scheduling.jobs.actions.autoscaled import AUTOSCALER, FILE, VALUES, changed_by_users, undone, with_values_since
from scheduling.jobs.plans import job_plan
from scheduling.jobs.submission.revisions import revision_of
from scheduling.jobs.submit_and_kill import spec_for
from scheduling.jobs.updates import job_update, spec_of
from scheduling.models import Job, JobSpec
from scheduling.spec.job_spec import JobSpecification
from scheduling.spec.merge_patch import merged
from scheduling.spec.nesting import too_deep

# The most versions that a page lists after a conflict.
MOST_VERSIONS = 10


@page
def update(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    """Show the current spec (GET), show the plan of an update (POST `do=plan`), or update the job (POST `do=submit`).
    With `patch`, the job file in the form is the current spec after this JSON merge patch; with `to`, it is this
    earlier version of the spec with the values that the autoscaler has set since. If the user does not change it, the
    update is an undo. The plan shows the differences from the current spec, and the prices.

    The form sends the UID of the job and the spec version that the page showed. If either is outdated, the request is
    rejected, and the page shows what changed meanwhile. Versions by the autoscaler do not count, and its values stay
    where the user did not change them since the version `base`. `planned`: the digest of the planned spec; if the text
    has changed since the plan, the page shows the new plan and changes nothing.
    """
    given = request.POST if request.method == "POST" else request.GET
    job = job_named(principal, cell, tenant, name, uid=given.get("uid", ""))
    require_tenant(principal, Action.JOB_WRITE, tenant, cell)
    context: dict[str, Any] = {"job": job, "version": str(job.spec_version), "text": None, "to": given.get("to", "")}
    if request.method == "POST":
        context["version"] = given.get("version", "")
    context["base"] = given.get("base", "") or context["version"]
    with problem_kept(context):
        if job.state == JobState.DEAD:
            raise Conflict("job-ended", _("Cannot update job %s, because it has ended. Submit it again.") % job.name)
        patch = _patch(given.get("patch", ""))
        earlier = _earlier(job, context["to"]) if context["to"] else None
        base = earlier.to_json() if earlier is not None else job_current_spec(job)
        context["text"] = given.get("text", "") or job_file_text(merged(base, patch))
        try:
            _check_current(job, context["version"])
        except Conflict:
            context |= _changes_meanwhile(job, context["version"])
            raise
        if request.method != "POST":
            return render(request, "sigma/update.html", context)

        def read(file: Mapping[str, Any]) -> JobSpecification:
            return spec_for(principal=principal, cell=job.cell, file=file, tenant=tenant, name=job.name)

        wanted = with_values_since(job, read(file_of(context["text"])), _base(job, context["base"]))
        undo = earlier is not None and wanted.digest() == read(earlier.to_json()).digest()
        source = FILE if undo else VALUES
        changed = given.get("planned", "") not in ("", wanted.digest())
        if given.get("do") == "submit" and not changed:
            done = job_update(
                principal=principal, job=job, job_spec=wanted, if_revision=revision_of(job), source=source, undo=undo
            )
            add_outcome(request, done.outcome, job.name)
            return redirect("sigma:job", cell=cell, tenant=tenant, name=name)
        plan = job_plan(principal=principal, cell=job.cell, job_spec=wanted, source=source, undo=undo)
        current = spec_of(job)
        context |= {
            **plan_context(plan, wanted, job.cell),
            "diff": spec_diff(current.to_json(), wanted.to_json()),
            "price": price_change(principal, job.cell, current, wanted, old_band=job.band),
            "planned": wanted.digest(),
            "rolls_back": undo,
            "changed_since_plan": given.get("do") == "submit" and changed,
        }
    return rendered(request, "sigma/update.html", context)


def _check_current(job: Job, version: str) -> None:
    """Raise `Conflict` if the spec is no longer the version that the page showed."""
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


def _earlier(job: Job, to: str) -> JobSpecification:
    """Return the version `to` of a job's spec, with the values that the autoscaler has set since. Raises `NotFound` if
    the job has no such version.
    """
    number = whole_number(to)
    if number is None or number >= 2**31 or not JobSpec.objects.filter(job=job, version=number).exists():
        raise NotFound("version", to[:20])
    return undone(job, spec_of(job, number), number)


def _base(job: Job, text: str) -> int:
    """Return the version of the spec from which the text of the user began, or the current one if there is no such
    version.
    """
    number = whole_number(text)
    known = number is not None and number < 2**31 and JobSpec.objects.filter(job=job, version=number).exists()
    return number if number is not None and known else job.spec_version


def _changes_meanwhile(job: Job, version: str) -> dict[str, Any]:
    """Return the template context for a user whose page showed an earlier version of the spec: who changed the spec
    since, and the differences. The form keeps the text of the user, and compares it with the current version.
    """
    number = whole_number(version)
    shown = number if number is not None and number < 2**31 else 0
    found = {one.version: one for one in JobSpec.objects.filter(job=job, version__in={job.spec_version, shown})}
    by_users = JobSpec.objects.filter(job=job, version__gt=shown).exclude(actor=AUTOSCALER.name).defer("spec")
    return {
        "newer": list(by_users.order_by("-version")[:MOST_VERSIONS]),
        "changed": spec_diff(found[shown].spec, found[job.spec_version].spec) if shown in found else None,
        "shown_version": version,
        "version": str(job.spec_version),
    }
