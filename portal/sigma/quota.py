"""Quota of one's tenants: what is granted, what live jobs ask for, and each grant behind it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone

from portal.sigma.page import page, page_of
from quota.models import PriorityBand
from quota.permissions import Principal
from quota.selectors import grants_visible, standings

PAGE_SIZE = 50


@page
def quota(request: HttpRequest, principal: Principal) -> HttpResponse:
    context = {
        "standings": standings(principal)[:200],
        "page_obj": page_of(request, grants_visible(principal).order_by("-id"), PAGE_SIZE),
        "bands": list(PriorityBand.objects.all()),
        "now": timezone.now(),
    }
    return render(request, "sigma/quota.html", context)
