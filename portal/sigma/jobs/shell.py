"""The terminal page of a task. The WebSocket that it opens checks the permission again."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from portal.sigma.frame.page import page
from portal.sigma.reads import jobs as reads
from quota.vocabulary.permissions import Principal
from scheduling.access.selectors import task_at
from scheduling.shells.shells import IDLE_S, LONGEST_S, require_shell


@page
def shell(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str, index: int) -> HttpResponse:
    job = reads.job_named(principal, cell, tenant, name, uid=request.GET.get("uid", ""))
    require_shell(principal, job)
    context = {
        "job": job,
        "task": task_at(job, index),
        "socket": f"/ws/shell/{cell}/{tenant}/{name}/{index}/?uid={job.uid}",
        "idle_minutes": int(IDLE_S // 60),
        "longest_hours": int(LONGEST_S // 3600),
    }
    return render(request, "sigma/shell.html", context)
