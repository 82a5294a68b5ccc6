"""Searches cells, machines, jobs, tasks, tenants and orders. Each function makes at most two queries, and returns only
what the user may see.
"""

from __future__ import annotations

from django.conf import settings
from django.db.models.functions import Length
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from naming.table.names import InvalidName, JobName, MachineName, ServiceName, TaskName
from portal.search.query import Query, Result
from portal.sigma import name_parsing
from portal.sigma.name_search import page_of_name
from portal.sigma.reads.jobs import operated_jobs_visible
from portal.sigma.reads.orders import orders_visible
from quota.selectors import tenants_visible
from quota.vocabulary.errors import Rejected
from quota.vocabulary.permissions import Principal
from scheduling.core.vocabulary.states import JobState
from scheduling.models import Cell, Machine
from scheduling.models.machines import REMOVED

# The most results of each kind.
MOST = 8


def jobs(principal: Principal, query: Query) -> list[Result]:
    """Return live jobs whose name contains the text or, if the text has an index, tasks with this index."""
    if not query.job:
        return []
    rows = operated_jobs_visible(principal).exclude(state=JobState.DEAD.value)
    rows = rows.filter(name=query.job) if query.index is not None else rows.filter(name__contains=query.job)
    if query.index is not None:
        rows = rows.filter(tasks_total__gt=query.index)
    if query.tenant:
        rows = rows.filter(tenant__name=query.tenant)
    if query.cell:
        rows = rows.filter(cell__name=query.cell)
    found = rows.order_by(Length("name"), "name", "id").values_list(
        "cell__name", "tenant__name", "name", "uid", "state", "tasks_total"
    )
    results = []
    for cell, tenant, name, uid, state, tasks in found[:MOST]:
        link = reverse("sigma:job", args=[cell, tenant, name])
        title, detail = f"{tenant}/{name}", _("job in cell %(cell)s, %(state)s") % {"cell": cell, "state": _(state)}
        if query.index is not None:
            link, title = f"{link}{query.index}/", f"{title}/{query.index}"
            detail = _("task in cell %(cell)s") % {"cell": cell}
        else:
            detail += ngettext(", %d task", ", %d tasks", tasks) % tasks
        names = (title, f"{cell}/{title}", title.partition("/")[2])
        results.append(Result(title, detail, f"{link}?uid={uid}", names))
    return results


def machines(principal: Principal, cells: dict[int, Cell], query: Query) -> list[Result]:
    """Return machines whose hostname contains the text, or that have the address. The text may begin with the name of a
    cell and a slash. `cells`: those that the user may see, by id.
    """
    rows = Machine.objects.filter(cell__in=list(cells)).exclude(state=REMOVED)
    cell_name, slash, hostname = query.text.partition("/")
    if query.address:
        rows = rows.filter(address=query.address)
    elif slash:
        rows = rows.filter(
            hostname__contains=hostname, cell__in=[pk for pk, one in cells.items() if one.name == cell_name]
        )
    else:
        rows = rows.filter(hostname__contains=query.text)
    found = rows.order_by(Length("hostname"), "hostname", "id")
    results = []
    for hostname, cell_id, state, rack, address in found.values_list("hostname", "cell_id", "state", "rack", "address")[
        :MOST
    ]:
        cell = cells[cell_id].name
        detail = _("machine in cell %(cell)s, %(state)s") % {"cell": cell, "state": _(state)}
        if rack:
            detail += _(", rack %s") % rack
        link = reverse("sigma:machine", args=[cell, hostname])
        results.append(Result(hostname, detail, link, (f"{cell}/{hostname}", str(address))))
    return results


def cells_of(cells: dict[int, Cell], query: Query) -> list[Result]:
    """Return the cells whose names contain the text. Makes no query."""
    names = sorted(
        (cell.name for cell in cells.values() if query.text in cell.name), key=lambda name: (len(name), name)
    )
    return [Result(name, _("cell"), reverse("sigma:cell", args=[name])) for name in names[:MOST]]


def tenants(principal: Principal, query: Query) -> list[Result]:
    """Return the tenants whose names contain the text."""
    rows = tenants_visible(principal).filter(name__contains=query.text).order_by(Length("name"), "name")
    return [
        Result(name, title or _("tenant"), reverse("sigma:tenant", args=[name]))
        for name, title in rows.values_list("name", "title")[:MOST]
    ]


def orders(principal: Principal, query: Query) -> list[Result]:
    """Return the order with the number in the text."""
    if query.order is None:
        return []
    return [
        Result(
            _("Order %d") % order.pk,
            _("of tenant %(tenant)s, %(state)s") % {"tenant": order.tenant.name, "state": _(order.state)},
            reverse("sigma:order", args=[order.pk]),
            (str(order.pk), f"#{order.pk}"),
        )
        for order in orders_visible(principal).filter(pk=query.order)
    ]


def names(principal: Principal, cells: dict[int, Cell], query: Query) -> list[Result]:
    """Return what has the DNS name or the path in the text. Only texts with a dot or a leading slash are such names."""
    if query.address or not ("." in query.text or query.text.startswith("/")):
        return []
    try:
        sought = name_parsing.read(query.text, settings.BORG_ZONE, cells=[cell.name for cell in cells.values()])
        link = page_of_name(principal, sought) if _exists(principal, cells, sought) else None
    except (InvalidName, Rejected):
        return []
    return [Result(query.text, _("DNS name"), link)] if link is not None else []


def _exists(principal: Principal, cells: dict[int, Cell], sought: object) -> bool:
    """Return whether a complete name is that of something which the user may see. Makes at most one query."""
    match sought:
        case JobName(cell=cell, tenant=tenant, job=job) | TaskName(cell=cell, tenant=tenant, job=job):
            rows = operated_jobs_visible(principal).filter(cell__name=cell, tenant__name=tenant, name=job)
            return rows.exists()
        case ServiceName(cell=cell, tenant=tenant, service=service):
            rows = operated_jobs_visible(principal).filter(cell__name=cell, tenant__name=tenant)
            return rows.filter(labels__service=service).exists()
        case MachineName(cell=cell, host=host):
            named = Machine.objects.filter(cell__in=list(cells), cell__name=cell, hostname=host)
            return named.exclude(state=REMOVED).exists()
    return True
