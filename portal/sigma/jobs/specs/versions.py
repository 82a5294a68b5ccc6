"""The page of one version of a job's spec, with its differences from another version."""

from __future__ import annotations

import json
from collections.abc import Mapping

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from portal.sigma.frame.page import page, whole_number
from portal.sigma.jobs.specs.spec_changes import spec_diff
from portal.sigma.reads import jobs as reads
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.access.selectors import spec_shown, specs_of
from scheduling.core.vocabulary.states import JobState
from scheduling.models import JobSpec


@page
@require_GET
def specs(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    """Show a version of the job's spec (`?version=`) and its differences from another version (`?against=`)."""
    row = reads.job_named(principal, cell, tenant, name, uid=request.GET.get("uid", ""))
    version = _number(request, "version", row.spec_version)
    against = _number(request, "against", max(version - 1, 0))
    found = {spec.version: spec for spec in JobSpec.objects.filter(job=row, version__in=[version, against])}
    if version not in found:
        raise NotFound("version", str(version))
    shown = {number: spec_shown(principal, row, spec.spec) for number, spec in found.items()}
    compared = against in found and against != version
    may_write = may(principal, Action.JOB_WRITE, tenant=tenant, cell=cell)
    context = {
        "job": row,
        "spec": found[version],
        "text": _text(shown[version]),
        "hides": any(shown[number] != found[number].spec for number in found),
        "against": against if compared else None,
        "versions": list(specs_of(row).defer("spec").order_by("-version")[:200]),
        "diff": spec_diff(shown[against], shown[version]) if compared else None,
        "may_roll_back": may_write and row.state != JobState.DEAD and version != row.spec_version,
    }
    return render(request, "sigma/specs.html", context)


def _number(request: HttpRequest, name: str, default: int) -> int:
    number = whole_number(request.GET.get(name, ""))
    return default if number is None or number >= 2**31 else number


def _text(file: Mapping[str, object]) -> str:
    return json.dumps(file, indent=2, sort_keys=True, ensure_ascii=False)
