"""The chain of causes of an event, and its effects, read from the journal in PostgreSQL.

The caller sees the links to events of all jobs, but only the kind of an event of a job that it may not see.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from django.db.models import Q, QuerySet

from quota.admission.admission import bands
from quota.vocabulary.errors import NotFound
from quota.vocabulary.permissions import Action, Principal, may
from scheduling.access.selectors import events_of_cell
from scheduling.history.archive.reading import archived_events_of_cell
from scheduling.history.causes.rules import JournalFacts, Link, Place, Search, Where, cause_of, concerns, effects_of
from scheduling.models import ArchivedJob, Cell, Event, Job

# The longest chain of causes: eviction ◄ placement ◄ eviction ◄ drain are four.
LONGEST_CHAIN = 8
# Events that name this one as their cause are searched in this many revisions after it, because no index has causes.
_REVISIONS_AFTER = 2_000
# How many events of a job a search for the additions of a task looks at.
_LOOKED_AT = 200


@dataclass(frozen=True, slots=True)
class LinkedEvent:
    """An event in a chain. `link`: how it is linked to the event before it. `job`: the name `tenant/job` of the event's
    job, or "" for an event without a job. `priority`, `band`: those of the job. `hidden`: whether the caller may not
    see the job; then `job` is empty.
    """

    event: Event
    link: Link | None
    job: str = ""
    uid: str = ""
    priority: int | None = None
    band: str = ""
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class CauseChain:
    """An event with its causes, nearest first, and its effects, grouped by the kind of link.

    `causes_archived`, `effects_archived`: whether further causes, or effects, may be only in the archive. The chain is
    read from PostgreSQL only.
    """

    event: LinkedEvent
    causes: tuple[LinkedEvent, ...]
    effects: tuple[LinkedEvent, ...]
    causes_archived: bool = False
    effects_archived: bool = False


def chain_of(principal: Principal, cell: Cell, place: Place) -> CauseChain:
    """Return an event with its causes and effects. Raises `NotFound` if there is no such event, or the principal may
    not see it. Makes one query per link of the chain, at most `LONGEST_CHAIN`, and at most seven more.
    """
    event = _event(principal, cell, place)
    causes: list[tuple[Link, Event]] = []
    causes_archived, front = False, event
    while len(causes) < LONGEST_CHAIN and (search := cause_of(facts_of(front))) is not None:
        found = _found(cell, search)
        if not found:
            causes_archived = _may_be_archived(cell, search)
            break
        front = found[0]
        causes.append((search.link, front))
    effects = [(search.link, one) for search in effects_of(facts_of(event)) for one in _found(cell, search)]
    known = {place}
    distinct = []
    for link, one in effects:
        if _place(one) not in known:
            known.add(_place(one))
            distinct.append((link, one))
    name = _Names(principal, cell, [event, *(one for _, one in [*causes, *distinct])])
    visible = []
    for link, one in causes:
        visible.append(name.linked(one, link))
        if visible[-1].hidden:
            break  # the causes of what another tenant does are not shown
    return CauseChain(
        name.linked(event, None),
        tuple(visible),
        tuple(name.linked(one, link) for link, one in distinct),
        causes_archived=causes_archived,
        effects_archived=place[0] <= cell.journal_floor,
    )


def facts_of(event: Event) -> JournalFacts:
    """Return the facts about an event from which rules find its cause and its effects."""
    caused_by = None
    if event.caused_by_revision is not None and event.caused_by_seq is not None:
        caused_by = event.caused_by_revision, event.caused_by_seq
    return JournalFacts(_place(event), event.kind, event.job_id, event.task_index, event.data, caused_by)


class _Names:
    """The names of the jobs of some events, if the principal may see them. Makes one query, and two more if a job is
    only in the archive.
    """

    def __init__(self, principal: Principal, cell: Cell, events: Sequence[Event]) -> None:
        ids = {event.job_id for event in events if event.job_id is not None}
        self._jobs = {job.id: job for job in Job.objects.filter(pk__in=ids).select_related("tenant")}
        if missing := ids - self._jobs.keys():
            self._jobs |= _archived(missing)
        self._sees = {
            tenant: may(principal, Action.JOB_VIEW, tenant=tenant, cell=cell.name)
            for tenant in {job.tenant.name for job in self._jobs.values()}
        }
        self._everything = principal.sre and principal.tenant is None

    def linked(self, event: Event, link: Link | None) -> LinkedEvent:
        if event.job_id is None:
            hidden = not self._everything and not event.kind.startswith("machine.")
            return LinkedEvent(event, link, hidden=hidden)
        job = self._jobs.get(event.job_id)
        if job is None:  # its row is gone, so nobody knows whose it was
            return LinkedEvent(event, link, hidden=not self._everything)
        if not self._sees[job.tenant.name]:
            return LinkedEvent(event, link, priority=job.priority, band=job.band, hidden=True)
        return LinkedEvent(event, link, f"{job.tenant.name}/{job.name}", str(job.uid), job.priority, job.band)


def _archived(ids: Collection[int]) -> dict[int, Job]:
    """Return the jobs that are only in the archive, by id. They have only the columns that the index of archived jobs
    contains. Makes at most two queries.
    """
    found = {}
    for entry in ArchivedJob.objects.filter(pk__in=ids).select_related("tenant").order_by():
        job = found[entry.id] = entry.brief()
        job.tenant = entry.tenant
    if found:
        known = bands()
        for job in found.values():
            job.band = next((band.name for band in known if band.low <= job.priority <= band.high), "")
    return found


def _event(principal: Principal, cell: Cell, place: Place) -> Event:
    revision, seq = place
    event = events_of_cell(principal, cell).filter(revision=revision, seq=seq).first()
    if event is None and revision <= cell.journal_floor:
        older = archived_events_of_cell(principal, cell).before((revision, seq + 1), limit=1).events
        event = next((one for one in older if _place(one) == place), None)
    if event is None:
        raise NotFound("event", f"{revision}.{seq}")
    return event


def _found(cell: Cell, search: Search) -> list[Event]:
    """Return the events that a search finds in PostgreSQL, nearest first."""
    if search.where is Where.AFTER and search.place[0] < cell.journal_floor:
        return []  # the nearest ones are in the archive, and PostgreSQL has only later ones that fit by chance
    rows = _rows(cell, search)
    if search.kinds:
        rows = rows.filter(kind__in=search.kinds)
    if search.job_id is not None:
        rows = rows.filter(job_id=search.job_id)
    for name, value in search.data:
        rows = rows.filter(**{f"data__{name}": value})
    if search.index is None:
        return list(rows[: search.most])
    if not search.of_job:
        return list(rows.filter(task_index=search.index)[: search.most])
    rows = rows.filter(Q(task_index=search.index) | Q(task_index__isnull=True))
    fitting = (event for event in rows[:_LOOKED_AT] if concerns(facts_of(event), search.index))
    return [event for event, _ in zip(fitting, range(search.most), strict=False)]


def _may_be_archived(cell: Cell, search: Search) -> bool:
    """Return whether events that a search for a cause did not find in PostgreSQL may be in the archive."""
    if search.where is Where.BEFORE:
        return cell.journal_floor > 0
    return search.place[0] <= cell.journal_floor


def _rows(cell: Cell, search: Search) -> QuerySet[Event]:
    revision, seq = search.place
    rows = Event.objects.filter(cell_id=cell.id)
    if search.where is Where.AT:
        return rows.filter(revision=revision, seq=seq)
    if search.where is Where.SAME:
        return rows.filter(revision=revision).order_by("seq")
    if search.where is Where.BEFORE:
        rows = rows.filter(Q(revision__lt=revision) | Q(seq__lt=seq), revision__lte=revision)
        return rows.order_by("-revision", "-seq")
    if search.names_cause:
        last = revision + _REVISIONS_AFTER
        rows = rows.filter(revision__lte=last, caused_by_revision=revision, caused_by_seq=seq)
    rows = rows.filter(Q(revision__gt=revision) | Q(seq__gt=seq), revision__gte=revision)
    return rows.order_by("revision", "seq")


def _place(event: Event) -> Place:
    return event.revision, event.seq
