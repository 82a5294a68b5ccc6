"""The pages of cron jobs: the list, and one cron job with its next times, its history and its buttons."""

from __future__ import annotations

import yaml
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from portal.parts.empty import Empty
from portal.parts.filters import Filters, choice, search
from portal.parts.tables import Column, Table
from portal.sigma.frame.page import cell_names, given_in, narrowed, page, page_of, paging_of, tenants_of, whole_number
from portal.sigma.reads.jobs import cron_jobs_visible
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.cron import cron_jobs, cron_spec, selectors
from scheduling.models import CronJob

PAGE_SIZE = 50
_NEXT = 5


@page
def cron_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    chosen = given_in(request.GET, "cell", "tenant", "q")
    rows = selectors.with_last_run(cron_jobs_visible(principal)).order_by("cell__name", "name", "id")
    rows = narrowed(rows, chosen, cell="cell__name", tenant="tenant__name", q="name__contains")
    found = page_of(request, rows, PAGE_SIZE)
    empty = Empty(_("No cron job matches the filters."))
    if not any(chosen.values()):
        what, why = _("Your tenants have no cron jobs yet."), _("To create a cron job, run this command:")
        empty = Empty(what, why, command="borgctl submit examples/nightly-report.yaml")
    columns = (
        Column(_("Cron job")),
        Column(_("Schedule")),
        Column(_("Next run")),
        Column(_("Last run")),
        Column(_("Owner")),
    )
    table = Table(
        _("Cron jobs"), columns, list(found), empty, paging=paging_of(found), row_template="sigma/rows/cron.html"
    )
    filters = Filters(
        (
            search("q", _("Search"), chosen["q"], placeholder=_("part of a name")),
            choice("cell", _("Cell"), chosen["cell"], cell_names(principal), everything=_("all cells")),
            choice("tenant", _("Tenant"), chosen["tenant"], tenants_of(principal), everything=_("all tenants")),
        ),
        _("Filter"),
    )
    return render(request, "sigma/crons.html", {"page_obj": found, "table": table, "filters": filters})


@page
def cron(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    row = _named(principal, cell, tenant, name)
    found = page_of(request, selectors.history_of(row), PAGE_SIZE)
    columns = (Column(_("Due")), Column(_("Outcome")), Column(_("Job")), Column(_("Detail")))
    empty = Empty(_("The cron job has not run yet."))
    table = Table(
        _("Runs"), columns, list(found), empty, paging=paging_of(found), row_template="sigma/rows/cron_run.html"
    )
    context = {
        "cron": row,
        "job_text": yaml.safe_dump(
            selectors.template_shown(principal, row), sort_keys=False, allow_unicode=True, width=120
        ),
        "next_times": selectors.next_times(row, _NEXT),
        "page_obj": found,
        "table": table,
        "replaced": selectors.tasks_running(row) if row.overlap == cron_spec.REPLACE else 0,
        "writes": may(principal, Action.JOB_WRITE, tenant=tenant, cell=cell),
    }
    return render(request, "sigma/cron.html", context)


@page
@require_POST
def suspend(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    row = cron_jobs.cron_suspend(principal=principal, cron_job=_named(principal, cell, tenant, name))
    messages.success(request, _("Suspended. No further run starts until you resume the cron job."))
    return _back(row)


@page
@require_POST
def resume(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    row = cron_jobs.cron_resume(principal=principal, cron_job=_named(principal, cell, tenant, name))
    messages.success(request, _("Resumed. The next run starts at its time."))
    return _back(row)


@page
@require_POST
def run(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    row = _named(principal, cell, tenant, name)
    confirm = whole_number(request.POST.get("confirm", ""))  # the number of tasks that the page showed
    result = cron_jobs.cron_run_now(principal=principal, cron_job=row, confirm=confirm)
    messages.success(request, _("Job %s was submitted.") % result.run.job_name)
    return _back(row)


@page
@require_POST
def delete(request: HttpRequest, principal: Principal, cell: str, tenant: str, name: str) -> HttpResponse:
    reason = request.POST.get("reason", "").strip()[:300]
    cron_jobs.cron_delete(principal=principal, cron_job=_named(principal, cell, tenant, name), reason=reason)
    messages.success(request, _("Cron job %s was deleted.") % name)
    return redirect("sigma:crons")


def _named(principal: Principal, cell: str, tenant: str, name: str) -> CronJob:
    row = cron_jobs_visible(principal).filter(cell__name=cell, tenant__name=tenant, name=name).first()
    if row is None:
        raise NotFound("cron job", name)
    return row


def _back(row: CronJob) -> HttpResponse:
    return redirect("sigma:cron", cell=row.cell.name, tenant=row.tenant.name, name=row.name)
