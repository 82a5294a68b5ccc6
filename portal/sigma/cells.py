"""The list of cells, and the live page of one cell's machines."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from portal.sigma.frame.page import given_in, page, page_of
from portal.sigma.reads import cells as reads
from quota.vocabulary.permissions import Principal
from scheduling.access import selectors
from scheduling.core.vocabulary.states import MachineStatus
from scheduling.journal import journal
from scheduling.master.queue_health import queues
from scheduling.models.machines import REMOVED

PAGE_SIZE = 50
STATES = [*(state.value for state in MachineStatus), REMOVED]


@page
def cell_list(request: HttpRequest, principal: Principal) -> HttpResponse:
    cells = page_of(request, selectors.cells_visible(principal).order_by("name"), PAGE_SIZE)
    counts = reads.cell_counts([cell.id for cell in cells])
    rows = [(cell, counts[cell.id]) for cell in cells]
    return render(request, "sigma/cells.html", {"cells": rows, "page_obj": cells})


@page
def cell(request: HttpRequest, principal: Principal, cell: str) -> HttpResponse:
    row = selectors.cell_named(principal, cell)
    # The revision is read before the rows. The live page then receives every later change.
    revision = journal.newest(row.id)
    chosen = given_in(request.GET, "state", "rack", "q")
    if chosen["state"] not in STATES:
        chosen["state"] = ""
    rows = reads.machines_of(row, state=chosen["state"], rack=chosen["rack"], search=chosen["q"])
    machines = page_of(request, rows, PAGE_SIZE)
    context = {
        "cell": row,
        "revision": revision,
        "counts": reads.cell_counts([row.id])[row.id],
        "queues": queues(row.id),
        "rows": reads.machine_rows(list(machines)),
        "page_obj": machines,
        "racks": reads.racks_of(row),
        "states": STATES,
        "chosen": chosen,
    }
    return render(request, "sigma/cell.html", context)
