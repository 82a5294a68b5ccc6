"""The home page: what needs the user, the first steps of a newcomer, jobs, spending, tenants and cells."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, cast

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST

from portal.sigma.frame.page import page
from portal.sigma.home.attention import needs_user
from portal.sigma.home.first_steps import first_steps
from portal.sigma.home.job_counts import counts_by_tenant, jobs_in_trouble, total
from portal.sigma.home.spending import spending_chart
from portal.sigma.reads.cells import cell_table
from quota import clock
from quota.models import Account, AccountKind
from quota.notifications.inbox import unread_count
from quota.personal.preferences import first_steps_set, preferences_of
from quota.selectors import QuotaStanding, standings, tenants_visible
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.access import selectors

# The most tenants and cells that the page lists.
MOST = 50


@page
def home(request: HttpRequest, principal: Principal) -> HttpResponse:
    now = clock.now()
    tenants = list(tenants_visible(principal).order_by("name")[:MOST])
    ids = [tenant.pk for tenant in tenants]
    cells = list(selectors.cells_visible(principal).select_related("cluster__site").order_by("name")[:MOST])
    trouble = jobs_in_trouble(principal, tenants, cells)
    counts = counts_by_tenant(principal, ids, trouble.failing)
    quota: dict[str, list[QuotaStanding]] = defaultdict(list)
    for standing in standings(principal):
        quota[standing.tenant].append(standing)
    money = dict(
        Account.objects.filter(tenant__in=tenants, kind=AccountKind.AVAILABLE.value).values_list("tenant_id", "balance")
    )
    cards = [
        {
            "name": tenant.name,
            "title": tenant.title,
            "role": principal.roles.get(tenant.name, ""),
            "jobs": counts[tenant.id],
            "quota": quota[tenant.name],
            "sees_budget": may(principal, Action.BILLING_VIEW, tenant=tenant.name),
            "budget": money.get(tenant.id, 0),
        }
        for tenant in tenants
    ]
    preferences, unread = preferences_of(principal), unread_count(principal)
    cast(Any, request).borg_unread = unread  # the page frame does not count again
    running = [cell for cell in cells if cell.study_of is None]
    granted = [standing for name in quota for standing in quota[name]]
    return render(
        request,
        "sigma/home.html",
        {
            "needs": needs_user(principal, trouble, unread, now=now),
            "steps": first_steps(principal, preferences, tenants=tenants, quota=granted, cells=running),
            "jobs": total(counts.values()),
            "chart": spending_chart(principal, tenants, now=now),
            "cards": cards,
            "cells": cell_table(cells),
            "may_submit": any(may(principal, Action.JOB_WRITE, tenant=tenant.name) for tenant in tenants),
        },
    )


@page
@require_POST
def steps(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Hide the first steps on the user's home page (`do=hidden`), or show them (`do=shown`)."""
    first_steps_set(principal=principal, first_steps=request.POST.get("do", ""))
    return redirect("sigma:home")
