"""The packages of the user's tenants, and the live jobs that may run them."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from portal.sigma.frame.page import page, page_of
from quota.selectors import tenants_visible
from quota.vocabulary.permissions import Principal
from scheduling.access import selectors
from scheduling.packages.listing import packages_visible, shown

PAGE_SIZE = 50


@page
def package_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    chosen = {name: request.GET.get(name, "").strip() for name in ("cell", "tenant", "q")}
    packages = packages_visible(principal, tenant=chosen["tenant"]).order_by("-id")
    if chosen["cell"]:
        packages = packages.filter(cell__name=chosen["cell"])
    if chosen["q"]:
        packages = packages.filter(name__contains=chosen["q"])
    found = page_of(request, packages, PAGE_SIZE)
    context = {
        "page_obj": found,
        "rows": shown(list(found)),
        "chosen": chosen,
        "cells": list(selectors.cells_visible(principal).values_list("name", flat=True)[:200]),
        "tenants": list(tenants_visible(principal).order_by("name").values_list("name", flat=True)[:200]),
        "filtered": any(chosen.values()),
    }
    return render(request, "sigma/packages.html", context)
