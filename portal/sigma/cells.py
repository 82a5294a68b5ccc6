"""The list of cells, and the live page of one cell's machines."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from portal.sigma.frame.page import page, page_of
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
    # Read before the rows: the live page requests every change after this revision again.
    revision = journal.newest(row.id)
    chosen = {name: request.GET.get(name, "").strip() for name in ("state", "rack", "q")}
    state = chosen["state"] if chosen["state"] in STATES else ""
    machines = page_of(request, reads.machines_of(row, state=state, rack=chosen["rack"], search=chosen["q"]), PAGE_SIZE)
    context = {
        "cell": row,
        "revision": revision,
        "counts": reads.cell_counts([row.id])[row.id],
        "queues": queues(row.id),
        "rows": reads.machine_rows(list(machines)),
        "page_obj": machines,
        "racks": reads.racks_of(row),
        "states": STATES,
        "chosen": {**chosen, "state": state},
    }
    return render(request, "sigma/cell.html", context)
