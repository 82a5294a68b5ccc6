"""The tables on the page that shows a cell at a past moment."""

from __future__ import annotations

import datetime as dt

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.parts.empty import Empty, EmptyAction
from portal.parts.paging import Changes, Paging
from portal.parts.tables import Cell, Column, Table
from quota.vocabulary.resources import CPU, DISK, NAMES, RAM, describe
from scheduling.core.explaining.wording import Words, format_why
from scheduling.history.moments.messages import ListPage, PendingJob, Picture
from scheduling.jobs.why import redacted
from scheduling.models import Cell as CellRow

_TONES = {"up": "good", "running": "good", "draining": "wait", "pending": "wait", "down": "bad", "dead": "plain"}
_SHOWN = (CPU, RAM, DISK)
_WORDS = Words(_, ngettext)


def shown_time(at: dt.datetime | float | None) -> str:
    """Return a time as text in the time zone of the user; a dash for None. `at`: a time, or seconds since the epoch."""
    if at is None:
        return "–"
    at = dt.datetime.fromtimestamp(at, dt.UTC) if isinstance(at, float | int) else at
    return f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S}"


def machine_counts(picture: Picture) -> Table:
    """Return a table with the number of machines in each state. `picture`: the cell at a past moment."""
    rows = [(_tag(state), number) for state, number in picture.machine_counts.items()]
    columns = (Column(_("State")), Column(_("Machines"), number=True))
    return Table(_("Machines by state"), columns, rows, Empty(""))


def resource_table(picture: Picture) -> Table:
    """Return a table with one row per resource: the capacity of the machines that were up, the limits and the
    reservations of their tasks, and the free capacity. `picture`: the cell at a past moment.
    """
    columns = (
        Column(_("Resource")),
        Column(_("Capacity"), number=True),
        Column(_("Task limits"), number=True),
        Column(_("Reserved for tasks"), number=True),
        Column(_("Free"), number=True),
    )
    rows = []
    for one in picture.resources:
        place = NAMES.index(one.name) if one.name in NAMES else None
        amounts = (one.capacity, one.limits, one.reserved, one.free)
        rows.append((one.name, *(describe(place, much) if place is not None else str(much) for much in amounts)))
    return Table(_("Capacity of machines that are up"), columns, rows, Empty(""))


def band_table(picture: Picture) -> Table:
    """Return a table with the numbers of live jobs and of their running, pending and dead tasks, one row per priority
    band. `picture`: the cell at a past moment.
    """
    columns = (
        Column(_("Band")),
        Column(_("Jobs"), number=True),
        Column(_("Running"), number=True),
        Column(_("Pending"), number=True),
        Column(_("Dead"), number=True),
    )
    rows = [(one.band or "–", one.jobs, one.running, one.pending, one.dead) for one in picture.bands]
    sums = [sum(numbers) for numbers in zip(*(row[1:] for row in rows), strict=True)]
    total = (_("all bands"), *sums) if len(rows) > 1 else ()
    empty = Empty(_("The cell had no live job."))
    return Table(_("Tasks by band and state"), columns, rows, empty, total=total)


def queue_table(picture: Picture) -> Table:
    """Return a table with the number of pending tasks of all tenants, one row per priority. `picture`: the cell at a
    past moment.
    """
    columns = (
        Column(_("Band")),
        Column(_("Priority"), number=True),
        Column(_("Jobs"), number=True),
        Column(_("Tasks pending"), number=True),
        Column(_("Oldest task pending since")),
    )
    rows = [(one.band or "–", one.priority, one.jobs, one.tasks, shown_time(one.since)) for one in picture.queues]
    return Table(_("Queue of pending tasks"), columns, rows, Empty(_("No task was pending.")))


