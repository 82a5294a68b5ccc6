"""The page where users search for jobs and services by name."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext as _

from naming.table.names import InvalidName
from portal.sigma.frame.page import cell_names, given_in, narrowed, page, page_of, rendered, tenants_of
from portal.sigma.name_parsing import PartialName, ServicePart, read
from portal.sigma.name_search import page_of_name
from portal.sigma.reads import names as reads
from portal.sigma.reads.jobs import operated_jobs_visible
from quota.vocabulary.errors import NotFound, Rejected
from quota.vocabulary.permissions import Principal

PAGE_SIZE = 50


@page
def name_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    chosen = given_in(request.GET, "cell", "tenant", "q")
    cells = cell_names(principal)
    problem, sought = None, None
    if chosen["q"]:
        try:
            sought = read(chosen["q"], settings.BORG_ZONE, cells=cells)
            if (found := page_of_name(principal, sought)) is not None:
                return redirect(found)
        except InvalidName as error:
            detail = _("“%s” is not the name of a job, task, service or machine. Correct the part shown below.")
            detail %= chosen["q"][:100]
            problem = Rejected("invalid-name", detail, fields={error.field: error.detail})
        except NotFound as error:
            problem = error
    jobs = operated_jobs_visible(principal).exclude(state="dead").order_by("cell__name", "tenant__name", "name")
    jobs = behind = narrowed(jobs, chosen, cell="cell__name", tenant="tenant__name")
    if isinstance(sought, PartialName) and not problem:
        same = {"tenant__name": sought.tenant, "name": sought.job}
        jobs = jobs.filter(**same) if sought.tenant else jobs.filter(name__contains=sought.job)
        behind = behind.none() if sought.tenant else behind.filter(labels__service__icontains=sought.job)
    if isinstance(sought, ServicePart) and not problem:
        jobs = behind = jobs.filter(tenant__name=sought.tenant, labels__service=sought.service)
    services = reads.services_among(behind)
    rows = page_of(request, jobs, PAGE_SIZE)
    context = {
        "page_obj": rows,
        "rows": [(job, reads.names_of_job(job)) for job in rows],
        "services": services[: reads.MOST_SERVICES],
        "more_services": len(services) > reads.MOST_SERVICES,
        "chosen": chosen,
        "cells": cells,
        "tenants": tenants_of(principal),
        "filtered": any(chosen.values()),
        "problem": problem,
        "zone": settings.BORG_ZONE,
    }
    return rendered(request, "sigma/names.html", context)
