"""The page where the user describes a job in a form or in a job file, sees the plan, and submits the job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from portal.sigma.frame.page import page, problem_kept, rendered, tenants_of
from portal.sigma.jobs.job_files import add_outcome, file_of, json_text, plan_context
from portal.sigma.jobs.specs.prices import price_change
from portal.sigma.jobs.specs.spec_changes import job_file_text
from portal.sigma.reads.jobs import templates_visible
from portal.sigma.submit.form_fields import FIELDS, FREE, changed_fields, errors_of, fields_of, with_fields
from portal.sigma.submit.starting_points import EXAMPLES, copied_job, copy_for_cell, example_named
from quota.admission import admission
from quota.vocabulary.bands import Band
from quota.vocabulary.errors import Rejected, invalid
from quota.vocabulary.permissions import Action, Principal
from scheduling.access import selectors
from scheduling.jobs.plans import job_plan
from scheduling.jobs.submit_and_kill import job_apply, live_job, spec_for
from scheduling.jobs.updates import spec_of

# The most templates to start from.
MOST_TEMPLATES = 8
# The largest job file, in characters, that a field of the form can change. To write a larger one takes seconds.
MOST_MERGED = 65_536


@page
def submit(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show the form and the job file (GET), show the plan of the job (POST `do=plan`), or submit it (POST `do=submit`).

    `example`: the name of an example to start from. `from`: the full name of a job, `cell/tenant/job`, whose job file
    is filled in under a new name (`uid`: its UID; `again=yes`: under its own name). `copy`: the full name of a job
    whose job file is filled in for another cell, as the page of cures links to it.
    """
    cells = list(selectors.cells_visible(principal).filter(study_of__isnull=True).order_by("name")[:200])
    bands = list(admission.bands())
    context: dict[str, Any] = {
        "cells": [(cell.name, cell.name) for cell in cells],
        "tenants": [(name, name) for name in tenants_of(principal, Action.JOB_WRITE)],
        "bands": [(FREE, f"{FREE} (0)"), *((band.name, f"{band.name} ({band.low}–{band.high})") for band in bands)],
        "examples": [(name, example.title) for name, example in EXAMPLES.items()],
        "templates": list(templates_visible(principal).order_by("-id")[:MOST_TEMPLATES]),
        "errors": {},
    }
    if request.method != "POST":
        context |= {"cell": request.GET.get("cell", ""), "tenant": request.GET.get("tenant", "")}
        text = _start(request.GET, principal, context)
        context |= {"text": text, "base": text, "fields": fields_of(file_of(text), bands)}
        _keep_choices(context)
        return rendered(request, "sigma/submit.html", context)
    given = request.POST
    text = given.get("text", "")
    context |= {"text": text, "base": given.get("base", text), "cell": given.get("cell", "")}
    context |= {"tenant": given.get("tenant", ""), "fields": {name: given.get(name, "") for name in FIELDS}}
    with problem_kept(context):
        file = _file(given, text, bands, context)
        cell = selectors.cell_named(principal, context["cell"])
        wanted = spec_for(principal=principal, cell=cell, file=file, tenant=context["tenant"])
        live = live_job(cell, wanted)
        if given.get("do") == "submit" and (live is None or given.get("planned") != "submit"):
            done = job_apply(principal=principal, cell=cell, job_spec=wanted)
            add_outcome(request, done.outcome, wanted.name)
            return redirect("sigma:job", cell=cell.name, tenant=wanted.tenant, name=wanted.name)
        context |= plan_context(job_plan(principal=principal, cell=cell, job_spec=wanted), wanted, cell)
        before = spec_of(live) if live is not None else None
        context["price"] = price_change(principal, cell, before, wanted, old_band=live.band if live is not None else "")
    problem: Rejected | None = context.get("problem")
    _keep_choices(context)
    context["errors"] = errors_of(problem.fields) if problem is not None else {}
    return rendered(request, "sigma/submit.html", context)


def _keep_choices(context: dict[str, Any]) -> None:
    """Let the form show the cell, the tenant and the band of the job file, also if they are not among its choices.
    Otherwise a browser would send the first choice, and so change the file.
    """
    shown: dict[str, str] = context["fields"]
    for name, choices in (("cell", "cells"), ("tenant", "tenants"), ("band", "bands")):
        chosen = shown[name] or context.get(name, "")
        if name != "band":
            context[name] = chosen
        if (chosen or name == "band") and all(value != chosen for value, _title in context[choices]):
            context[choices] = [*context[choices], (chosen, chosen)]


def _start(asked: Mapping[str, str], principal: Principal, context: dict[str, Any]) -> str:
    """Return the job file that the page starts with."""
    if copied := asked.get("copy", ""):
        return copy_for_cell(principal, copied, context["cell"])
    if source := asked.get("from", ""):
        again = asked.get("again") == "yes"
        job, text = copied_job(principal, source, uid=asked.get("uid", ""), again=again)
        context |= {"cell": job.cell.name, "tenant": job.tenant.name, "source": job, "again": again}
        return text
    return example_named(asked.get("example", "") or "web")


def _file(given: Mapping[str, str], text: str, bands: list[Band], context: dict[str, Any]) -> dict[str, Any]:
    """Return the sent job file with the fields that the user changed in the form, and store both views in `context`.

    `base`: the job file for which the page showed the fields. Without it, there is no form. Raises `Rejected` if the
    file cannot be read or a field is wrong.
    """
    file = file_of(text)
    if "base" in given:
        before = fields_of(file, bands) if given["base"] == text else _before(given["base"], bands)
        # Most job files contain no cell and no tenant. Then those of the form count, and the file stays as it is.
        changed = changed_fields(given, before)
        for name in ("cell", "tenant"):
            if not before.get(name):
                changed.pop(name, None)
        if changed:
            if len(text) > MOST_MERGED:
                raise invalid("file", _("the job file is too large for the form; change the file itself"))
            file = with_fields(file, changed)
            context["text"] = job_file_text(file) if not text.lstrip().startswith("{") else json_text(file)
        context["base"] = context["text"]
    context["fields"] = fields_of(file, bands)
    if "base" in given:
        for name in ("cell", "tenant"):
            context[name] = context["fields"][name] or context[name]
    return file


def _before(base: str, bands: list[Band]) -> dict[str, str]:
    try:
        return fields_of(file_of(base), bands)
    except Rejected:
        return {}
