"""What is mine: tenants with their jobs by state, quota in use, and the cells."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from django.db.models import Count, Q, Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from portal.sigma.page import page
from portal.sigma.reads.cells import cell_counts
from portal.sigma.reads.jobs import jobs_visible
from quota.permissions import Action, Principal, may
from quota.selectors import Standing, standings, tenants_visible
from scheduling import selectors

# More than this is a list to search in, not a page to look at.
MOST = 50


@dataclass(frozen=True, slots=True)
class TenantCard:
    name: str
    title: str
    role: str
    jobs: dict[str, int]
    quota: list[Standing]


@page
def home(request: HttpRequest, principal: Principal) -> HttpResponse:
    tenants = list(tenants_visible(principal).order_by("name")[:MOST])
    jobs = {
        row["tenant_id"]: row
        for row in jobs_visible(principal)
        .filter(tenant__in=tenants)
        .order_by()
        .values("tenant_id")
        .annotate(
            pending=Count("id", filter=Q(state="pending")),
            running=Count("id", filter=Q(state="running")),
            tasks_up=Sum("tasks_up", filter=~Q(state="dead"), default=0),
            tasks_pending=Sum("tasks_pending", filter=~Q(state="dead"), default=0),
        )
    }
    quota: dict[str, list[Standing]] = defaultdict(list)
    for standing in standings(principal):
        quota[standing.tenant].append(standing)
    none = {"pending": 0, "running": 0, "tasks_up": 0, "tasks_pending": 0}
    cards = [
        TenantCard(
            tenant.name,
            tenant.title,
            str(principal.roles.get(tenant.name, "")),
            jobs.get(tenant.id, none),
            quota[tenant.name],
        )
        for tenant in tenants
    ]
    cells = list(selectors.cells_visible(principal).order_by("name")[:MOST])
    counts = cell_counts([cell.id for cell in cells])
    return render(
        request,
        "sigma/home.html",
        {
            "cards": cards,
            "cells": [(cell, counts[cell.id]) for cell in cells],
            "may_submit": any(may(principal, Action.JOB_WRITE, tenant=card.name) for card in cards),
        },
    )
