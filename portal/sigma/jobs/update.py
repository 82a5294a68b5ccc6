"""The page where the user edits the spec of a job, sees the plan, and updates the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _

from portal.sigma.frame.page import page, problem_kept, rendered
from portal.sigma.jobs.submit import add_outcome, file_of, plan_context
from portal.sigma.reads.jobs import job_named
from quota.vocabulary.errors import Conflict
from quota.vocabulary.permissions import Action, Principal
from scheduling.access.selectors import job_current_spec
from scheduling.access.tenant_permission import require_tenant
from scheduling.core.vocabulary.states import JobState
from scheduling.jobs.actions.autoscaled import VALUES, changed_by_users, with_values_since
from scheduling.jobs.plans import job_plan
from scheduling.jobs.submission.revisions import revision_of
from scheduling.jobs.submit_and_kill import spec_for
from scheduling.jobs.updates import job_update
from scheduling.models import Job

# The fields that come first in the job file on the page, because users change them most often.
_FIRST = ("name", "cell", "tenant", "kind", "tasks", "priority", "appclass", "task")
_FIRST_OF_TASK = ("command", "limit", "ports", "env")


@page
def update(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    """Show the current spec (GET), show the plan of an update (POST `do=plan`), or update the job (POST `do=submit`).

    The form sends the UID of the job and the spec version that the page showed. If either is outdated, the request is
    rejected. Versions by the autoscaler do not count, and its values stay where the user did not change them.
    """
    given = request.POST if request.method == "POST" else request.GET
    job = job_named(principal, cell, tenant, name, uid=given.get("uid", ""))
    require_tenant(principal, Action.JOB_WRITE, tenant, cell)
    context: dict[str, Any] = {"job": job, "version": str(job.spec_version), "text": None}
    if request.method == "POST":
        context |= {"version": given.get("version", ""), "text": given.get("text", "")}
    with problem_kept(context):
        _check_current(job, context["version"])
        if request.method != "POST":
            return render(request, "sigma/update.html", {**context, "text": _text(job)})
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
        context |= plan_context(plan, wanted, job.cell)
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
                " Open the page again and repeat your change."
            )
            % {"now": job.spec_version, "shown": version[:20]},
        )


def _text(job: Job) -> str:
    """Return the current spec as YAML, with the most used fields first."""
    spec = job_current_spec(job)
    spec = _first(_FIRST, {**spec, "task": _first(_FIRST_OF_TASK, spec["task"])})
    return yaml.safe_dump(spec, sort_keys=False, allow_unicode=True, width=120)


def _first(keys: tuple[str, ...], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `given` with the keys in `keys` first."""
    return {key: given[key] for key in keys if key in given} | dict(given)
