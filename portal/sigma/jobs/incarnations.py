"""The table of the placements (incarnations) of a task: the machine and the score of each placement, how it ended, and
which task preempted it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from portal.parts.empty import Empty
from portal.parts.tables import Cell, Column, Table
from portal.sigma.reads import event_sentences
from quota.vocabulary.resources import format_number
from scheduling.models import Event, Job, Task
from scheduling.tasks.placement_records import hostnames
from scheduling.tasks.preemptors import Party, parties_of


@dataclass(slots=True)
class Incarnation:
    """One placement of a task. `placed`, `ended`, `gone`: the events of its placement, of its end or eviction, and of
    the end of its processes; None for events that are not known. `victims`: (job id, index) of each task that it
    preempted.
    """

    number: int
    placed: Event | None = None
    ended: Event | None = None
    gone: Event | None = None
    victims: list[tuple[int, int]] = field(default_factory=list)

    @property
    def machine_id(self) -> int:
        """Return the id of the machine, or 0 if it is not known."""
        event = self.placed or self.ended or self.gone
        return event.machine_id or 0 if event is not None else 0


def incarnations_in(events: Sequence[Event]) -> list[Incarnation]:
    """Return the placements (incarnations) of one task, newest first. `events`: the events that began or ended a
    placement.
    """
    found: dict[int, Incarnation] = {}
    for event in events:
        number = event.data.get("incarnation", 0)
        if not number or (event.kind == "task.ended" and not event.machine_id):
            continue  # a pending task was ended
        one = found.setdefault(number, Incarnation(number))
        if event.kind == "task.placed":
            one.placed = event
            one.victims = [(job, index) for job, index in event.data.get("victims") or ()]
        elif event.kind == "task.gone":
            one.gone = event
        else:
            one.ended = event
    return sorted(found.values(), key=lambda one: -one.number)


def complete(events: Sequence[Event]) -> bool:
    """Return whether the events reach back to the first placement of the task."""
    return any(event.kind == "task.placed" and event.data["incarnation"] == 1 for event in events)


def incarnation_table(
    job: Job, task: Task, events: Sequence[Event], *, sees: Callable[[str], bool], logs: str
) -> Table:
    """Return the table of a task's placements (incarnations). Makes at most two queries.

    `events`: the events that began or ended a placement. `sees`: a function that returns whether the user may see the
    jobs of a tenant. `logs`: the URL of the task's logs.
    """
    found = incarnations_in(events)
    names = hostnames(one.machine_id for one in found if one.machine_id)
    preemptors = [one.ended.data["preemptor"] for one in found if one.ended and one.ended.data.get("preemptor")]
    parties = parties_of([*preemptors, *(pair for one in found for pair in one.victims)], sees=sees)
    columns = (
        Column(_("Incarnation")),
        Column(_("Machine")),
        Column(_("From")),
        Column(_("Until")),
        Column(_("Score"), number=True),
        Column(_("Tasks that it preempted")),
        Column(_("How it ended")),
        Column(_("Log")),
    )
    rows = []
    for one in found:
        placed, ended = one.placed, one.ended
        score = placed.data.get("score") if placed is not None else None
        rows.append(
            (
                one.number,
                _machine(job, names.get(one.machine_id)),
                _timed(job, placed),
                _timed(job, ended) if ended is not None else (_("now") if one.number == task.incarnation else None),
                format_number(sum(score.values()), 3) if score else None,
                ", ".join(_named(parties[pair]) for pair in one.victims) or None,
                _ending(one, parties) or None,
                Cell(_("log"), f"{logs}?incarnation={one.number}"),
            )
        )
    return Table(_("Incarnations"), columns, rows, Empty(_("The task has not been placed yet.")))


def _ending(one: Incarnation, parties: dict[tuple[int, int], Party]) -> str:
    if one.ended is None:
        return ""
    data = one.ended.data
    text = str(data.get("cause") or data.get("how", "")).replace("-", " ")
    exit_ = data.get("exit") or (one.gone.data.get("exit") if one.gone is not None else None)
    if preemptor := data.get("preemptor"):
        text = _("preempted by %s") % _named(parties[preemptor[0], preemptor[1]])
    elif data.get("detail"):
        text = f"{text}: {data['detail']}"
    return f"{text}; {event_sentences.exit_of(exit_)}" if exit_ else text


def _named(party: Party) -> str:
    if party.job is None and not party.band:
        return _("an unknown task")
    given = {"job": party.job, "index": party.index, "priority": party.priority, "band": party.band}
    if party.job:
        return _("%(job)s/%(index)d with priority %(priority)d (%(band)s)") % given
    return _("a task with priority %(priority)d (%(band)s)") % given


def _machine(job: Job, hostname: str | None) -> Cell | None:
    return Cell(hostname, reverse("sigma:machine", args=[job.cell.name, hostname])) if hostname else None


def _timed(job: Job, event: Event | None) -> Cell | None:
    """Return a cell with the time of an event and a link to the page of the event. Return None if there is no event."""
    if event is None:
        return None
    at: dt.datetime = timezone.localtime(event.time)
    link = reverse("sigma:event", args=[job.cell.name, f"{event.revision}.{event.seq}"])
    return Cell(f"{at:%Y-%m-%d %H:%M:%S}", link)
