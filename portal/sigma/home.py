"""The home page. It shows the user's tenants with their jobs, quota and budget. It also lists the cells."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict

from django.db.models import Count, Q, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from portal.sigma.frame.page import page
from portal.sigma.reads.cells import cell_table
from portal.sigma.reads.jobs import failing_by_tenant, operated_jobs_visible
from portal.sigma.reads.orders import waiting_for
from quota import clock
from quota.models import Account, AccountKind
from quota.selectors import QuotaStanding, grants_visible, standings, tenants_visible
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.access import selectors

# The most tenants and cells that the page lists.
MOST = 50
# The page lists grants that end within `SOON`, at most `ENDING` grants.
SOON = dt.timedelta(days=14)
ENDING = 5


@page
def home(request: HttpRequest, principal: Principal) -> HttpResponse:
    tenants = list(tenants_visible(principal).order_by("name")[:MOST])
    jobs = {
        row["tenant_id"]: row
        for row in operated_jobs_visible(principal)
        .filter(tenant__in=tenants)
        .exclude(state="dead")
        .order_by()
        .values("tenant_id")
        .annotate(
            pending=Count("id", filter=Q(state="pending")),
            running=Count("id", filter=Q(state="running")),
            tasks_up=Sum("tasks_up"),
            tasks_pending=Sum("tasks_pending"),
        )
    }
    quota: dict[str, list[QuotaStanding]] = defaultdict(list)
    for standing in standings(principal):
        quota[standing.tenant].append(standing)
    money = dict(
        Account.objects.filter(tenant__in=tenants, kind=AccountKind.AVAILABLE.value).values_list("tenant_id", "balance")
    )
    now = clock.now()
    ending = grants_visible(principal).filter(ends_at__gt=now, ends_at__lt=now + SOON, starts_at__lte=now)
    failing = failing_by_tenant(principal, [tenant.pk for tenant in tenants])
    none = {"pending": 0, "running": 0, "tasks_up": 0, "tasks_pending": 0}
    cards = [
        {
            "name": tenant.name,
            "title": tenant.title,
            "role": principal.roles.get(tenant.name, ""),
            "jobs": {**jobs.get(tenant.id, none), "failing": failing[tenant.id]},
            "quota": quota[tenant.name],
            "sees_budget": may(principal, Action.BILLING_VIEW, tenant=tenant.name),
            "budget": money.get(tenant.id, 0),
        }
        for tenant in tenants
    ]
    cells = list(selectors.cells_visible(principal).select_related("cluster__site").order_by("name")[:MOST])
    return render(
        request,
        "sigma/home.html",
        {
            "cards": cards,
            "cells": cell_table(cells),
            "waiting": waiting_for(principal).count(),
            "ending": list(ending.order_by("ends_at", "id")[:ENDING]),
            "may_submit": any(may(principal, Action.JOB_WRITE, tenant=tenant.name) for tenant in tenants),
        },
    )
