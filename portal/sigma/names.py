"""The page where users search for jobs and services by name, and the page of one service."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _

from naming.table.names import InvalidName, JobName, MachineName, ServiceName, TaskName
from portal.sigma.frame.page import cell_names, given_in, narrowed, page, page_of, rendered, tenants_of
from portal.sigma.reads import names as reads
from portal.sigma.reads.jobs import operated_jobs_visible
from portal.sigma.spelling import PartialName, ServicePart, read
from quota.vocabulary.errors import NotFound, Rejected
from quota.vocabulary.permissions import Principal
from scheduling.access import selectors
from scheduling.journal import journal

PAGE_SIZE = 50


@page
def name_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    chosen = given_in(request.GET, "cell", "tenant", "q")
    cells = cell_names(principal)
    problem, sought = None, None
    if chosen["q"]:
        try:
            sought = read(chosen["q"], settings.BORG_ZONE, cells=cells)
            if (found := _page_of_name(principal, sought)) is not None:
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


@page
def service(request: HttpRequest, principal: Principal, cell: str, tenant: str, service: str) -> HttpResponse:
    row = selectors.cell_named(principal, cell)
    revision = journal.newest(row.id)  # before the rows, so that the live page receives every later change
    found = reads.service_named(principal, ServiceName(cell, tenant, service))
    return render(request, "sigma/service.html", {"service": found, "cell": row, "revision": revision})


def _page_of_name(principal: Principal, sought: object) -> str | None:
    """Return the URL of the page of the job, task, service or machine `sought`. Return None if several jobs or services
    match. Raises `NotFound` if none matches.
    """
    match sought:
        case PartialName(tenant="", job=_, index=None):
            return None
        case PartialName(tenant=tenant, job=job, index=index):
            rows = operated_jobs_visible(principal).exclude(state="dead").filter(name=job)
            rows = rows.filter(tenant__name=tenant) if tenant else rows
            places = list(rows.values_list("cell__name", "tenant__name")[:2])
            if not places:
                raise NotFound("job", f"{tenant}/{job}" if tenant else job)
            if len(places) > 1:
                return None
            return _job_page(JobName(*places[0], job), index)
        case ServicePart(tenant=tenant, service=service):
            rows = operated_jobs_visible(principal).exclude(state="dead").filter(tenant__name=tenant, kind="job")
            cells = set(rows.filter(labels__service=service).values_list("cell__name", flat=True)[:1000])
            if not cells:
                raise NotFound("service", f"{tenant}/service/{service}")
            return reverse("sigma:service", args=[*cells, tenant, service]) if len(cells) == 1 else None
        case JobName():
            return _job_page(sought, None)
        case TaskName():
            return _job_page(sought.of_job, sought.index)
        case ServiceName(cell=cell, tenant=tenant, service=service):
            return reverse("sigma:service", args=[cell, tenant, service])
        case MachineName(cell=cell, host=host):
            return reverse("sigma:cell", args=[cell], query={"q": host})
    raise AssertionError(sought)


def _job_page(name: JobName, index: int | None) -> str:
    if index is None:
        return reverse("sigma:job", args=[name.cell, name.tenant, name.job])
    return reverse("sigma:task", args=[name.cell, name.tenant, name.job, index])
