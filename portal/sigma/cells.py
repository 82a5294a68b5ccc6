"""The list of cells, and the live page of one cell's machines."""

from __future__ import annotations

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils.translation import gettext as _

from portal.parts.empty import Empty, EmptyAction
from portal.parts.filters import Filters, choice, search
from portal.parts.tables import Column, Table
from portal.sigma.frame.page import given_in, page, page_of, paging_of
from portal.sigma.reads import cells as reads
from portal.sigma.reads.sites import Place, site_table
from quota.vocabulary.permissions import Principal
from scheduling.access import selectors
from scheduling.cells.cell_counts import cell_counts_and_racks
from scheduling.cells.rollups import site_rollups
from scheduling.core.vocabulary.states import MachineStatus
from scheduling.master.queue_health import queues
from scheduling.models import Cell
from scheduling.models.machines import REMOVED
from scheduling.policy import cell_settings
from scheduling.pools.selectors import pools_of, states_of
from scheduling.promises.promise_rules import promise_of, sentences

PAGE_SIZE = 50
MOST_STUDIES = 50
STATES = [*(state.value for state in MachineStatus), REMOVED]


@page
def cell_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    """Show the cells by site and cluster, with the sums of each, and below them the study cells for SREs."""
    sites = Paginator(site_rollups(principal), PAGE_SIZE).get_page(request.GET.get("page", "1"))
    empty = Empty(_("There is no cell yet."), _("An SRE can create a cell in the SRE console."))
    table = site_table(list(sites), _page_of_cell, empty=empty, paging=paging_of(sites))
    studies = selectors.cells_visible(principal).filter(study_of__isnull=False).order_by("name")[:MOST_STUDIES]
    context = {"table": table, "studies": reads.cell_table(list(studies), title=_("Study cells"))}
    return render(request, "sigma/cells.html", context)


def _page_of_cell(place: Place) -> str:
    return reverse("sigma:cell", args=[place.name]) if isinstance(place, Cell) else ""


@page
def cell(request: HttpRequest, principal: Principal, cell: str) -> HttpResponse:
    row = selectors.cell_named(principal, cell)
    chosen = given_in(request.GET, "state", "rack", "q")
    if chosen["state"] not in STATES:
        chosen["state"] = ""
    rows = reads.machines_of(row, state=chosen["state"], rack=chosen["rack"], search=chosen["q"])
    counts, racks = cell_counts_and_racks(row.id)
    everything = sum(counts[f"machines_{status.value}"] for status in MachineStatus)
    machines = page_of(request, rows, PAGE_SIZE, count=None if any(chosen.values()) else everything)
    columns = (
        Column(_("Machine")),
        Column(_("State")),
        Column(_("Rack")),
        Column(_("Tasks"), number=True),
        Column(_("CPU")),
        Column(_("RAM")),
        Column(_("Disk")),
    )
    if any(chosen.values()):
        link = EmptyAction(_("Show all machines"), reverse("sigma:cell", args=[row.name]))
        empty = Empty(_("No machine matches the filters."), actions=(link,))
    else:
        why = _("To add a machine, an SRE issues a join token in the SRE console and gives the token to a Borglet.")
        empty = Empty(_("No machine has joined this cell yet, so all jobs stay pending."), why)
    shown = reads.machine_rows(list(machines))
    pools = list(pools_of(principal, row))
    fields = (
        search("q", _("Search"), chosen["q"], placeholder=_("hostname or platform")),
        choice("state", _("State"), chosen["state"], STATES, everything=_("all states")),
        choice("rack", _("Rack"), chosen["rack"], racks, everything=_("all racks")),
    )
    context = {
        "cell": row,
        # The row of the cell is read before the other rows, so the live page receives every later change.
        "revision": row.revision,
        "counts": counts,
        "queues": queues(row.id),
        "promise": sentences(promise_of(cell_settings.load(row.settings))),
        "filters": Filters(fields, _("Filter")),
        "table": Table(_("Machines"), columns, shown, empty, row_template="sigma/rows/machine.html"),
        "page_obj": machines,
        "pools": reads.pool_table(states_of(principal, row, pools)) if pools else None,
    }
    return render(request, "sigma/cell.html", context)
