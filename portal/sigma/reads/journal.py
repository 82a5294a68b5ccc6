"""Journal events as sentences with their causes, such as "task 0 ended" because "task 0 was evicted"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db.models import Q
from django.utils.translation import gettext as _

from portal.sigma.reads.event_sentences import of
from scheduling.history.archive.reading import archived_events_of_job
from scheduling.models import Event, Job, Machine, Task

# The most causes that an event shows. Each step of the chain of causes takes one query for all events together.
CHAIN = 3
_OF_INCARNATIONS = ("task.placed", "task.evicted", "task.ended", "task.gone")
# The most archived events of a job that the page of a task searches.
_ARCHIVED = 500


@dataclass(frozen=True, slots=True)
class EventSentence:
    """An event as a sentence. `because`: the causes as sentences. The first one is the cause of the event, and each
    later one is the cause of the one before it. `hostname`: the machine of the event, or "".
    """

    event: Event
    sentence: str
    because: tuple[str, ...] = ()
    hostname: str = ""

    @property
    def place(self) -> str:
        """Return the place of the event in the journal: its revision and its number within the revision, such as
        `4711.0`.
        """
        return f"{self.event.revision}.{self.event.seq}"


def events_of(job: Job, *, index: int | None = None, limit: int = 25) -> list[EventSentence]:
    """Return the newest events of a job, or of its task with this `index`. Makes at most `CHAIN` + 2 queries."""
    rows = Event.objects.filter(cell_id=job.cell_id, job_id=job.id)
    if index is not None:
        rows = rows.filter(task_index=index)
    return event_sentences(list(rows.order_by("-revision", "-seq")[:limit]))


def incarnations_of(task: Task, *, archive: bool = False, limit: int = 100) -> list[EventSentence]:
    """Return the events that began or ended a placement (incarnation) of a task, newest first. `archive`: look in the
    archive too, among the newest archived events of the job. Raises `Rejected` if the archive cannot be read.
    """
    rows = Event.objects.filter(
        cell_id=task.cell_id, job_id=task.job_id, task_index=task.index, kind__in=_OF_INCARNATIONS
    )
    found = list(rows.order_by("-revision", "-seq")[:limit])
    if archive and len(found) < limit:
        archived = archived_events_of_job(task.job, kinds=_OF_INCARNATIONS)
        before = (found[-1].revision, found[-1].seq) if found else None
        older = archived.before(before, limit=_ARCHIVED).events
        found += [event for event in older if event.task_index == task.index][: limit - len(found)]
    return event_sentences(found)


def event_sentences(events: Sequence[Event]) -> list[EventSentence]:
    """Return events of one cell as sentences with their causes."""
    known = {(event.revision, event.seq): event for event in events}
    front: Iterable[Event] = events
    for _step in range(CHAIN):
        wanted = {_cause(event) for event in front} - {None} - known.keys()
        if not wanted:
            break
        places = Q(pk__in=[])
        for revision, seq in sorted(place for place in wanted if place is not None):
            places |= Q(revision=revision, seq=seq)
        found = list(Event.objects.filter(places, cell_id=events[0].cell_id))
        known |= {(event.revision, event.seq): event for event in found}
        front = found
    ids = {event.machine_id for event in known.values() if event.machine_id}
    hostnames = dict(Machine.objects.filter(id__in=ids).order_by().values_list("id", "hostname")) if ids else {}
    return [
        EventSentence(
            event,
            of(event, hostnames),
            tuple(_chain(event, known, hostnames)),
            hostnames.get(event.machine_id or 0, ""),
        )
        for event in events
    ]


def _cause(event: Event) -> tuple[int, int] | None:
    if event.caused_by_revision is None:
        return None
    return (event.caused_by_revision, event.caused_by_seq)  # type: ignore[return-value]


def _chain(event: Event, known: dict[tuple[int, int], Event], hostnames: dict[int, str]) -> Iterable[str]:
    for _step in range(CHAIN):
        cause = known.get(_cause(event) or (0, -1))
        if cause is None:
            return
        yield _("%(what)s (by %(actor)s)") % {"what": of(cause, hostnames), "actor": cause.actor}
        event = cause
