"""The pages that list the jobs and the packages that the user may see."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from portal.sigma.frame.page import cell_names, given_in, narrowed, page, page_of, tenants_of
from portal.sigma.reads.jobs import jobs_visible, with_owners
from quota.vocabulary.permissions import Principal
from scheduling.jobs.health import with_health
from scheduling.packages.listing import packages_visible, shown

PAGE_SIZE = 50
STATES = ["live", "pending", "running", "dead"]


@page
def job_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    chosen = given_in(request.GET, "state", "cell", "tenant", "q")
    chosen["state"] = chosen["state"] if chosen["state"] in STATES else "live"
    jobs = jobs_visible(principal).select_related(None).order_by("-id")
    if chosen["state"] == "live":
        jobs = jobs.exclude(state="dead")
    else:
        jobs = jobs.filter(state=chosen["state"])
    jobs = narrowed(jobs, chosen, cell="cell__name", tenant="tenant__name", q="name__contains")
    found = page_of(request, jobs, PAGE_SIZE)
    found.object_list = with_health(with_owners(found.object_list))
    context = {
        "page_obj": found,
        "chosen": chosen,
        "states": STATES,
        "cells": cell_names(principal),
        "tenants": tenants_of(principal),
        "filtered": any(chosen[name] for name in ("cell", "tenant", "q")) or chosen["state"] != "live",
    }
    return render(request, "sigma/jobs.html", context)


@page
def package_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    chosen = given_in(request.GET, "cell", "tenant", "q")
    packages = packages_visible(principal, tenant=chosen["tenant"]).order_by("-id")
    packages = narrowed(packages, chosen, cell="cell__name", q="name__contains")
    found = page_of(request, packages, PAGE_SIZE)
    context = {
        "page_obj": found,
        "rows": shown(list(found)),
        "chosen": chosen,
        "cells": cell_names(principal),
        "tenants": tenants_of(principal),
        "filtered": any(chosen.values()),
    }
    return render(request, "sigma/packages.html", context)
