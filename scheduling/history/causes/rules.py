"""Rules that find the cause of an event, and the events that it caused. Pure.

Events carry a reference to their cause only where a person or a drain caused them. The other links follow from the
fields that events have: a task, an incarnation, a preemptor, an update. A rule returns *searches*, which describe where
in the journal the linked events are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

Place = tuple[int, int]
Data = Mapping[str, Any]


class Link(StrEnum):
    """The kinds of links between two events. The name describes the second event: the cause, or the effect."""

    REQUESTED = "requested"  # the cause that the event names
    PREEMPTED_BY = "preempted-by"  # the placement of the task that preempted this one
    QUEUED_BY = "queued-by"  # what made the task pending before it was placed
    PLACED_BY = "placed-by"  # the placement that began the incarnation
    UPDATED_BY = "updated-by"  # the update that changed the task
    LAST_TASK = "last-task"  # the end of the job's last task

    CAUSED = "caused"  # an event that names this one as its cause
    PREEMPTED = "preempted"  # the eviction of a victim
    ENDED = "ended"  # the end or the eviction of the placed incarnation
    PLACED = "placed"  # the placement of a pending task
    GONE = "gone"  # the end of the incarnation's processes
    JOB_ENDED = "job-ended"  # the end of the job with its last task
    UPDATE_ENDED = "update-ended"  # the end of the update


class Where(StrEnum):
    """The position of the events that a search reads: one event, those of one revision, or those before or after."""

    AT = "at"
    SAME = "same"
    BEFORE = "before"  # newest first, also earlier in the same revision
    AFTER = "after"  # oldest first, also later in the same revision


@dataclass(frozen=True, slots=True)
class JournalFacts:
    """The facts about an event from which rules find its cause and its effects. `place`: its revision and sequence
    number. `index`: the index of its task. `data`: its fields. `caused_by`: the place of its cause, if the event names
    one.
    """

    place: Place
    kind: str
    job_id: int | None
    index: int | None
    data: Data
    caused_by: Place | None = None


@dataclass(frozen=True, slots=True)
class Search:
    """A search for linked events. `place`: the place from which to search; with `Where.AT`, the place of the wanted
    event.

    `kinds`: the kinds of the events; empty for all kinds. `job_id`: the job of the events; None for all jobs. `index`:
    only events of this task; with `of_job` also those of the job that concern the task (`concerns`). `data`: the values
    of fields that the event has. `names_cause`: only events that name the event at `place` as their cause. `most`: how
    many events to return.
    """

    link: Link
    where: Where
    place: Place
    kinds: tuple[str, ...] = ()
    job_id: int | None = None
    index: int | None = None
    of_job: bool = False
    data: tuple[tuple[str, Any], ...] = ()
    names_cause: bool = False
    most: int = 1


_OF_INCARNATION = ("task.reported", "task.gone", "task.ended", "task.evicted", "shell.opened", "shell.closed")
# The most effects of one kind that a chain shows.
MOST_EFFECTS = 10


def cause_of(event: JournalFacts) -> Search | None:
    """Return the search for the event that caused another one, or None if its cause is outside of the journal, such as
    the submission of a job.
    """
    job_id, index, data, place = event.job_id, event.index, event.data, event.place
    if event.caused_by is not None:
        return Search(Link.REQUESTED, Where.AT, event.caused_by)
    if event.kind == "task.evicted" and data.get("preemptor"):
        job, task = data["preemptor"]
        return Search(Link.PREEMPTED_BY, Where.SAME, place, ("task.placed",), job, task)
    if event.kind == "task.evicted" and data.get("cause") == "update":
        return _update_of(event)
    if event.kind == "task.placed":
        kinds = ("task.evicted", "task.revived", "tasks.added", "job.submitted")
        return Search(Link.QUEUED_BY, Where.BEFORE, place, kinds, job_id, index, of_job=True)
    if event.kind in _OF_INCARNATION and data.get("incarnation"):
        return Search(Link.PLACED_BY, Where.BEFORE, place, ("task.placed",), job_id, index, data=_incarnation_of(event))
    if event.kind in ("task.updated", "task.revived", "tasks.added"):
        return _update_of(event)
    if event.kind == "update.ended":
        return _update_of(event, data=(("update_id", data["update_id"]),))
    if event.kind == "job.ended":
        return Search(Link.LAST_TASK, Where.BEFORE, place, ("task.ended",), job_id)
    return None


def effects_of(event: JournalFacts) -> list[Search]:
    """Return the searches for the events that an event caused."""
    job_id, index, data, place = event.job_id, event.index, event.data, event.place
    found = [Search(Link.CAUSED, Where.AFTER, place, names_cause=True, most=MOST_EFFECTS)]
    if event.kind == "task.placed":
        victims = (("preemptor", [job_id, index]),)
        found.append(Search(Link.PREEMPTED, Where.SAME, place, ("task.evicted",), data=victims, most=MOST_EFFECTS))
        ends = ("task.evicted", "task.ended")
        found.append(Search(Link.ENDED, Where.AFTER, place, ends, job_id, index, data=_incarnation_of(event)))
    elif event.kind in ("task.evicted", "task.revived"):
        found.append(Search(Link.PLACED, Where.AFTER, place, ("task.placed", "task.ended"), job_id, index))
        if event.kind == "task.evicted" and not data.get("gone"):
            gone = ("task.gone",)
            found.append(Search(Link.GONE, Where.AFTER, place, gone, job_id, index, data=_incarnation_of(event)))
    elif event.kind == "task.ended":
        found.append(Search(Link.JOB_ENDED, Where.SAME, place, ("job.ended",), job_id))
    elif event.kind in ("job.submitted", "tasks.added"):
        found.append(Search(Link.PLACED, Where.AFTER, place, ("task.placed",), job_id, most=MOST_EFFECTS))
    elif event.kind == "update.started":
        own = (("update_id", data["update_id"]),)
        found.append(Search(Link.UPDATE_ENDED, Where.AFTER, place, ("update.ended",), job_id, data=own))
    return found


def concerns(event: JournalFacts, index: int) -> bool:
    """Return whether an event of a job is about the task with this index: an event of the task or of the whole job, or
    the addition of tasks that include it.
    """
    if event.kind == "tasks.added":
        return any(first <= index <= last for group in event.data["groups"] for first, last in group["ranges"])
    return event.index in (None, index)


def _update_of(event: JournalFacts, *, data: tuple[tuple[str, Any], ...] = ()) -> Search:
    return Search(Link.UPDATED_BY, Where.BEFORE, event.place, ("update.started",), event.job_id, data=data)


def _incarnation_of(event: JournalFacts) -> tuple[tuple[str, Any], ...]:
    return (("incarnation", event.data["incarnation"]),)
