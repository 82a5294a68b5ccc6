"""The page of one machine: its capacity, the tasks on it, its health and history, and what is coming for it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views.decorators.http import require_GET

from portal.parts.meters import COLOURS, Share, SplitMeter, colour_of, split_meter
from portal.parts.timelines import State, Timeline, Track, timeline
from portal.sigma.frame.page import page
from portal.sigma.reads import machines as reads
from portal.sigma.reads.machines import Load, TaskHere
from quota.vocabulary.permissions import Action, Principal, may
from quota.vocabulary.resources import CPU, DISK, RAM, describe, format_number
from scheduling.access.selectors import cell_named, machine_named
from scheduling.core.vocabulary.requirement import POOL
from scheduling.models import Departure, Drain, Machine
from scheduling.models.machines import REMOVED
from scheduling.policy.cpu_factors import ONE

_TONES = {"up": "good", "draining": "wait", "down": "bad"}
# The shortest period that the timeline covers.
SHORTEST = dt.timedelta(minutes=1)


@page
@require_GET
def machine(request: HttpRequest, principal: Principal, cell: str, hostname: str) -> HttpResponse:
    row = machine_named(cell_named(principal, cell), hostname)
    load = reads.load_of(principal, row)
    administers = may(principal, Action.MACHINE_ADMIN, cell=row.cell.name)
    now, newest = timezone.now(), reads.newest_events(row)
    context = {
        "machine": row,
        "cell": row.cell,
        "load": load,
        "rows": [_row(row, one, place) for place, one in enumerate(load.tasks)],
        "meters": _meters(row, load),
        "extra": [
            (name, describe(len(row.capacity) - len(row.cell.extra_resources) + place, amount))
            for place, (name, amount) in enumerate(_extra(row))
        ],
        "own_cpu": describe(CPU, row.machine_cpu) if row.machine_cpu is not None else "",
        "cpu_factor": format_number(row.cpu_factor / ONE),
        "pool": row.attributes.get(POOL, ""),
        "attributes": sorted(row.attributes.items()),
        "drain": Drain.objects.filter(machine=row).first(),
        "windows": reads.coming_windows(row.cell, row),
        "last_report": reads.last_report(row),
        "timeline": _timeline(reads.states_in(newest, row), until=now),
        "events": reads.shown_events(principal, row, newest),
        "stopping": Departure.objects.filter(machine=row).count(),
        "now": now,
        "administers": administers,
        "actions": _actions(row) if administers and request.user.is_staff else [],
        "stored": reverse("admin:scheduling_machine_change", args=[row.pk]) if administers else "",
        "list": reverse("admin:scheduling_machine_changelist") + f"?q={row.hostname}&cell__id__exact={row.cell_id}",
    }
    return render(request, "sigma/machine.html", context)


def _extra(row: Machine) -> list[tuple[str, int]]:
    """Return the cell's own resources with the capacity of the machine."""
    names = row.cell.extra_resources
    return list(zip(names, row.capacity[len(row.capacity) - len(names) :], strict=False)) if names else []


def _row(row: Machine, one: TaskHere, place: int) -> dict[str, Any]:
    task, usage = one.task, one.usage

    def three(resource: int) -> tuple[str, str, str]:
        used = describe(resource, usage[resource]) if usage is not None else "–"
        return used, describe(resource, task.reservation[resource]), describe(resource, task.limit[resource])

    job = task.job
    link = reverse("sigma:task", args=[row.cell.name, job.tenant.name, job.name, task.index]) + f"?uid={job.uid}"
    colour = colour_of(place)
    return {"task": task, "job": job, "link": link, "colour": colour, "cpu": three(CPU), "ram": three(RAM)}


def _meters(row: Machine, load: Load) -> list[tuple[str, list[SplitMeter]]]:
    """Return, for each resource, its title and three bars: limits, reservations and usage, split by task."""
    titles = {CPU: _("CPU"), RAM: _("RAM"), DISK: _("Disk")}
    return [(title, _bars(row, load, place)) for place, title in titles.items()]


def _bars(row: Machine, load: Load, place: int) -> list[SplitMeter]:
    capacity = row.capacity[place]
    # A task inside an alloc uses the capacity of its alloc.
    outer = [one for one in load.tasks if one.task.alloc_id is None]
    limits = _shares(load.tasks, lambda one: one.task.limit[place] if one.task.alloc_id is None else 0)
    if load.others.tasks:
        limits.append(Share(_others(load.others.tasks), load.others.limit[place], 0))
    reserved = _shares(load.tasks, lambda one: one.task.reservation[place] if one.task.alloc_id is None else 0)
    used = _shares(load.tasks, lambda one: one.usage[place] if one.usage is not None else 0)
    if load.usage is not None:
        rest = load.usage[place] - sum(one.value for one in used)
        used.append(Share(_("other processes of the machine"), max(0, rest), 0))
    scale = max(capacity, sum(one.value for one in limits))
    draw = partial(split_meter, scale=scale, capacity=capacity, format_value=partial(describe, place))
    own = bool(load.others.tasks)
    bars = [draw(_("Limits"), limits)]
    if outer:
        bars.append(draw(_("Reservations of your tasks") if own else _("Reservations"), reserved))
    if load.usage is not None or any(one.usage is not None for one in load.tasks):
        bars.append(draw(_("Usage of your tasks") if own else _("Usage"), used))
    return bars


def _shares(tasks: Sequence[TaskHere], amount: Callable[[TaskHere], int]) -> list[Share]:
    """Return a share per task for the first tasks, and one share for all others."""
    shares = [
        Share(f"{one.task.job.name}/{one.task.index}", amount(one), colour_of(place))
        for place, one in enumerate(tasks[:COLOURS])
    ]
    if rest := tasks[COLOURS:]:
        text = ngettext("%d more task", "%d more tasks", len(rest)) % len(rest)
        shares.append(Share(text, sum(amount(one) for one in rest), 0))
    return shares


def _others(number: int) -> str:
    return ngettext("%d task of another tenant", "%d tasks of other tenants", number) % number


def _timeline(begun: Sequence[tuple[str, dt.datetime]], *, until: dt.datetime) -> Timeline:
    """Return the timeline of the states of a machine. `begun`: (state, since when), oldest first."""
    ends = [*(at for _state, at in begun[1:]), None]
    states = [State(state, at, end, _TONES.get(state, "plain")) for (state, at), end in zip(begun, ends, strict=True)]
    return timeline(
        _("State of the machine over time"),
        [Track(_("state"), states)],
        name="state",
        since=timezone.localtime(min(begun[0][1], until - SHORTEST)),
        until=timezone.localtime(until),
        format_time=lambda at: f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S}",
    )


def _actions(row: Machine) -> list[tuple[str, str]]:
    """Return the actions of the console that make sense now: the name of the action, and the title of its button. Each
    one opens a form of the console, which asks for a reason and changes nothing before.
    """
    if row.state == REMOVED or row.cell.study_of is not None or row.cell.deleted_at is not None:
        return []
    draining = Drain.objects.filter(machine=row).exists()
    found = [("undrain", _("End the drain…"))] if draining else [("drain", _("Drain…"))]
    if row.quarantined:
        found += [("quarantine_stop", _("Stop quarantined tasks…")), ("quarantine_keep", _("Keep quarantined tasks…"))]
    return found