def pending_table(picture: Picture, cell: CellRow) -> Table:
    """Return a table of the pending jobs that the user may see, with the reasons why their tasks were pending.
    `picture`: the cell at a past moment.
    """
    columns = (
        Column(_("Job")),
        Column(_("Priority"), number=True),
        Column(_("Tasks pending"), number=True),
        Column(_("Pending since")),
        Column(_("Reason")),
    )
    rows = [
        (
            Cell(f"{job.tenant}/{job.name}", _job_link(cell, job.tenant, job.name, job.uid)),
            job.priority,
            job.tasks,
            shown_time(job.since),
            _why(job, picture, cell),
        )
        for job in picture.pending
    ]
    empty = Empty(_("No task of your teams was pending."))
    return Table(_("Pending jobs and reasons"), columns, rows, empty)


def machine_table(picture: Picture, cell: CellRow) -> Table:
    """Return one page of the table of machines. `picture`: the cell at a past moment, with these machines."""
    columns = (
        Column(_("Machine")),
        Column(_("State")),
        Column(_("Rack")),
        Column(_("Tasks"), number=True),
        *(Column(name, number=True) for name in (_("CPU"), _("RAM"), _("Disk"))),
    )
    rows = [
        (
            _machine(cell, one.hostname),
            _tag(one.state),
            one.rack or None,
            one.tasks,
            *(
                Cell(describe(r, one.limits[r]), note=_("of %s capacity") % describe(r, one.capacity[r]))
                for r in _SHOWN
            ),
        )
        for one in picture.machines
    ]
    cleared: Changes = {"machine": None, "machine_state": None, "page": None}
    empty = Empty(_("No machine matches the filters."), actions=(EmptyAction(_("Show all machines"), changes=cleared),))
    return Table(_("Machines"), columns, rows, empty, paging=_paging(picture.machines_page, "page"))


def task_table(picture: Picture, cell: CellRow) -> Table:
    """Return one page of the table of tasks that the user may see. `picture`: the cell at a past moment, with these
    tasks.
    """
    columns = (
        Column(_("Task")),
        Column(_("State")),
        Column(_("Band")),
        Column(_("Machine")),
        Column(_("Incarnation"), number=True),
        Column(_("In this state since")),
    )
    rows = []
    for one in picture.tasks:
        link = reverse("sigma:task", args=[cell.name, one.tenant, one.job, one.index]) + f"?uid={one.uid}"
        name = Cell(f"{one.tenant}/{one.job}/{one.index}", link)
        rows.append(
            (name, _tag(one.state), one.band, _machine(cell, one.machine), one.incarnation, shown_time(one.since))
        )
    cleared: Changes = {"job": None, "task_state": None, "tasks_page": None}
    empty = Empty(
        _("No task of your teams matches the filters."), actions=(EmptyAction(_("Show all tasks"), changes=cleared),)
    )
    return Table(_("Tasks"), columns, rows, empty, paging=_paging(picture.tasks_page, "tasks_page"))


def _machine(cell: CellRow, hostname: str) -> Cell | None:
    """Return a cell with a link to the page of a machine as it is now, or None without a machine."""
    return Cell(hostname, reverse("sigma:machine", args=[cell.name, hostname])) if hostname else None


def _tag(state: str) -> Cell:
    return Cell(state, tone=_TONES.get(state, "plain"))


def _job_link(cell: CellRow, tenant: str, name: str, uid: str) -> str:
    return reverse("sigma:job", args=[cell.name, tenant, name]) + f"?uid={uid}"


def _why(job: PendingJob, picture: Picture, cell: CellRow) -> str:
    """Return the reasons why the tasks of a job were pending, as one text. All users who may see the job get the same
    text.
    """
    texts = [
        format_why(
            redacted(why, lambda tenant: tenant == job.tenant),
            job_id=job.job_id,
            extra=tuple(cell.extra_resources),
            hostnames=picture.nearest_hosts,
            words=_WORDS,
        ).text
        for why in job.whys
    ]
    if job.placeable:
        texts.insert(0, _("The next scheduling pass would place %d of these tasks.") % job.placeable)
    if not texts:
        texts = [_("The reasons were not computed, because too many tasks were pending.")]
    return " ".join(texts)


def _paging(page: ListPage, parameter: str) -> Paging:
    return Paging(
        {parameter: page.page - 1} if page.page > 1 else None,
        {parameter: page.page + 1} if page.page < page.pages else None,
        page.page,
        page.pages,
        page.rows,
    )
