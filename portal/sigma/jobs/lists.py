"""The pages that list the jobs and the packages that the user may see."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _

from portal.parts.empty import Empty, EmptyAction
from portal.parts.filters import FilterField, Filters, choice, search
from portal.parts.tables import Column, Table
from portal.sigma.frame.page import cell_names, given_in, narrowed, page, page_of, paging_of, tenants_of
from portal.sigma.jobs.charts.job_usage import usage_meters
from portal.sigma.reads.jobs import archived_jobs_visible, failing_ids, jobs_visible, with_owners
from quota.paging import MergedRows
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal
from scheduling.access.label_filters import with_labels
from scheduling.jobs.health import with_health
from scheduling.packages.listing import packages_visible, shown

PAGE_SIZE = 50
# The list of dead jobs ends after this many jobs. The filters find older ones.
MOST_ENDED = 2_000
STATES = ["live", "failing", "pending", "running", "dead"]


@page
def job_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    chosen = given_in(request.GET, "state", "cell", "tenant", "q", "labels")
    chosen["state"] = chosen["state"] if chosen["state"] in STATES else "live"
    jobs = jobs_visible(principal).select_related(None).order_by("-id")
    if chosen["state"] in ("live", "failing"):
        jobs = jobs.exclude(state="dead")
    else:
        jobs = jobs.filter(state=chosen["state"])
    fields = {"cell": "cell__name", "tenant": "tenant__name", "q": "name__contains"}
    jobs = narrowed(jobs, chosen, **fields)
    try:
        jobs, problem = with_labels(jobs, (), chosen["labels"]), ""
    except Rejected as rejected:
        jobs, problem = jobs.none(), next(iter(rejected.fields.values()))
    if chosen["state"] == "failing":
        jobs = jobs.filter(pk__in=failing_ids(jobs))
    if chosen["state"] == "dead":
        archived = narrowed(archived_jobs_visible(principal), chosen, **fields)
        archived = archived.none() if problem else with_labels(archived, (), chosen["labels"])
        found = page_of(request, MergedRows(jobs, archived, order="-id", most=MOST_ENDED), PAGE_SIZE)
    else:
        found = page_of(request, jobs, PAGE_SIZE)
    found.object_list = with_health(with_owners(found.object_list))
    if any(chosen[name] for name in ("cell", "tenant", "q", "labels")) or chosen["state"] != "live":
        link = EmptyAction(_("Show all live jobs"), reverse("sigma:jobs"))
        empty = Empty(_("No job matches the filters."), actions=(link,))
    else:
        link = EmptyAction(_("Submit a job in the portal"), reverse("sigma:submit"))
        empty = Empty(
            _("Your tenants have no jobs yet."), actions=(link,), command="borgctl submit examples/hello.jsonnet"
        )
    columns = (
        Column(_("Job")),
        Column(_("Health")),
        Column(_("Priority")),
        Column(_("Running"), number=True),
        Column(_("Placed"), number=True),
        Column(_("Pending"), number=True),
        Column(_("Dead"), number=True),
        Column(_("CPU and RAM")),
        Column(_("Submitted")),
    )
    rows = list(found)
    meters = usage_meters(rows)
    for job in rows:
        job.meters = meters.get(job.id, ())
    table = Table(_("Jobs"), columns, rows, empty, paging=paging_of(found), row_template="sigma/rows/job.html")
    state = choice("state", _("State"), chosen["state"], STATES, default="live")
    labels = search("labels", _("Labels"), chosen["labels"], placeholder="app=shop,track!=canary", problem=problem)
    context = {
        "page_obj": found,
        "table": table,
        "filters": _filters(principal, chosen, state, labels),
        "has_meters": bool(meters),
    }
    return render(request, "sigma/jobs.html", context)


@page
def package_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    chosen = given_in(request.GET, "cell", "tenant", "q")
    packages = packages_visible(principal, tenant=chosen["tenant"]).order_by("-id")
    packages = narrowed(packages, chosen, cell="cell__name", q="name__contains")
    found = page_of(request, packages, PAGE_SIZE)
    if any(chosen.values()):
        link = EmptyAction(_("Show all packages"), reverse("sigma:packages"))
        empty = Empty(_("No package matches the filters."), actions=(link,))
    else:
        what, why = _("Your tenants have no packages yet."), _("To upload a package, run this command:")
        empty = Empty(what, why, command="borgctl package upload FOLDER --name NAME")
    columns = (
        Column(_("Package")),
        Column(_("Tags")),
        Column(_("Size"), number=True),
        Column(_("Download format")),
        Column(_("Used by jobs")),
        Column(_("Uploaded")),
        Column(_("Digest")),
    )
    rows = shown(list(found))
    table = Table(_("Packages"), columns, rows, empty, paging=paging_of(found), row_template="sigma/rows/package.html")
    context = {"page_obj": found, "table": table, "filters": _filters(principal, chosen)}
    return render(request, "sigma/packages.html", context)


def _filters(principal: Principal, chosen: dict[str, str], *more: FilterField) -> Filters:
    """Return the filters of a list page: by name, by the fields `more`, by cell and by tenant. `chosen`: the present
    value of each filter.
    """
    return Filters(
        (
            search("q", _("Search"), chosen["q"], placeholder=_("part of a name")),
            *more,
            choice("cell", _("Cell"), chosen["cell"], cell_names(principal), everything=_("all cells")),
            choice("tenant", _("Tenant"), chosen["tenant"], tenants_of(principal), everything=_("all tenants")),
        ),
        _("Filter"),
    )
